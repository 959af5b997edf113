//! Waiting for the flight of another caller.

use super::{
    Caller,
    attempt::{RequestAttempt, SlowPath},
    nested_limit,
};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    config::{StoreFailure, WaitTimeout},
    engine::{
        fill_set::FillSet,
        flight::{callers::Waiter, state::Progress},
        frontend::{BoxFetch, Failure, Reuse, ReusePolicy, SharedReuse},
        resource::Resource,
    },
    error::{Error, ErrorKind},
    store::entry::{Entry, SharedValue},
    telemetry,
};
use std::time::Duration;
use tokio::time::Instant;

/// The end of a wait.
enum Waited {
    Outcome(Progress),
    /// The caller stops waiting. It gets this stale entry, if the policy allows that, otherwise the error.
    Rejected(Option<Entry>, Error),
    /// This caller cannot wait: the leader waits for a fetch that this caller is part of, or for the end of a body that
    /// may never end.
    Bypass(BypassReason),
    /// The caller is part of a fetch, and the leader may wait for that fetch.
    MayDeadlock,
}

/// A limit of a caller that waits.
enum Limit {
    Deadline,
    WaitTimeout,
    /// The part of the enclosing fetch's time that this caller may spend on waiting.
    Nested,
    /// The time for which a caller that came after the response head waits for the end of the body.
    Body,
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Waits for the flight of another caller, as long as its leader is alive, and at most until a limit of this
    /// caller.
    ///
    /// Not an `async fn`, which would hold its arguments twice. What follows the wait is boxed. So a waiter holds room
    /// for neither.
    pub(super) fn wait_for_leader<'s>(&'s self, waiter: Waiter, fetch: BoxFetch<'a, R>) -> SlowPath<'s, 'a, R> {
        Box::pin(async move {
            match self.wait(&waiter).await {
                Waited::Outcome(state) => self.on_outcome(state, fetch),
                Waited::Rejected(stale, error) => self.stale_or_rejected(stale, error),
                Waited::Bypass(reason) => RequestAttempt::Bypass(reason, fetch),
                Waited::MayDeadlock => RequestAttempt::Locally(fetch),
            }
        })
    }

    async fn wait(&self, waiter: &Waiter) -> Waited {
        let config = &self.resource().config;
        let mut caller = waiter.want();
        if waiter.joined_lookup() {
            // The caller that opened the flight ends the lookup after one timeout, as long as that caller is polled.
            let (limit, (until, _)) = (config.store_timeout.saturating_mul(2), self.next_limit(false, false, None));
            // A leader that has begun meanwhile is checked for life after half of a lease, as any other.
            let until = until.min(clock::deadline_after(config.lease_ttl / 2));
            let settles = |seen: &Entry| self.policy().settles(seen, Timestamp::now());
            if let Some(state) = waiter.lookup_until(limit, until, settles).await {
                return Waited::Outcome(state);
            }
        }
        if self.is_cycle() {
            return Waited::Bypass(BypassReason::Nested);
        }
        if let Some(reason) = self.rejection_reason(waiter) {
            return Waited::Rejected(caller.stale_candidate(), reason);
        }
        let _timed = telemetry::waiting(&config.meter);
        let is_elsewhere = |head: &_| matches!(self.policy().accept_shared(head), SharedReuse::Redirect(_));
        let (mut has_timed_out, mut stays_nested) = (false, false);
        loop {
            // PERF: not before the loop, because each waiter would hold it. Few waiters reach a second round.
            let body_until = waiter.joined_after_head.then(|| clock::deadline_after(MAX_WAIT_AFTER_HEAD));
            let (until, limit) = self.next_limit(has_timed_out, stays_nested, body_until);
            if let Some(state) = waiter.outcome_until(until, config.lease_ttl, is_elsewhere).await {
                return Waited::Outcome(state);
            }
            match limit {
                // Only one nested caller leaves, because most leaders are merely slow and wait for no nested caller.
                Limit::Nested if !stays_nested && !waiter.is_first_to_leave() => stays_nested = true,
                Limit::Nested => return Waited::MayDeadlock,
                Limit::Body => return Waited::Bypass(BypassReason::UnknownLength),
                Limit::Deadline => return Waited::Rejected(caller.stale_candidate(), Error::deadline_exceeded()),
                Limit::WaitTimeout => {
                    telemetry::wait_timed_out(&config.meter, &self.resource().key);
                    let stale = caller.stale_candidate();
                    let allows_stale =
                        stale.as_ref().and_then(|entry| self.policy().stale_answer(entry, Timestamp::now())).is_some();
                    if allows_stale || self.resource().config.on_wait_timeout == WaitTimeout::Reject {
                        return Waited::Rejected(stale, Error::wait_timed_out());
                    }
                    caller.demand_fetch();
                    has_timed_out = true;
                }
            }
        }
    }

    /// Returns the limit of this caller that is reached first, and when.
    fn next_limit(&self, has_timed_out: bool, stays_nested: bool, body_until: Option<Instant>) -> (Instant, Limit) {
        let wait_until = if has_timed_out { clock::deadline_after(Duration::MAX) } else { self.wait_until };
        let nested_until = match self.nested_until {
            Some(half_way) if stays_nested => nested_limit(&self.active_fetches, half_way),
            until => until,
        };
        let mut next = (wait_until, Limit::WaitTimeout);
        let deadline = self.resource().deadline;
        for (until, limit) in [(nested_until, Limit::Nested), (body_until, Limit::Body), (deadline, Limit::Deadline)] {
            if let Some(until) = until
                && until <= next.0
            {
                next = (until, limit);
            }
        }
        next
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

    /// Decides what the state of a flight means for a caller that joined it.
    pub(super) fn on_outcome(&self, state: Progress, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        match state {
            Progress::LookedUp(found) => RequestAttempt::LookedUp(found, fetch),
            Progress::Filled(fill_set) => self.on_filled(&fill_set, fetch),
            Progress::Shared(value) | Progress::HeadersReady(Some(value)) => self.on_shared(&value, fetch),
            Progress::Inconclusive(state) if self.has_doubts => self.on_outcome(Progress::clone(&state), fetch),
            Progress::Inconclusive(state) => match &*state {
                Progress::Failed(_, Some(stale)) => match self.policy().stale_answer(stale, Timestamp::now()) {
                    Some(answer) => RequestAttempt::Done(answer, CacheStatus::Stale),
                    None => RequestAttempt::SecondOpinion(fetch),
                },
                _ => RequestAttempt::SecondOpinion(fetch),
            },
            Progress::Uncacheable(audience) if self.policy().is_covered_by(audience) => {
                RequestAttempt::Bypass(BypassReason::Private, fetch)
            }
            Progress::Failed(failure, stale) => {
                let stale = stale.and_then(|entry| self.policy().stale_answer(&entry, Timestamp::now()));
                match (stale, failure) {
                    (Some(answer), _) => RequestAttempt::Done(answer, CacheStatus::Stale),
                    (None, Failure::Error(error)) => self.reject(error),
                    (None, Failure::SharedValue(value)) => self.on_shared(&value, fetch),
                }
            }
            // A waiter that fails closed needs the store as well, so it does not try again as the leader.
            Progress::Refused(error, stale)
                if error.kind() == ErrorKind::Store
                    && self.resource().config.on_store_failure == StoreFailure::FailClosed =>
            {
                self.stale_or_rejected(stale, error)
            }
            Progress::LookingUp
            | Progress::Running
            | Progress::Queued
            | Progress::HeadersReady(None)
            | Progress::Abandoned
            | Progress::Refused(..)
            | Progress::Uncacheable(_) => RequestAttempt::Retry(fetch),
        }
    }

    /// Answers with an entry that was filled. A response that is newer than this caller's request counts at any age,
    /// because its lifetime may be shorter than its fetch. An older one is evaluated.
    fn on_filled(&self, FillSet { entry, index, .. }: &FillSet, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        if let Some((variant, index)) = index {
            match self.policy().redirect_of(index, Timestamp::now()) {
                Some(redirect) if redirect.variant == *variant => {}
                Some(redirect) => return RequestAttempt::Redirect(redirect, fetch),
                None => return RequestAttempt::Unusable(fetch),
            }
        }
        let now = Timestamp::now();
        let answer = match entry.meta().response_time >= self.requested_at {
            true => self.policy().decode(entry, now).map_or(Reuse::Bypass, Reuse::Serve),
            false => self.policy().evaluate(entry, now),
        };
        match answer {
            Reuse::Serve(answer) | Reuse::ServeAndRevalidate(answer) => {
                RequestAttempt::Done(answer, CacheStatus::Coalesced)
            }
            Reuse::Bypass => RequestAttempt::Bypass(BypassReason::ForOthers, fetch),
            _ => RequestAttempt::Unusable(fetch),
        }
    }

    fn on_shared(&self, value: &SharedValue, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        match self.policy().accept_shared(value) {
            SharedReuse::Use(answer) => RequestAttempt::Done(answer, CacheStatus::Coalesced),
            // For example, a value of another type.
            SharedReuse::Bypass => RequestAttempt::Bypass(BypassReason::ForOthers, fetch),
            // The body of the response may take long, and holds the lease until its end.
            SharedReuse::TooOld => RequestAttempt::Locally(fetch),
            SharedReuse::Redirect(redirect) => RequestAttempt::Redirect(redirect, fetch),
        }
    }
}

/// Maximum time for which a caller that came after the response head waits for the end of a body of unknown length. Most
/// bodies end by then. A longer wait would delay each client of an endless one.
const MAX_WAIT_AFTER_HEAD: Duration = Duration::from_millis(250);
