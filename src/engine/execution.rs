//! One execution of a fetch: its context, and the work that is left after the response head.

use super::{
    active_fetch::{ACTIVE_FETCHES, ActiveFetch},
    containment::{Aborted, contained},
    fill_set::FillSet,
    flight::{
        Flight,
        state::{JoinCriteria, Progress},
    },
    frontend::{Completed, Completion, Failure, FollowedRedirect, MAX_BODY_TIME, StoreAs},
    permit::FillPermit,
    resource::Resource,
};
use crate::{
    clock::{self, Timestamp},
    config::{StoreFailure, WaitTimeout},
    error::Error,
    outage_cache::NotStored,
    policy::{Freshness, freshness},
    store::{
        entry::{Audience, Entry, Kind},
        error::StoreError,
        lease::FailureMarker,
        token::Token,
        wake::Listener,
    },
    sync::{alongside::Alongside, pulse::WithPulse},
    telemetry,
};
use futures_util::future::join;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, sleep_until};

/// One execution of a fetch.
pub(super) struct Execution {
    pub(super) resource: Resource,
    pub(super) flight: Flight,
    /// The stored entry that the caller could not use: the stale candidate if the fetch fails.
    pub(super) seen: Option<Entry>,
    /// The redirects that were followed to its cache key.
    pub(super) redirects: Vec<FollowedRedirect>,
    /// The fetches that this one is part of.
    pub(super) outer_fetches: Vec<ActiveFetch>,
    /// When the caller that opened the flight stops waiting for another leader.
    pub(super) wait_until: Instant,
    /// When a flight within another fetch stops waiting.
    pub(super) nested_until: Option<Instant>,
    /// Number of fetches in a row that failed before this one, as far as the store or the caller knows.
    pub(super) earlier_failures: u32,
    /// Whether the fetch runs within its caller. All work that is not handed to a task then delays the caller.
    pub(super) scoped: bool,
}

/// The work that is left once each caller that can be answered at the head has its answer.
pub(super) struct Pending {
    pub(super) permit: FillPermit,
    /// When the fetch is aborted.
    pub(super) deadline: Instant,
    pub(super) rest: AfterHead,
}

/// The kind of work that is left.
pub(super) enum AfterHead {
    /// Await the payload and store it.
    Store(Token, (Timestamp, Timestamp), StoreAs, Completion),
    /// Store a marker that applies to this audience for this time.
    Mark(Kind, Audience, Duration, Completion),
    /// Release the lease, leaving a failure marker if there is one.
    Release(Option<FailureMarker>, Completion),
    /// Likewise, and then let a waiter lead again. A waiter that has led or waited anew before gets this state.
    Repeat(Progress, Option<FailureMarker>, Completion),
}

impl Execution {
    /// Records whether the store still has the stale candidate. Otherwise the candidate must not be served any more.
    pub(super) fn confirm_stale_candidate(&mut self, alive: bool) {
        if !alive {
            self.seen = None;
        }
        self.flight.set_stale_candidate(self.seen.clone());
    }

    /// Fetches for this process only, unless another local flight does so.
    pub(super) async fn go_local(&self, listener: Listener) -> Result<FillPermit, Progress> {
        self.join_or_lead_locally(FillPermit::local(listener)).await
    }

    /// Fetches for this process only, or rejects the request, as `on_store_failure` says.
    pub(super) async fn fail_open(&self, listener: Listener, error: StoreError) -> Result<FillPermit, Progress> {
        match self.resource.config.on_store_failure {
            StoreFailure::FailOpen => match self.go_local(listener).await? {
                FillPermit::Local { listener, .. } => {
                    self.acquire_fallback_permit(listener, NotStored::because_of(&error)).await
                }
                permit => Ok(permit),
            },
            StoreFailure::FailClosed => {
                Err(Progress::Refused(Error::store_down(error.into()), self.flight.stale_candidate()))
            }
        }
    }

    /// Acquires a `max_fallback_fetches` permit. A nested fetch needs none, because the enclosing fetch may hold the
    /// last one.
    pub(super) async fn acquire_fallback_permit(
        &self,
        listener: Box<Listener>,
        reason: NotStored,
    ) -> Result<FillPermit, Progress> {
        let not_stored = Some(reason);
        if self.is_nested() {
            return Ok(FillPermit::Local { listener, not_stored, _fallback_permit: None });
        }
        let permits = &self.resource.config.max_fallback_fetches;
        let permit = match permits.try_acquire() {
            Some(permit) => permit,
            None => {
                self.flight.publish(Progress::Queued);
                let permit = tokio::select! {
                    biased;
                    () = self.flight.deserted() => return Err(Progress::Abandoned),
                    permit = permits.acquire() => permit,
                    () = sleep_until(self.reject_at()) => return Err(self.waited_too_long()),
                    () = sleep(MAX_QUEUE_TIME) => {
                        let error = Error::overloaded(
                            "the store is unavailable and all `max_fallback_fetches` permits are in use",
                        );
                        return Err(Progress::Failed(Failure::Error(error), self.flight.stale_candidate()));
                    }
                };
                self.flight.publish(Progress::Running);
                permit
            }
        };
        Ok(FillPermit::Local { listener, not_stored, _fallback_permit: Some(permit) })
    }

    async fn join_or_lead_locally(&self, permit: FillPermit) -> Result<FillPermit, Progress> {
        let criteria = JoinCriteria { nested: self.is_nested(), ..JoinCriteria::default() };
        let Some(waiter) = self.flight.go_local(criteria) else {
            return Ok(permit);
        };
        let (_caller, _timed) = (waiter.want(), telemetry::waiting(&self.resource.config.meter));
        // The other flight may be waiting for a fetch that this one is part of.
        let until = self.nested_until.map_or_else(|| self.reject_at(), |until| until.min(self.reject_at()));
        let outcome = waiter.outcome_until(until, self.resource.config.lease_ttl, |_| false);
        tokio::select! {
            biased;
            () = self.flight.deserted() => Err(Progress::Abandoned),
            outcome = outcome => match outcome {
                Some(Progress::Queued) => Ok(permit),
                Some(state) => Err(state),
                None if self.nested_until.is_some_and(|until| until <= clock::now()) => Ok(permit),
                None => Err(self.waited_too_long()),
            },
        }
    }

    /// Returns when the caller that opened the flight is rejected, if the flight waits for a local
    /// flight or for a permit. A scoped leader
    /// applies the deadline of its caller, because the caller only awaits the leader.
    fn reject_at(&self) -> Instant {
        let rejects = self.resource.config.on_wait_timeout == WaitTimeout::Reject;
        let wait_until = if rejects { self.wait_until } else { clock::deadline_after(Duration::MAX) };
        self.resource.deadline.filter(|_| self.scoped).map_or(wait_until, |deadline| deadline.min(wait_until))
    }

    /// Returns the result of a flight when the caller that opened it stops waiting. The waiters try again under their
    /// own settings.
    fn waited_too_long(&self) -> Progress {
        Progress::Refused(self.wait_error(), self.flight.stale_candidate())
    }

    /// Returns the error for the caller that opened the flight when it stops waiting. Counts a wait timeout.
    pub(super) fn wait_error(&self) -> Error {
        if self.is_past_deadline() {
            return Error::deadline_exceeded();
        }
        telemetry::wait_timed_out(&self.resource.config.meter, &self.resource.key);
        Error::wait_timed_out()
    }

    pub(super) fn is_past_deadline(&self) -> bool {
        self.resource.deadline.is_some_and(|deadline| deadline <= clock::now())
    }

    /// Reports whether this fetch is nested in another fetch.
    fn is_nested(&self) -> bool {
        !self.outer_fetches.is_empty()
    }

    /// Handles an invalidation while the flight holds no lease: the flight leaves the table, and its stale candidate is
    /// dropped.
    pub(super) fn on_invalidation(&mut self) {
        self.flight.invalidated();
        self.seen = None;
    }

    /// Holds the flight of a refresh while another process refreshes, so that concurrent stale hits do not each ask the
    /// store for the lease. A caller that joins the flight ends it, and asks for itself.
    pub(super) async fn hold_refresh_slot(&self, span: Duration) {
        if !self.scoped {
            tokio::select! {
                biased;
                () = self.flight.joined() => {}
                () = sleep(span.min(MAX_SLOT_TIME)) => {}
            }
        }
    }

    /// Runs the fetch to its response head, within its bounds. A fetch that no caller waits for needs a `max_detached`
    /// permit until a caller joins it. Without a permit it is aborted.
    pub(super) async fn run_to_head<T>(
        &self,
        permit: &mut FillPermit,
        deadline: Instant,
        head: impl Future<Output = T>,
    ) -> Result<T, Aborted> {
        tokio::select! {
            biased;
            head = self.run_bounded(permit, deadline, head) => head,
            () = self.demand_ends() => Err(Aborted::Detached),
        }
    }

    /// Waits until no caller waits for the fetch and no `max_detached` permit is free.
    async fn demand_ends(&self) {
        loop {
            self.flight.deserted().await;
            let Some(_permit) = self.resource.config.max_detached.try_acquire() else { return };
            self.flight.joined().await;
        }
    }

    /// Runs a part of the fetch as an active fetch of its key, within its bounds, and keeps the lease alive meanwhile.
    pub(super) fn run_bounded<T>(
        &self,
        permit: &mut FillPermit,
        deadline: Instant,
        part: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Aborted>> {
        let mut active_fetches = self.outer_fetches.clone();
        let Resource { engine, key, .. } = &self.resource;
        active_fetches.push(ActiveFetch { store: engine.store.clone(), key: key.clone(), ends_at: deadline });
        let part = contained(deadline, ACTIVE_FETCHES.scope(active_fetches, part));
        Alongside::new(part, permit.keep_alive(&self.flight))
    }

    /// Does the work that is left. The flight may be joined until an entry is stored, so that this process does not
    /// fetch again what is about to be stored.
    pub(super) async fn finish(self: Box<Self>, pending: Pending) {
        if self.scoped {
            let (tasks, pulse) = (self.resource.engine.tasks.clone(), self.flight.pulse());
            tasks.spawn(WithPulse::new(async move { self.finish_now(pending).await }, pulse));
        } else {
            self.finish_now(pending).await;
        }
    }

    async fn finish_now(&self, Pending { mut permit, deadline, rest }: Pending) {
        // Rare work is boxed, here and below, because every flight would reserve room for it.
        match rest {
            AfterHead::Store(id, times, store_as, Completion::Ready(payload)) => {
                let fill_set = FillSet::new(id, times, store_as, payload).under(&self.redirects);
                self.store(permit, Arc::new(fill_set)).await;
            }
            AfterHead::Store(id, times, store_as, mut completion) => {
                match self.run_bounded(&mut permit, deadline, completion.completed()).await {
                    Ok(Completed::Payload(payload)) => {
                        let fill_set = FillSet::new(id, times, store_as, payload).under(&self.redirects);
                        self.store(permit, Arc::new(fill_set)).await;
                    }
                    Ok(Completed::TooLarge) => {
                        self.flight.complete(Progress::Uncacheable(Audience::Everyone));
                        let ttl = self.resource.config.uncacheable_ttl;
                        Box::pin(self.mark(permit, Kind::HitForPass, Audience::Everyone, ttl)).await;
                    }
                    Ok(Completed::Truncated) | Err(Aborted::Panicked | Aborted::Detached) => self.abandon(permit).await,
                    Err(Aborted::TimedOut) => {
                        Box::pin(join(self.abandon(permit), self.drain(deadline, completion))).await;
                    }
                }
            }
            AfterHead::Mark(kind, audience, ttl, completion) => {
                Box::pin(join(self.mark(permit, kind, audience, ttl), self.drain(deadline, completion))).await;
            }
            AfterHead::Release(failure_marker, completion) => {
                Box::pin(join(permit.release(failure_marker), self.drain(deadline, completion))).await;
            }
            AfterHead::Repeat(state, failure_marker, completion) => {
                let released = async {
                    permit.release(failure_marker).await; // first, so that the store tells the next leader of the failure
                    self.flight.complete(Progress::Inconclusive(Arc::new(state)));
                };
                Box::pin(join(released, self.drain(deadline, completion))).await;
            }
        }
    }

    /// Ends the flight without an entry. The waiters try again with one leader, because a call of each waiter would be
    /// the stampede.
    async fn abandon(&self, permit: FillPermit) {
        permit.release(None).await;
        self.flight.complete(Progress::Abandoned);
    }

    /// Publishes the entry, and stores it if that is permitted.
    async fn store(&self, permit: FillPermit, fill_set: Arc<FillSet>) {
        let can_keep = self.resource.can_keep(&fill_set);
        // The flight stays open during the fill only if the entry is of use to new callers.
        let state = Progress::Filled(fill_set.clone());
        match freshness(&fill_set.entry, Timestamp::now()) {
            Freshness::Fresh if can_keep => self.flight.publish(state),
            _ => self.flight.complete(state),
        }
        if let (None, Some((_, index))) = (permit.lease(), &fill_set.index) {
            // The entry stays in this process. Other callers follow the remembered redirect to its flight.
            self.resource.engine.redirect_cache.remember(&self.resource.key, index);
        }
        match can_keep {
            true => permit.fill(&self.resource, &self.flight, &fill_set).await,
            false => {
                let ttl = self.resource.config.uncacheable_ttl;
                Box::pin(self.mark(permit, Kind::DoNotStore, Audience::Everyone, ttl)).await;
            }
        }
    }

    /// Stores a marker that applies to this audience for this time. A fresh entry stays, and so does a marker of another
    /// audience that lives longer.
    async fn mark(&self, permit: FillPermit, kind: Kind, audience: Audience, ttl: Duration) {
        let now = Timestamp::now();
        let stays = |entry: &Entry| match entry.meta().kind {
            Kind::Value => freshness(entry, now) == Freshness::Fresh,
            _ if audience == Audience::Everyone || entry.meta().audience == audience => false,
            _ => entry.meta().lifetimes.fresh_for > entry.age(now).saturating_add(ttl),
        };
        let is_off = audience == Audience::NoOne || ttl.is_zero();
        if is_off || self.seen.as_ref().is_some_and(stays) {
            // The count of client errors stays beside the marker of others.
            let is_marker = self.seen.as_ref().is_some_and(|entry| entry.meta().kind != Kind::Value);
            let count = if is_marker && !is_off { self.resource.config.failure_count() } else { None };
            permit.release(count).await;
        } else if permit.can_mark() {
            let marker = FillSet::marker(permit.id(), kind, audience, ttl);
            permit.fill(&self.resource, &self.flight, &marker).await;
        }
    }

    /// Drives a body that is not stored, or not any more, for the callers that read it. `deadline` ends the fetch and
    /// its lease. It does not end the body, because the callers have a part of it already.
    async fn drain(&self, deadline: Instant, mut completion: Completion) {
        let more = self.resource.config.fetch_timeout.saturating_mul(MAX_BODY_TIME - 1);
        let _ = self.run_bounded(&mut FillPermit::None, clock::after(deadline, more), completion.completed()).await;
    }
}

/// Maximum time for which a flight is held while another process refreshes: a lease TTL of the default length.
const MAX_SLOT_TIME: Duration = Duration::from_secs(3);
/// Maximum time that a flight waits for a `max_fallback_fetches` permit. Many clients wait little longer, so a longer
/// queue would serve clients that have gone.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(1);
