//! A caller: one request for one key.

mod attempt;
mod hit_for_pass;
mod leading;
mod load_shedding;
mod waiting;

use super::{
    active_fetch::{ACTIVE_FETCHES, ActiveFetch},
    core::Engine,
    flight::{
        Entered, Flight,
        callers::Waiter,
        state::{Found, JoinCriteria, LookupCriteria, Scope},
    },
    frontend::{BoxFetch, FetchHead, FetchMode, Reuse, ReusePolicy},
    leader::{LeadMode, LeaderResult},
    lookup::Lookup,
    outage::KeptResult,
    resource::Resource,
    wait_graph::WaitEdge,
};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    config::StoreFailure,
    error::{Error, ErrorKind},
    outage_cache::OutageCache,
    policy::status_of,
    store::{
        entry::Entry,
        error::{BoxFuture, StoreError},
    },
    telemetry::{self, RequestSpan},
};
use attempt::{RequestAttempt, SlowPath, Step, boxed, ready};
use futures_util::{FutureExt, future::lazy};
use std::future::Future;
use tokio::time::Instant;

/// A function that spawns a fetch, so that the fetch outlives its caller.
type Spawn<'a> = fn(&Engine, BoxFuture<'a, ()>);

/// One request for one key, over all its attempts.
pub(super) struct Caller<'a, R, J> {
    lookup: Lookup<R, J>,
    /// `None`: a fetch runs within its caller.
    spawn: Option<Spawn<'a>>,
    requested_at: Timestamp,
    /// End of the wait timeout, over all attempts.
    wait_until: Instant,
    /// When a caller within a fetch first leaves the flight that it waits for: after half of the time that is left to
    /// that fetch. Otherwise two fetches in two processes that need each other would wait until both are aborted.
    nested_until: Option<Instant>,
    /// The fetches that the caller's task is already part of.
    active_fetches: Vec<ActiveFetch>,
    /// The edge of the wait-for graph, if this request is made within another fetch.
    wait_edge: Option<Box<WaitEdge>>,
    /// Whether this caller has waited for a flight. A result that is newer than the request is then accepted.
    has_waited: bool,
    /// Set after a result that this caller could not use. From then on it joins only flights that have no result yet.
    incomplete_only: bool,
    /// Set after a result that may be due to the request of its leader alone. The next such result counts.
    has_doubts: bool,
    /// Set when the flight of the fleet is of no use to this caller, as in [`LeadMode::Local`]. From then on this
    /// caller joins only local flights.
    local_only: bool,
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    fn new(resource: Resource, policy: J, spawn: Option<Spawn<'a>>) -> Self {
        let active_fetches = ACTIVE_FETCHES.try_with(Clone::clone).unwrap_or_default();
        let now = clock::now();
        Self {
            wait_until: clock::after(now, resource.config.wait_timeout()),
            lookup: Lookup::new(resource, policy),
            spawn,
            requested_at: Timestamp::of(now),
            nested_until: nested_limit(&active_fetches, now),
            active_fetches,
            wait_edge: None,
            has_waited: false,
            incomplete_only: false,
            has_doubts: false,
            local_only: false,
        }
    }

    /// Resolves the key. The caller is created when the future is first polled, because the polling task determines the
    /// enclosing fetches. A request may be made by one task and awaited by another, for instance through a buffer.
    pub(super) fn deferred(
        resource: Resource,
        policy: J,
        spawn: Option<Spawn<'a>>,
        fetch: BoxFetch<'a, R>,
    ) -> impl Future<Output = (R, CacheStatus)> + Send {
        lazy(move |_| {
            let span = RequestSpan::new(&resource.config.meter, &resource.key, resource.front_end);
            let mut caller = Self::new(resource, policy, spawn);
            span.instrument(async move { caller.run(fetch).await })
        })
        .flatten()
    }

    async fn run(&mut self, fetch: BoxFetch<'a, R>) -> (R, CacheStatus) {
        let (answer, status, fetched) = self.answer(fetch).await;
        let took = || Timestamp::now().since(self.requested_at);
        let Resource { config, key, front_end, .. } = self.resource();
        telemetry::answered_in_span(&config.meter, key, *front_end, status, fetched, took);
        (answer, status)
    }

    /// Returns the answer, its status, and whether the fetch of this caller was or is made.
    async fn answer(&mut self, mut fetch: BoxFetch<'a, R>) -> (R, CacheStatus, bool) {
        let (mut found, mut reason) = (None, BypassReason::Attempts);
        for _ in 0..MAX_ATTEMPTS {
            let attempt = match found.take() {
                Some(found) => self.after_lookup(&found, None, fetch).await,
                None => self.attempt(fetch).await,
            };
            fetch = match attempt {
                RequestAttempt::Done(answer, status) => return (answer, status, false),
                RequestAttempt::Fetched(answer, status) => return (answer, status, true),
                RequestAttempt::Bypass(why, unused) => {
                    (reason, fetch) = (why, unused);
                    break;
                }
                RequestAttempt::Retry(unused) => unused,
                RequestAttempt::SecondOpinion(unused) => {
                    (self.has_waited, self.has_doubts) = (true, true);
                    unused
                }
                RequestAttempt::LookedUp(shared, unused) => {
                    (self.has_waited, found) = (true, Some(shared));
                    unused
                }
                RequestAttempt::Unusable(unused) => {
                    self.incomplete_only = true;
                    unused
                }
                RequestAttempt::Locally(unused) if self.local_only && self.nested_until.is_some() => {
                    (reason, fetch) = (BypassReason::Nested, unused);
                    break; // the local flight may be part of a cycle as well
                }
                RequestAttempt::Locally(unused) => {
                    (self.local_only, self.incomplete_only) = (true, true);
                    self.nested_until = nested_limit(&self.active_fetches, clock::now());
                    unused
                }
                RequestAttempt::Redirect(redirect, unused) => {
                    if !self.lookup.move_to(&redirect) {
                        fetch = unused;
                        break;
                    }
                    (self.has_waited, self.has_doubts) = (true, false);
                    (self.incomplete_only, self.local_only) = (false, false);
                    unused
                }
            };
        }
        (Box::pin(self.fetch_alone(FetchMode::Bypass(reason), fetch)).await.response, CacheStatus::Bypass, true)
    }

    /// Fetches for this caller only. A panic of the fetch is counted and goes on to the caller.
    async fn fetch_alone(&self, mode: FetchMode, fetch: BoxFetch<'a, R>) -> FetchHead<R> {
        let Resource { config, key, .. } = self.resource();
        let head = telemetry::fetching_alone(&config.meter, key, async { fetch(mode).await }).await;
        if let Some(failure) = head.sharing.failure() {
            telemetry::fetch_failed(&config.meter, key, failure);
        }
        head
    }

    async fn attempt(&mut self, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        if !self.local_only {
            self.lookup.predict();
        }
        self.record_request();
        if self.is_in_own_fetch() {
            return RequestAttempt::Bypass(BypassReason::Nested, fetch);
        }
        if self.local_only {
            return self.lead_or_join_locally(LeadMode::Local, fetch).await;
        }
        match self.enter_lookup() {
            Err(waiter) => self.wait_for_leader(waiter, fetch).await,
            Ok(flight) => {
                let found = self.lookup.read().await;
                self.after_lookup(&found, flight, fetch).await
            }
        }
    }

    /// Opens a flight for the lookup of the entry, or joins the flight in the table. A caller that may not join that
    /// flight opens or joins a lookup beside it. Returns `Ok(None)` if it may join neither, because `max_waiters`
    /// callers wait for each lookup: the caller looks up the entry for itself.
    fn enter_lookup(&self) -> Result<Option<Flight>, Waiter> {
        let timeout = self.resource().config.store_timeout;
        let lookup = Some(LookupCriteria { timeout, remembered: self.lookup.remembered() });
        for scope in [Scope::Fleet, Scope::Lookup] {
            match self.enter(scope, lookup, None) {
                Entered::Lead(flight) => return Ok(Some(flight)),
                Entered::Wait(waiter) if self.may_join(&waiter, scope) => return Err(waiter),
                Entered::Wait(_) => {}
            }
        }
        Ok(None)
    }

    /// Reports whether the caller joins the flight without a lookup of its own.
    ///
    /// It joins no leader at a cache key that only remembered redirects lead to, because they may have been invalidated
    /// since the fetch began. It joins no leader if the entry that the fetch replaces settles what the caller gets.
    /// While the outage cache may have an answer, it joins no lookup that a leader may continue. It joins no lookup while
    /// the circuit breaker is open, because that lookup will fail.
    fn may_join(&self, waiter: &Waiter, scope: Scope) -> bool {
        let config = &self.resource().config;
        if waiter.joined_lookup() {
            let may_lead = scope == Scope::Fleet && !config.outage_cache().is_none_or(OutageCache::is_empty);
            return waiter.waiter_count() <= config.max_waiters && !may_lead && !self.resource().is_breaker_open();
        }
        let settles = |seen: &Entry| self.policy().settles(seen, Timestamp::now());
        self.lookup.remembered() == 0 && !waiter.seen().is_some_and(settles)
    }

    /// Decides what to do with the result of a lookup: that of this caller, or of the flight that it has joined. If the
    /// store has no usable entry, the outage cache is asked.
    fn after_lookup<'s>(
        &'s mut self,
        found: &Found,
        flight: Option<Flight>,
        fetch: BoxFetch<'a, R>,
    ) -> Step<'s, 'a, R> {
        // If a redirect has changed, the flight is of no use, and its waiters try again.
        let flight = flight.filter(|flight| *flight.key() == self.resource().key);
        let kept = self.lookup.consult_outage_cache(found);
        self.record_request();
        if self.is_in_own_fetch() {
            return ready(RequestAttempt::Bypass(BypassReason::Nested, fetch));
        }
        let flight = match flight {
            Some(flight) if kept.is_none() && flight.scope() == Scope::Fleet => Some(flight),
            flight => {
                end_lookup(flight, found);
                None
            }
        };
        match (kept, found) {
            (Some(KeptResult::Answer(answer, status)), _) => ready(RequestAttempt::Done(answer, status)),
            (Some(KeptResult::Bypass), _) => ready(RequestAttempt::Bypass(BypassReason::Private, fetch)),
            (_, Err(error)) => {
                end_lookup(flight, found);
                self.on_store_unavailable(error.clone(), fetch)
            }
            (None, Ok(Some(entry))) => self.on_entry(found, entry, flight, fetch),
            (_, Ok(_)) => Step::Right(self.lead_or_join(None, flight, fetch)),
        }
    }

    fn on_entry<'s>(
        &'s mut self,
        found: &Found,
        entry: &Entry,
        flight: Option<Flight>,
        fetch: BoxFetch<'a, R>,
    ) -> Step<'s, 'a, R> {
        let (now, id) = (Timestamp::now(), entry.meta().id);
        if self.has_waited
            && entry.meta().response_time >= self.requested_at
            && let Some(answer) = self.policy().decode(entry, now)
        {
            end_lookup(flight, found);
            return ready(RequestAttempt::Done(answer, CacheStatus::Coalesced));
        }
        match self.policy().evaluate(entry, now) {
            Reuse::Serve(answer) => {
                end_lookup(flight, found);
                ready(RequestAttempt::Done(answer, status_of(entry, now)))
            }
            Reuse::ServeAndRevalidate(answer) => boxed(self.refresh(entry.clone(), answer, flight, fetch)),
            Reuse::Redirect(redirect) if self.lookup.follow(entry, &redirect) => {
                self.has_doubts = false; // they concern the other cache key
                end_lookup(flight, found);
                ready(RequestAttempt::Retry(fetch))
            }
            Reuse::Revalidate | Reuse::Miss | Reuse::HitForPassOfOthers | Reuse::Redirect(_) => {
                Step::Right(self.lead_or_join(Some(entry.clone()), flight, fetch))
            }
            Reuse::Bypass => {
                end_lookup(flight, found);
                ready(RequestAttempt::Bypass(BypassReason::ForOthers, fetch))
            }
            Reuse::HitForPass => {
                end_lookup(flight, found);
                boxed(self.hit_for_pass(id, fetch))
            }
            Reuse::DoNotStore => {
                end_lookup(flight, found);
                Step::Right(self.lead_or_join_locally(LeadMode::DoNotStore(id), fetch))
            }
        }
    }

    /// Leads the flight that this caller has opened. Without one, joins the flight of the fleet or opens it.
    fn lead_or_join<'s>(
        &'s self,
        seen: Option<Entry>,
        flight: Option<Flight>,
        fetch: BoxFetch<'a, R>,
    ) -> SlowPath<'s, 'a, R> {
        match self.begin_leading(flight, seen.as_ref()) {
            Entered::Wait(waiter) => self.wait_for_leader(waiter, fetch),
            Entered::Lead(flight) => Box::pin(self.lead(flight, LeadMode::Coordinated, seen, fetch)),
        }
    }

    /// Continues the flight of the lookup if it is still in the table. Otherwise enters the flight of the fleet.
    fn begin_leading(&self, flight: Option<Flight>, seen: Option<&Entry>) -> Entered {
        match flight {
            Some(flight) if flight.begin_leading(seen) => Entered::Lead(flight),
            _ => self.enter(Scope::Fleet, None, seen),
        }
    }

    /// Opens the flight of this process, or joins it.
    fn lead_or_join_locally<'s>(&'s self, mode: LeadMode, fetch: BoxFetch<'a, R>) -> SlowPath<'s, 'a, R> {
        match self.enter(Scope::Local, None, None) {
            Entered::Wait(waiter) => self.wait_for_leader(waiter, fetch),
            Entered::Lead(flight) => Box::pin(self.lead(flight, mode, None, fetch)),
        }
    }

    fn enter(&self, scope: Scope, lookup: Option<LookupCriteria>, seen: Option<&Entry>) -> Entered {
        let Resource { engine, key, .. } = self.resource();
        let (nested, incomplete_only) = (!self.active_fetches.is_empty(), self.incomplete_only);
        engine.flights.enter(key, scope, JoinCriteria { nested, incomplete_only, lookup }, seen)
    }

    /// Continues in the local flight, or rejects the request if the guard is set to fail closed.
    fn on_store_unavailable<'s>(&'s self, error: StoreError, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match self.resource().config.on_store_failure {
            StoreFailure::FailOpen => Step::Right(self.lead_or_join_locally(LeadMode::StoreDown, fetch)),
            StoreFailure::FailClosed => ready(self.reject(Error::store_down(error.into()))),
        }
    }

    /// Answers with the stale entry. If no refresh of it is in flight, this caller's fetch refreshes it in the
    /// background.
    async fn refresh(
        &self,
        entry: Entry,
        answer: R,
        flight: Option<Flight>,
        fetch: BoxFetch<'a, R>,
    ) -> RequestAttempt<'a, R> {
        if let Entered::Lead(flight) = self.begin_leading(flight, Some(&entry)) {
            let (mut result, inline) = self.spawn_leader(flight, LeadMode::Refresh, Some(entry.clone()), fetch);
            inline.await;
            // A scoped refresh has run to its end here. If it succeeded, its result is better than the stale entry.
            match result.try_recv() {
                Ok(LeaderResult::Response(answer, status)) => return RequestAttempt::Fetched(answer, status),
                Ok(LeaderResult::NotFetched(..)) => {}
                _ => return RequestAttempt::Fetched(answer, status_of(&entry, Timestamp::now())),
            }
        }
        RequestAttempt::Done(answer, status_of(&entry, Timestamp::now()))
    }

    fn resource(&self) -> &Resource {
        &self.lookup.resource
    }

    fn policy(&self) -> &J {
        &self.lookup.policy
    }

    /// Reports whether the key is being fetched by this caller's own task.
    fn is_in_own_fetch(&self) -> bool {
        let Resource { engine, key, .. } = self.resource();
        self.active_fetches.iter().any(|active| active.would_wait_on_itself(&engine.store, key))
    }

    /// Records the request for this cache key in the wait-for graph.
    fn record_request(&mut self) {
        let Resource { engine, key, .. } = &self.lookup.resource;
        self.wait_edge = WaitEdge::enter(&engine.wait_graph, key, &self.active_fetches);
    }

    /// Answers with the confirmed stale entry if it may replace a failed fetch. Otherwise rejects the request.
    fn stale_or_rejected(&self, stale: Option<Entry>, error: Error) -> RequestAttempt<'a, R> {
        match stale.and_then(|entry| self.policy().stale_answer(&entry, Timestamp::now())) {
            Some(answer) => RequestAttempt::Done(answer, CacheStatus::Stale),
            None => self.reject(error),
        }
    }

    fn reject(&self, error: Error) -> RequestAttempt<'a, R> {
        if error.kind() == ErrorKind::Overloaded {
            telemetry::overloaded(&self.resource().config.meter, &self.resource().key, &error);
        }
        RequestAttempt::Done(self.policy().reject(error), CacheStatus::Rejected)
    }
}

/// Ends a flight with the result of its lookup, if this caller has opened one.
fn end_lookup(flight: Option<Flight>, found: &Found) {
    if let Some(flight) = flight {
        flight.end_lookup(found);
    }
}

/// Returns when half of the time from `now` to the earliest end of these fetches is over. `None` for a caller that is
/// part of no fetch.
fn nested_limit(active_fetches: &[ActiveFetch], now: Instant) -> Option<Instant> {
    let end = active_fetches.iter().map(|active| active.ends_at).min()?;
    Some(clock::after(now, end.saturating_duration_since(now) / 2))
}

/// Maximum number of attempts (for example because each leader was cancelled) before the caller bypasses the cache.
const MAX_ATTEMPTS: usize = 64;
