//! A caller: one request for one key.

mod attempt;
mod leading;
mod lookup;
mod outage;
mod waiting;

use super::{
    active_fetch::{ACTIVE_FETCHES, ActiveFetch},
    core::Engine,
    fill_set::FillSet,
    flight::{Entered, JoinCriteria, Scope},
    frontend::{BoxFetch, Completed, Completion, FetchHead, FetchMode, Reuse, ReusePolicy, Shareability, SharedReuse},
    leader::{LeadMode, LeaderResult},
    resource::Resource,
    wait_graph::WaitEdge,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    config::StoreFailure,
    error::{Error, ErrorKind},
    key::CacheKey,
    policy::{Freshness, freshness, is_uncacheable_marker},
    store::{
        entry::{Entry, Kind, SharedValue},
        error::{BoxFuture, StoreError},
        port::FillCondition,
        token::{Inbox, Token},
    },
    telemetry,
};
use attempt::{RequestAttempt, SlowPath, Step, boxed, ready};
use futures_util::{
    FutureExt,
    future::{Either, lazy},
};
use outage::{Found, KeptResult};
use std::{future::Future, marker::PhantomData};
use tokio::time::{Instant, timeout_at};

/// A function that spawns a fetch, so that the fetch outlives its caller.
type Spawn<'a> = fn(&Engine, BoxFuture<'a, ()>);

pub(super) struct Caller<'a, R, J> {
    resource: Resource,
    policy: J,
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
    /// The redirects that were followed to this cache key.
    redirects: Vec<SharedValue>,
    /// The last cache key that came from the store and the number of redirects to it, if remembered redirects were
    /// followed from there.
    recalled: Option<Box<(CacheKey, usize)>>,
    /// The edge of the wait-for graph, if this request is made within another fetch.
    wait_edge: Option<Box<WaitEdge>>,
    /// Whether a leader that this caller waited for has redirected it. The result of that leader is accepted.
    has_waited: bool,
    /// Set after a result that this caller could not use. From then on it joins only flights that have no result yet.
    incomplete_only: bool,
    /// Set when the flight of the fleet does not answer in time, or its response is too old for this caller. From then
    /// on this caller joins only local flights.
    local_only: bool,
    answer: PhantomData<fn() -> R>,
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    pub(super) fn new(resource: Resource, policy: J, spawn: Option<Spawn<'a>>) -> Self {
        let active_fetches = ACTIVE_FETCHES.try_with(Clone::clone).unwrap_or_default();
        let now = clock::now();
        let wait_until = clock::after(now, resource.config.wait_timeout());
        let nested_until = nested_limit(&active_fetches, now);
        let (requested_at, redirects) = (Timestamp::of(now), Vec::new());
        let (recalled, wait_edge, has_waited, incomplete_only, answer) = (None, None, false, false, PhantomData);
        Self {
            resource,
            policy,
            spawn,
            requested_at,
            wait_until,
            nested_until,
            active_fetches,
            redirects,
            recalled,
            wait_edge,
            has_waited,
            incomplete_only,
            local_only: false,
            answer,
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
            let mut caller = Self::new(resource, policy, spawn);
            async move { caller.run(fetch).await }
        })
        .flatten()
    }

    async fn run(&mut self, fetch: BoxFetch<'a, R>) -> (R, CacheStatus) {
        let (answer, status) = self.answer(fetch).await;
        let took = || Timestamp::now().since(self.requested_at);
        telemetry::answered(&self.resource.engine.stats, &self.resource.key, status, took);
        (answer, status)
    }

    /// Resolves the key from the store, without a fetch and without waiting.
    pub(super) async fn lookup_only(mut self) -> Option<(R, CacheStatus)> {
        let mut found = self.find().await;
        let now = Timestamp::now();
        let (answer, status) = match self.consult_outage_cache(&mut found) {
            Some(KeptResult::Answer(answer, status)) => (answer, status),
            Some(KeptResult::Bypass) => return None,
            None => {
                let entry = found.ok()??;
                let is_servable = self.is_servable(&entry) && !is_uncacheable_marker(&entry, now);
                (is_servable.then(|| self.policy.decode(&entry, now))??, of_stored(&entry, now))
            }
        };
        telemetry::answered(&self.resource.engine.stats, &self.resource.key, status, || now.since(self.requested_at));
        Some((answer, status))
    }

    async fn answer(&mut self, mut fetch: BoxFetch<'a, R>) -> (R, CacheStatus) {
        self.wait_edge = WaitEdge::enter(&self.resource.engine.wait_graph, &self.resource.key, &self.active_fetches);
        for _ in 0..MAX_ATTEMPTS {
            if self.is_in_own_fetch() {
                break;
            }
            fetch = match self.attempt(fetch).await {
                RequestAttempt::Done(answer, status) => return (answer, status),
                RequestAttempt::Retry(unused) => unused,
                RequestAttempt::Unusable(unused) => {
                    self.incomplete_only = true;
                    unused
                }
                RequestAttempt::Locally(unused) if self.local_only && self.nested_until.is_some() => {
                    fetch = unused;
                    break; // the local flight may be part of a cycle as well
                }
                RequestAttempt::Locally(unused) => {
                    (self.local_only, self.incomplete_only) = (true, true);
                    self.nested_until = nested_limit(&self.active_fetches, clock::now());
                    unused
                }
                RequestAttempt::Redirect(redirect, unused) => {
                    if !self.follow(redirect) {
                        fetch = unused;
                        break;
                    }
                    (self.has_waited, self.incomplete_only, self.local_only) = (true, false, false);
                    self.recalled = None;
                    unused
                }
            };
        }
        Box::pin(self.bypass(fetch)).await
    }

    async fn attempt(&mut self, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        let fetch = match self.try_join_in_flight(fetch) {
            Ok(joined) => return joined.await,
            Err(unused) => unused,
        };
        let found = self.find().await;
        self.after_lookup(found, fetch).await
    }

    /// Resolves the key without asking the store, or returns the unused fetch.
    fn try_join_in_flight<'s>(&'s mut self, fetch: BoxFetch<'a, R>) -> Result<SlowPath<'s, 'a, R>, BoxFetch<'a, R>> {
        if self.local_only {
            return Ok(self.lead_or_join_locally(LeadMode::Local, self.join_criteria(), fetch));
        }
        self.rewind();
        // Joins a flight without a lookup. Exceptions: the entry that the flight has seen can be served to this caller,
        // is for other callers, or is a hit-for-pass marker for this one.
        if let Some(waiter) = self.resource.engine.flights.join(&self.resource.key, self.join_criteria())
            && !waiter
                .seen()
                .is_some_and(|seen| self.is_servable(seen) || self.is_for_others(seen) || self.must_pass(seen))
        {
            return Ok(self.wait_for_leader(waiter, fetch));
        }
        match !self.is_in_own_fetch() && self.resource.engine.dropped.take(&self.resource.key) {
            true => Ok(self.lead_or_join(None, fetch)),
            false => Err(fetch),
        }
    }

    /// Decides what to do with the result of the lookup. If the store has no usable entry, the outage cache is asked.
    fn after_lookup<'s>(&'s mut self, mut found: Found, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match self.consult_outage_cache(&mut found) {
            Some(KeptResult::Answer(answer, status)) => ready(RequestAttempt::Done(answer, status)),
            Some(KeptResult::Bypass) => boxed(self.answer_by_bypass(fetch)),
            None => self.on_found(found, fetch),
        }
    }

    fn on_found<'s>(&'s self, found: Found, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        if self.is_in_own_fetch() {
            return boxed(self.answer_by_bypass(fetch));
        }
        let entry = match found {
            Ok(Some(entry)) => entry,
            Ok(None) => return Either::Right(self.lead_or_join(None, fetch)),
            Err(error) => return self.on_store_unavailable(error, fetch),
        };
        let now = Timestamp::now();
        if is_uncacheable_marker(&entry, now) {
            let marker = entry.meta().id;
            return match entry.meta().kind {
                Kind::DoNotStore => {
                    let mode = LeadMode::DoNotStore(marker);
                    Either::Right(self.lead_or_join_locally(mode, self.join_criteria(), fetch))
                }
                _ if !self.policy.is_covered_by(entry.meta().audience) => {
                    Either::Right(self.lead_or_join(Some(entry), fetch))
                }
                Kind::HitForPass | Kind::Value => boxed(self.hit_for_pass(marker, fetch)),
            };
        }
        if self.has_waited
            && entry.meta().response_time >= self.requested_at
            && let Some(answer) = self.policy.decode(&entry, now)
        {
            return ready(RequestAttempt::Done(answer, CacheStatus::Coalesced));
        }
        match self.policy.evaluate(&entry, now) {
            Reuse::Serve => match self.policy.decode(&entry, now) {
                Some(answer) => ready(RequestAttempt::Done(answer, of_stored(&entry, now))),
                None => Either::Right(self.lead_or_join(Some(entry), fetch)),
            },
            Reuse::ServeAndRevalidate => match self.policy.decode(&entry, now) {
                Some(answer) => boxed(self.refresh(entry, answer, fetch)),
                None => Either::Right(self.lead_or_join(Some(entry), fetch)),
            },
            Reuse::Revalidate | Reuse::Miss | Reuse::Redirect => Either::Right(self.lead_or_join(Some(entry), fetch)),
            Reuse::Bypass => boxed(self.answer_by_bypass(fetch)),
        }
    }

    /// Opens the flight of the fleet, or joins it.
    fn lead_or_join<'s>(&'s self, seen: Option<Entry>, fetch: BoxFetch<'a, R>) -> SlowPath<'s, 'a, R> {
        match self.resource.engine.flights.enter(&self.resource.key, Scope::Fleet, seen.clone(), self.join_criteria()) {
            Entered::Wait(waiter) => self.wait_for_leader(waiter, fetch),
            Entered::Lead(flight) => {
                Box::pin(self.lead(flight, LeadMode::Coordinated { background: false }, seen, fetch))
            }
        }
    }

    /// Opens the flight of this process, or joins it.
    fn lead_or_join_locally<'s>(
        &'s self,
        mode: LeadMode,
        criteria: JoinCriteria,
        fetch: BoxFetch<'a, R>,
    ) -> SlowPath<'s, 'a, R> {
        match self.resource.engine.flights.enter(&self.resource.key, Scope::Local, None, criteria) {
            Entered::Wait(waiter) => self.wait_for_leader(waiter, fetch),
            Entered::Lead(flight) => Box::pin(self.lead(flight, mode, None, fetch)),
        }
    }

    fn on_store_unavailable<'s>(&'s self, error: StoreError, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match self.resource.config.on_store_failure {
            StoreFailure::FailOpen => {
                Either::Right(self.lead_or_join_locally(LeadMode::StoreDown, self.join_criteria(), fetch))
            }
            StoreFailure::FailClosed => ready(self.reject(Error::store_down(error.into()))),
        }
    }

    /// Answers with the stale entry. If no refresh of it is in flight, this caller's fetch refreshes it in the
    /// background.
    async fn refresh(&self, entry: Entry, answer: R, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        if let Entered::Lead(flight) = self.resource.engine.flights.enter(
            &self.resource.key,
            Scope::Fleet,
            Some(entry.clone()),
            self.join_criteria(),
        ) {
            let (mut result, inline) =
                self.spawn_leader(flight, LeadMode::Coordinated { background: true }, Some(entry.clone()), fetch);
            inline.await;
            // A scoped refresh has run to its end here. If it succeeded, its result is better than the stale entry.
            if let Ok(LeaderResult::Response(answer, status)) = result.try_recv() {
                return RequestAttempt::Done(answer, status);
            }
        }
        RequestAttempt::Done(answer, of_stored(&entry, Timestamp::now()))
    }

    /// Reports whether the key is being fetched by this caller's own task.
    fn is_in_own_fetch(&self) -> bool {
        let Resource { engine, key, .. } = &self.resource;
        self.active_fetches.iter().any(|active| active.would_wait_on_itself(&engine.store, key))
    }

    fn join_criteria(&self) -> JoinCriteria {
        JoinCriteria { nested: !self.active_fetches.is_empty(), incomplete_only: self.incomplete_only }
    }

    fn is_servable(&self, entry: &Entry) -> bool {
        matches!(self.policy.evaluate(entry, Timestamp::now()), Reuse::Serve | Reuse::ServeAndRevalidate)
    }

    /// Reports whether the shared response head redirects this caller.
    fn redirects_elsewhere(&self, value: &SharedValue) -> bool {
        matches!(self.policy.accept_shared(value), SharedReuse::Redirect(_))
    }

    /// Reports whether the entry is for other callers.
    fn is_for_others(&self, entry: &Entry) -> bool {
        self.policy.evaluate(entry, Timestamp::now()) == Reuse::Bypass
    }

    /// Reports whether the entry is a hit-for-pass marker for this caller.
    fn must_pass(&self, entry: &Entry) -> bool {
        let meta = entry.meta();
        meta.kind == Kind::HitForPass
            && is_uncacheable_marker(entry, Timestamp::now())
            && self.policy.is_covered_by(meta.audience)
    }

    /// Decodes the entry, if it may replace a failed fetch (stale-if-error).
    fn stale_if_error_answer(&self, entry: &Entry) -> Option<R> {
        let now = Timestamp::now();
        self.policy.allows_stale_on_error(entry, now).then(|| self.policy.decode(entry, now))?
    }

    /// Answers with the confirmed stale entry if it may replace a failed fetch. Otherwise rejects the request.
    fn stale_or_rejected(&self, stale: Option<Entry>, error: Error) -> RequestAttempt<'a, R> {
        match stale.and_then(|entry| self.stale_if_error_answer(&entry)) {
            Some(answer) => RequestAttempt::Done(answer, CacheStatus::Stale),
            None => self.reject(error),
        }
    }

    fn reject(&self, error: Error) -> RequestAttempt<'a, R> {
        if error.kind() == ErrorKind::Overloaded {
            telemetry::overloaded(&self.resource.engine.stats, &self.resource.key, &error);
        }
        RequestAttempt::Done(self.policy.reject(error), CacheStatus::Rejected)
    }

    /// Fetches under a hit-for-pass marker: for this caller only, unless the response turns out to be shareable after
    /// all.
    async fn hit_for_pass(&self, marker: Token, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        let (began, deadline) = (Timestamp::now(), clock::deadline_after(self.resource.config.fetch_timeout));
        let id = Token::unique(Inbox::unique());
        let FetchHead { response, sharing, completion } =
            fetch(FetchMode::HitForPass { id, redirects: self.redirects.clone() }).await;
        let response_time = Timestamp::now();
        if !matches!(completion, Completion::None) {
            let resource = self.resource.clone();
            self.resource.engine.tasks.spawn(async move {
                let completed = timeout_at(deadline, completion.completed()).await;
                if let (
                    Ok(Completed::Payload(payload)),
                    Shareability::Cacheable(_, store_as) | Shareability::CacheableAtEnd(_, store_as),
                ) = (completed, sharing)
                {
                    let fill_set = FillSet::new(id, (began, response_time), store_as, payload);
                    if resource.can_keep(&fill_set) {
                        let _ = resource.fill(FillCondition::ReplaceMarker(marker), &fill_set).await;
                    }
                }
            });
        }
        RequestAttempt::Done(response, CacheStatus::Bypass)
    }

    async fn answer_by_bypass(&self, fetch: BoxFetch<'a, R>) -> RequestAttempt<'a, R> {
        let (answer, status) = self.bypass(fetch).await;
        RequestAttempt::Done(answer, status)
    }

    async fn bypass(&self, fetch: BoxFetch<'a, R>) -> (R, CacheStatus) {
        (fetch(FetchMode::Bypass).await.response, CacheStatus::Bypass)
    }
}

/// Returns when half of the time from `now` to the end of these fetches is over. `None` for a caller that is part of no
/// fetch.
fn nested_limit(active_fetches: &[ActiveFetch], now: Instant) -> Option<Instant> {
    let end = active_fetches.iter().map(|active| active.ends_at).min()?;
    Some(clock::after(now, end.saturating_duration_since(now) / 2))
}

/// Returns the status of an answer from this entry.
fn of_stored(entry: &Entry, now: Timestamp) -> CacheStatus {
    if freshness(entry, now) == Freshness::Fresh { CacheStatus::Hit } else { CacheStatus::Stale }
}

/// Maximum number of attempts (for example because each leader was cancelled) before the caller bypasses the cache.
const MAX_ATTEMPTS: usize = 64;
