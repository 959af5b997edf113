//! Waiting for the flight of another caller.

use super::{
    Caller,
    attempt::{RequestAttempt, Step, boxed, ready},
};
use crate::{
    backoff,
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    config::WaitTimeout,
    engine::{
        fill_set::FillSet,
        flight::{Progress, Scope, Waiter},
        frontend::{BoxFetch, Failure, Reuse, ReusePolicy, SharedReuse},
        leader::LeadMode,
    },
    error::Error,
    telemetry,
};
use futures_util::future::Either;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Waits for a flight of the fleet, at most for the wait timeout.
    pub(super) async fn wait_for_leader(&self, waiter: Waiter, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        if self.is_cycle() {
            return self.answer_by_bypass(fetch).await;
        }
        if let Some(reason) = self.rejection_reason(&waiter) {
            return self.stale_or_rejected(waiter.stale_candidate(), reason);
        }
        let outcome = timeout_at(self.give_up, waiter.outcome(|value| self.redirects_elsewhere(value))).await;
        self.on_outcome_or_timeout(outcome.ok(), &waiter, fetch).await
    }

    /// Handles the outcome of the flight, or `None` after the wait timeout.
    fn on_outcome_or_timeout<'s>(
        &'s self,
        outcome: Option<Progress>,
        waiter: &Waiter,
        fetch: BoxFetch<'a, R>,
    ) -> Step<'s, 'a, R> {
        if let Some(state) = outcome {
            return self.on_outcome(state, fetch);
        }
        telemetry::wait_timed_out(&self.resource.engine.stats, &self.resource.key);
        if self.is_past_deadline() {
            return ready(self.stale_or_rejected(waiter.stale_candidate(), Error::deadline_exceeded()));
        }
        match waiter.stale_candidate().and_then(|entry| self.stale_if_error_answer(&entry)) {
            Some(answer) => ready(RequestAttempt::Done(answer, CacheStatus::Stale)),
            None if self.resource.config.on_wait_timeout == WaitTimeout::Reject => {
                ready(self.reject(Error::wait_timed_out()))
            }
            None => self.on_wait_timeout(waiter, fetch),
        }
    }

    /// Continues without the leader after the wait timeout. If the store is unavailable, the fetch needs one of the
    /// `max_fallback_fetches` permits.
    fn on_wait_timeout<'s>(&'s self, waiter: &Waiter, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match self.resource.check_breaker() {
            Err(error) => self.on_store_unavailable(error, fetch),
            Ok(()) if waiter.is_queued() => Either::Right(self.lead_or_join_locally(LeadMode::StoreDown, None, fetch)),
            // Does not join a local flight that began before this request: the key may have been invalidated since.
            Ok(()) => Either::Right(self.lead_or_join_locally(LeadMode::Overdue, Some(self.requested_at), fetch)),
        }
    }

    /// Waits until the local flight has ended.
    pub(super) async fn wait_for_local(&self, waiter: Waiter, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        if self.is_cycle() {
            return self.answer_by_bypass(fetch).await;
        }
        if let Some(reason) = self.rejection_reason(&waiter) {
            return self.reject(reason);
        }
        // The flight ends with its fetch, and giving up earlier would cause the stampede. A nested caller gives up
        // after the wait timeout, because the flight may wait for a fetch that the caller is part of.
        let config = &self.resource.config;
        let wait = backoff::budget(config.wait_timeout, clock::random_unit());
        let is_nested = !self.active_fetches.is_empty();
        let longest = if is_nested { wait } else { config.fetch_timeout.saturating_add(wait) };
        let wait_until = clock::deadline_after(longest);
        let wait_until = self.resource.deadline.map_or(wait_until, |deadline| deadline.min(wait_until));
        let outcome = timeout_at(wait_until, waiter.outcome(|value| self.redirects_elsewhere(value))).await;
        self.on_local_outcome(outcome.ok(), fetch).await
    }

    /// Handles the outcome of the local flight, or `None` after the timeout.
    fn on_local_outcome<'s>(&'s self, outcome: Option<Progress>, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match outcome {
            // Do not retry as leader: the waiters would time out one after another.
            Some(Progress::Refused(error, stale)) if self.give_up <= clock::deadline_after(Duration::ZERO) => {
                ready(self.stale_or_rejected(stale, error))
            }
            Some(state) => self.on_outcome(state, fetch),
            None if self.is_past_deadline() => ready(self.reject(Error::deadline_exceeded())),
            None => boxed(self.answer_by_bypass(fetch)),
        }
    }

    /// Returns the reason why this caller must not wait, if there is one.
    fn rejection_reason(&self, waiter: &Waiter) -> Option<Error> {
        let too_late = |deadline: Instant| {
            let remaining = deadline.saturating_duration_since(clock::deadline_after(Duration::ZERO));
            waiter.expected_end().is_some_and(|end| end.since(Timestamp::now()) > remaining)
        };
        if waiter.is_complete() {
            None // the flight is over, so there is no wait
        } else if waiter.waiter_count() > self.resource.config.max_waiters {
            Some(Error::overloaded("the fetch has `max_waiters` waiters already"))
        } else if self.resource.deadline.is_some_and(too_late) {
            Some(Error::deadline_exceeded())
        } else {
            None
        }
    }

    /// Reports whether waiting would deadlock, because the leader waits for a fetch that this caller is part of.
    fn is_cycle(&self) -> bool {
        let is_cycle = self.resource.engine.wait_graph.would_deadlock(&self.resource, &self.active_fetches);
        if is_cycle {
            telemetry::deadlock_avoided(&self.resource.engine.stats, &self.resource.key);
        }
        is_cycle
    }

    fn is_past_deadline(&self) -> bool {
        self.resource.deadline.is_some_and(|deadline| deadline <= clock::deadline_after(Duration::ZERO))
    }

    /// Decides what the state of a flight means for a caller that joined it.
    pub(super) fn on_outcome<'s>(&'s self, state: Progress, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        let shared = match state {
            Progress::EntryFound(entry) => {
                if let Some(redirect) = self.redirect(&entry) {
                    return ready(RequestAttempt::Redirect(redirect, fetch));
                }
                let now = Timestamp::now();
                match (self.policy.evaluate(&entry, now), self.policy.decode(&entry, now)) {
                    (Reuse::Serve, Some(answer)) => SharedReuse::Use(answer),
                    (Reuse::ServeAndRevalidate, Some(answer)) => {
                        return boxed(self.refresh(entry, answer, fetch));
                    }
                    (Reuse::Serve | Reuse::ServeAndRevalidate, None) | (Reuse::Bypass, _) => SharedReuse::Bypass,
                    (Reuse::Revalidate | Reuse::Miss | Reuse::Redirect, _) => {
                        return ready(RequestAttempt::Retry(fetch));
                    }
                }
            }
            Progress::Filled(fill_set) => {
                let FillSet { entry, index } = &*fill_set;
                if let Some((variant, index)) = index {
                    match self.redirect(index) {
                        Some(redirect) if redirect.variant == *variant => {}
                        Some(redirect) => return ready(RequestAttempt::Redirect(redirect, fetch)),
                        None => return ready(RequestAttempt::Newer(Scope::Fleet, fetch)),
                    }
                }
                // An entry that was filled while this caller waited counts, even if its lifetime is shorter than the
                // fetch. A caller that joined later evaluates it.
                match entry.meta().response_time >= self.requested_at || self.is_servable(entry) {
                    true => self.policy.decode(entry, Timestamp::now()).map_or(SharedReuse::Bypass, SharedReuse::Use),
                    false if self.is_for_others(entry) => SharedReuse::Bypass,
                    false => return ready(RequestAttempt::Newer(Scope::Fleet, fetch)),
                }
            }
            Progress::Uncacheable(audience) if self.policy.is_covered_by(audience) => SharedReuse::Bypass,
            Progress::Running
            | Progress::Queued
            | Progress::Abandoned
            | Progress::Refused(..)
            | Progress::Uncacheable(_) => {
                return ready(RequestAttempt::Retry(fetch));
            }
            Progress::ServeStale(entry) => match self.stale_if_error_answer(&entry) {
                Some(answer) => return ready(RequestAttempt::Done(answer, CacheStatus::Stale)),
                None => SharedReuse::Bypass,
            },
            Progress::Shared(value) | Progress::HeadersReady(value) => self.policy.accept_shared(&value),
            Progress::Failed(failure, stale) => {
                if let Some(answer) = stale.as_ref().and_then(|entry| self.stale_if_error_answer(entry)) {
                    return ready(RequestAttempt::Done(answer, CacheStatus::Stale));
                }
                match failure {
                    Failure::Error(error) => return ready(self.reject(error)),
                    Failure::SharedValue(value) => self.policy.accept_shared(&value),
                }
            }
        };
        ready(match shared {
            SharedReuse::Use(answer) => RequestAttempt::Done(answer, CacheStatus::Coalesced),
            // For example, a value of another type.
            SharedReuse::Bypass => return boxed(self.answer_by_bypass(fetch)),
            // Fetch locally: the body of the response may take long, and holds the lease until its end.
            SharedReuse::TooOld => RequestAttempt::Newer(Scope::Local, fetch),
            SharedReuse::Retry => RequestAttempt::Retry(fetch),
            SharedReuse::Redirect(redirect) => RequestAttempt::Redirect(redirect, fetch),
        })
    }
}
