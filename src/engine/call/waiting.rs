//! Waiting for a flight that another caller, or this caller, has opened.

use super::{Attempt, Call, done};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    config::FailureClass,
    engine::{
        fill_set::FillSet,
        flight::{FlightState, Progress, Waiter},
        frontend::{Reuse, Unshared},
        leader::{LeadMode, LeaderAnswer},
        resource::Resource,
    },
    error::Error,
    store::{entry::SharedValue, error::BoxFuture},
    sync::alongside::Alongside,
    telemetry,
};
use std::{future::Future, pin::pin, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep_until};

/// A limit of a caller that waits.
#[derive(Clone, Copy)]
enum Limit {
    Deadline,
    WaitTimeout,
    /// The time for which a caller that came after the response head waits for the end of the body.
    Body,
}

impl<'a> Call<'a> {
    /// Waits for the flight of another caller, as long as its leader is alive, and at most until a limit of this caller.
    /// If the leader ends without a result, this caller may lead next, in this mode.
    ///
    /// Boxed, and what follows the wait is not part of it, so that a waiter holds no room for either.
    pub(super) fn wait(&mut self, mut waiter: Waiter, mode: LeadMode) -> BoxFuture<'_, Attempt> {
        if self.is_cycle() {
            return done(Attempt::Alone(BypassReason::Nested));
        }
        if let Some(reason) = self.rejection_reason(&waiter) {
            return done(self.stale_or_rejected(waiter.stale_candidate(), reason));
        }
        telemetry::record_role("waiter");
        waiter.request_hash = self.policy.request_hash().unwrap_or_default();
        let timed = telemetry::waiting(&self.resource().config.meter);
        let stale = self.stale_in_time(waiter.state());
        let waits: BoxFuture<'_, Attempt> = Box::pin(async move {
            let body_until = waiter.joined_after_head.then(|| clock::deadline_after(MAX_WAIT_AFTER_HEAD));
            let (until, limit) = self.next_limit(body_until, true);
            let half_lease = self.resource().config.lease_ttl / 2;
            let is_elsewhere = |head: &SharedValue| matches!(self.policy.accept_shared(head), Reuse::Redirect(_));
            let outcome = waiter.outcome_until(until, half_lease, is_elsewhere).await;
            #[cfg_attr(not(feature = "metrics"), allow(clippy::drop_non_drop, reason = "it measures nothing"))]
            drop(timed);
            match outcome {
                Some(Ok(flight)) => {
                    let seen = waiter.seen().filter(|seen| !self.policy.settles(seen, Timestamp::now())).cloned();
                    let leads = self.wait_or_lead(Ok(flight), mode, seen);
                    drop(waiter); // its place was taken by that of the opener
                    leads.await
                }
                Some(Err(state)) => self.on_outcome(state, &waiter),
                None => self.on_limit(limit, &waiter),
            }
        });
        Self::first_of(waits, stale)
    }

    /// Waits for the flight that this caller has opened. The answer of its leader comes first, because the state that
    /// the leader publishes is for the other callers.
    ///
    /// The wait timeout applies while the leader waits for another leader or for a permit. It applies neither to the
    /// caller's own fetch nor to the question for its lease.
    pub(super) async fn wait_for_own(
        &mut self,
        waiter: Waiter,
        answered: impl Future<Output = Option<LeaderAnswer>>,
    ) -> Attempt {
        let (mut answered, mut waits) = (pin!(answered), false);
        loop {
            let fetches = self.fetch.has_begun();
            let (until, limit) = self.next_limit(None, waits && !fetches);
            tokio::select! {
                biased;
                answer = &mut answered => return match answer {
                    Some(LeaderAnswer { response, status, .. }) => Attempt::Done(response, status, true),
                    None if self.fetch.has_begun() => self.cancelled(),
                    None if waiter.is_complete() => self.on_outcome(waiter.outcome(|_| false).await, &waiter),
                    None => Attempt::Again, // a waiter leads
                },
                state = waiter.outcome(|_| false), if !fetches => {
                    if self.take_fetch_back() {
                        return self.on_outcome(state, &waiter);
                    }
                }
                () = waiter.leader_waits(), if !waits => {
                    waits = true;
                    if self.is_cycle() && self.take_fetch_back() {
                        return Attempt::Alone(BypassReason::Nested);
                    }
                }
                () = sleep_until(until) => {
                    // If the fetch has begun since the limit was set, the limits of a fetch apply.
                    if fetches || !self.fetch.has_begun() {
                        return self.on_limit(limit, &waiter);
                    }
                }
            }
        }
    }

    /// Waits for the soft timeout of this caller, and until the flight has a confirmed stale entry that may replace a failed
    /// fetch. Then answers with it. `None` without a soft timeout, and for a fetch that would end with this caller.
    pub(super) fn stale_in_time(&self, flight: &Arc<FlightState>) -> Option<BoxFuture<'a, Attempt>> {
        let until = self.resource().soft_until.filter(|_| self.spawn.is_some())?;
        let (policy, fetch, flight) = (self.policy.clone(), self.fetch.clone(), flight.clone());
        Some(Box::pin(async move {
            sleep_until(until).await;
            let answer = flight.stale_answer(|entry| policy.stale_answer(&entry, Timestamp::now())).await;
            Attempt::Done(answer, CacheStatus::Stale, fetch.has_begun())
        }))
    }

    /// Waits for the attempt, or for the stale answer if that comes first.
    pub(super) fn first_of<'s>(
        waits: BoxFuture<'s, Attempt>,
        stale: Option<BoxFuture<'s, Attempt>>,
    ) -> BoxFuture<'s, Attempt> {
        match stale {
            Some(stale) => Box::pin(Alongside::new(waits, stale)),
            None => waits,
        }
    }

    /// Takes the fetch from the leader, unless it has begun. A leader that was abandoned may go on, and must not begin
    /// the fetch while this caller makes a call of its own.
    fn take_fetch_back(&mut self) -> bool {
        self.fetch.take_back().map(|fetch| self.fetch = fetch).is_some()
    }

    /// Handles a limit that ends the wait of this caller.
    fn on_limit(&self, limit: Limit, waiter: &Waiter) -> Attempt {
        let error = match limit {
            Limit::Body => return Attempt::Alone(BypassReason::UnknownLength),
            Limit::Deadline => Error::deadline_exceeded(),
            Limit::WaitTimeout => {
                let Resource { config, key, .. } = self.resource();
                telemetry::wait_timed_out(&config.meter, key);
                Error::wait_timed_out()
            }
        };
        self.stale_or_rejected(waiter.stale_candidate(), error)
    }

    /// Returns the limit of this caller that is reached first, and when.
    fn next_limit(&self, body: Option<Instant>, waits: bool) -> (Instant, Limit) {
        let wait_until = if waits { self.wait_until } else { clock::deadline_after(Duration::MAX) };
        let limits = [(body, Limit::Body), (self.resource().deadline, Limit::Deadline)];
        let limits = limits.into_iter().filter_map(|(until, limit)| Some((until?, limit)));
        limits.fold((wait_until, Limit::WaitTimeout), |next, other| if other.0 <= next.0 { other } else { next })
    }

    /// Reports whether waiting would deadlock, because the leader waits for a fetch that this caller is part of.
    fn is_cycle(&self) -> bool {
        let Resource { engine, config, key, .. } = self.resource();
        let is_cycle = engine.wait_graph.would_deadlock(key, &self.active_fetches);
        if is_cycle {
            telemetry::deadlock_avoided(&config.meter, key);
        }
        is_cycle
    }

    /// Returns the reason why this caller must not wait, if there is one: too many callers wait, or the answer would
    /// come too late.
    fn rejection_reason(&self, waiter: &Waiter) -> Option<Error> {
        let too_late = |deadline: Instant| {
            let remaining = deadline.saturating_duration_since(clock::deadline_after(Duration::ZERO));
            waiter.expected_end().is_some_and(|end| end.since(Timestamp::now()) > remaining)
        };
        let Resource { config, deadline, .. } = self.resource();
        if waiter.is_complete() {
            None // the flight is over, so there is no wait
        } else if waiter.callers() > config.max_waiters.saturating_add(1) {
            Some(Error::overloaded("the fetch has `max_waiters` waiters already"))
        } else if deadline.is_some_and(too_late) {
            Some(Error::deadline_exceeded())
        } else {
            None
        }
    }

    /// Decides what the state of a flight means for a caller that waited for it.
    fn on_outcome(&mut self, state: Progress, waiter: &Waiter) -> Attempt {
        let is_error = matches!(state, Progress::Found(Err(_)) | Progress::Unshared(Unshared::Error(..)));
        // The fetch may have begun before this refresh was called.
        let is_early = waiter.state().begun() < self.policy.since() && !is_error;
        match if is_early { Progress::Abandoned } else { state } {
            Progress::Found(Err(error)) => self.on_silence(error, waiter),
            Progress::Found(found) => {
                // Also if a local leader has found it, which this call would ask again otherwise.
                (self.has_waited, self.lookup.found, self.local) = (true, Some(found), None);
                Attempt::Again
            }
            Progress::Filled(fill_set) => self.on_filled(&fill_set),
            Progress::Shared(value) | Progress::HeadersReady(Some(value)) => self.on_shared(&value),
            Progress::Unshared(result) => self.on_unshared(result, waiter),
            Progress::Running | Progress::Queued | Progress::HeadersReady(None) | Progress::Abandoned => {
                self.asked = Timestamp::now();
                self.local.take_if(|mode| matches!(mode, LeadMode::Local(Some(_)))); // the store may be back
                Attempt::Again
            }
        }
    }

    /// Answers with a result that has no entry. A confirmed stale entry takes the place of a failure.
    fn on_unshared(&mut self, result: Unshared, waiter: &Waiter) -> Attempt {
        if result.is_failure()
            && let Some(stale) = waiter.stale_candidate()
            && let Some(answer) = self.policy.stale_answer(&stale, Timestamp::now())
        {
            return Attempt::Done(answer, CacheStatus::Stale, false);
        }
        match result {
            Unshared::Error(error, FailureClass::OriginDown) => self.reject(error),
            Unshared::Error(error, _) => Attempt::Done(self.policy.reject(error), CacheStatus::Coalesced, false),
            Unshared::Response(value, _) => self.on_shared(&value),
            Unshared::Private(audience) if self.policy.is_covered_by(audience) => Attempt::Alone(BypassReason::Private),
            Unshared::Private(_) => Attempt::Again,
        }
    }

    /// Answers with an entry that was filled. A response that is newer than this caller's request counts at any age,
    /// because its lifetime may be shorter than its fetch. An older one is evaluated.
    fn on_filled(&mut self, FillSet { entry, index, .. }: &FillSet) -> Attempt {
        let now = Timestamp::now();
        if let Some((variant, index)) = index {
            match self.policy.redirect_of(index, now) {
                Some(redirect) if redirect.variant == *variant => {}
                Some(redirect) => return self.follow(&redirect),
                None => return self.unusable(),
            }
        }
        let is_newer = self.policy.since() > 0 || entry.meta().response_time >= self.requested_at;
        let answer = match self.policy.evaluate(entry, now) {
            Reuse::Miss | Reuse::Revalidate if is_newer => {
                self.policy.decode(entry, now).map_or(Reuse::Bypass, Reuse::Serve)
            }
            answer => answer,
        };
        match answer {
            Reuse::Serve(answer) | Reuse::ServeAndRevalidate(answer) => {
                Attempt::Done(answer, CacheStatus::Coalesced, false)
            }
            Reuse::Redirect(redirect) => self.follow(&redirect),
            Reuse::Bypass | Reuse::HitForPass => Attempt::Alone(BypassReason::ForOthers),
            _ => self.unusable(),
        }
    }

    fn on_shared(&mut self, value: &SharedValue) -> Attempt {
        match self.policy.accept_shared(value) {
            Reuse::Serve(answer) => Attempt::Done(answer, CacheStatus::Coalesced, false),
            Reuse::Redirect(redirect) => self.follow(&redirect),
            // For example, a value of another type.
            Reuse::Bypass => Attempt::Alone(BypassReason::ForOthers),
            // The response is too old. Its body may take long, and holds the lease until its end.
            _ => {
                self.local = Some(LeadMode::Local(None));
                self.unusable()
            }
        }
    }

    /// Tries again after a result that this caller cannot use: only one that is not there yet is accepted.
    fn unusable(&mut self) -> Attempt {
        self.incomplete_only = true;
        Attempt::Again
    }
}

/// Maximum time for which a caller that came after the response head waits for the end of a body of unknown length. Most
/// bodies end by then. A longer wait would delay each client of an endless one.
const MAX_WAIT_AFTER_HEAD: Duration = Duration::from_millis(250);
