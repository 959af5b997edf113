//! One call: looks up the entry, then serves it, waits for a flight, or leads one.

mod waiting;

use super::{
    containment::fetching_alone,
    core::Engine,
    erased::{AnyAnswer, FetchSlot, Policy},
    fill_set::FillSet,
    flight::{Flight, FlightState, Found, JoinCriteria, Scope, Waiter},
    frontend::{Completed, Completion, FetchHead, FetchMode, Redirect, Reuse, Shareability, Unshared},
    leader::{LeadMode, Leader, LeaderAnswer},
    lookup::{KeptResult, Lookup},
    nesting::{ACTIVE_FETCHES, ActiveFetch, WaitEdge},
    resource::Resource,
};
use crate::{
    cache_status::{BypassReason, CacheStatus},
    clock::{self, Timestamp},
    config::StoreFailure,
    error::{Error, ErrorKind},
    outage_cache::NotStored,
    policy::status_of,
    store::{
        entry::{Entry, Kind, Meta},
        error::{BoxFuture, StoreError},
        port::FillCondition,
        token::{Inbox, Token},
    },
    sync::alongside::Alongside,
    telemetry::{self, FetchFailure, RequestSpan},
};
use std::{
    future::{Future, pending, ready},
    mem,
    sync::Arc,
};
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

/// A function that spawns a leader, so that it outlives its caller.
pub(crate) type Spawn<'a> = fn(&Engine, BoxFuture<'a, ()>);

/// One request for one key, over all its attempts.
pub(super) struct Call<'a> {
    lookup: Lookup,
    policy: Policy,
    fetch: FetchSlot<'a>,
    /// `None`: a fetch runs within its caller.
    spawn: Option<Spawn<'a>>,
    requested_at: Timestamp,
    /// When this call began, or last tried again after a flight without a result.
    asked: Timestamp,
    /// End of the wait timeout, over all attempts.
    wait_until: Instant,
    /// The fetches that the caller's task is already part of.
    active_fetches: Vec<ActiveFetch>,
    /// The edge of the wait-for graph, if this request is made within another fetch.
    wait_edge: Option<Box<WaitEdge>>,
    /// Whether this call has waited for a flight. A result that is newer than the request is then accepted.
    has_waited: bool,
    /// Set after a result that this call could not use. From then on it joins only flights that have no result yet.
    incomplete_only: bool,
    /// Set when the flight of the fleet is of no use to this call. From then on it joins only local flights, or leads
    /// one in this mode.
    local: Option<LeadMode>,
    /// The flight whose leader the store has not answered, until this call has entered the next one.
    unanswered: Option<Arc<FlightState>>,
}

/// The outcome of one attempt.
enum Attempt {
    /// The answer, its status, and whether the fetch of this call was or is made.
    Done(AnyAnswer, CacheStatus, bool),
    /// Not resolved: try again.
    Again,
    /// Not resolved: make a call for this caller only.
    Alone(BypassReason),
}

/// Returns the rest of an attempt that has ended already. Every rest is boxed, because otherwise the future of every
/// call would reserve room for it, and a waiter also for what follows the wait.
fn done<'s>(attempt: Attempt) -> BoxFuture<'s, Attempt> {
    Box::pin(ready(attempt))
}

impl<'a> Call<'a> {
    pub(super) fn new(lookup: Lookup, policy: Policy, spawn: Option<Spawn<'a>>, fetch: FetchSlot<'a>) -> Self {
        let requested_at = Timestamp::of(lookup.requested_at);
        Self {
            wait_until: clock::after(lookup.requested_at, lookup.resource.config.wait_timeout()),
            active_fetches: ACTIVE_FETCHES.try_with(Clone::clone).unwrap_or_default(),
            lookup,
            policy,
            fetch,
            spawn,
            requested_at,
            asked: requested_at,
            wait_edge: None,
            has_waited: false,
            incomplete_only: false,
            local: None,
            unanswered: None,
        }
    }

    /// Resolves the key.
    pub(super) fn run(mut self) -> impl Future<Output = (AnyAnswer, CacheStatus)> + Send {
        let Resource { config, key, front_end, .. } = &self.lookup.resource;
        let span = RequestSpan::new(&config.meter, key, *front_end);
        span.instrument(async move {
            let (answer, status, fetched) = match self.half_way() {
                None => self.answer().await,
                Some(report) => Box::pin(Alongside::new(self.answer(), report)).await,
            };
            let took = || Timestamp::now().since(self.requested_at);
            let Resource { config, key, front_end, .. } = &self.lookup.resource;
            telemetry::record_status(status);
            telemetry::answered(&config.meter, key.into(), *front_end, status, fetched, &took);
            (answer, status)
        })
    }

    /// Returns a future that logs this call if it takes half of the time that is left to the fetch around it. `None` if
    /// there is no fetch around it.
    fn half_way<T>(&self) -> Option<impl Future<Output = T> + use<T>> {
        let fetch = self.active_fetches.last()?.flight.clone();
        let (config, key) = (self.resource().config.clone(), self.resource().key.clone());
        let (now, end) = (clock::now(), self.active_fetches.iter().map(|active| active.ends_at).min()?);
        let half_way = clock::after(now, end.saturating_duration_since(now) / 2);
        Some(async move {
            sleep_until(half_way).await;
            telemetry::nested_wait(&config.meter, &key, fetch.key());
            pending().await
        })
    }

    /// Returns the answer, its status, and whether the fetch of this caller was or is made.
    async fn answer(&mut self) -> (AnyAnswer, CacheStatus, bool) {
        let mut attempts = 0..MAX_ATTEMPTS;
        loop {
            let attempt = match attempts.next() {
                Some(_) => self.attempt().await,
                None => self.reject(Error::overloaded("the leaders that the request waited for gave no usable result")),
            };
            match attempt {
                Attempt::Done(answer, status, fetched) => return (answer, status, fetched),
                Attempt::Again => {}
                Attempt::Alone(reason) => {
                    let resource = Arc::new(self.resource().clone());
                    let ends_at = clock::deadline_after(resource.config.fetch_timeout);
                    let mode = FetchMode::Bypass { reason, deadline: ends_at.into_std() };
                    return match Box::pin(self.fetch_alone(mode, ends_at, &resource)).await {
                        Ok(head) => (head.response, CacheStatus::Bypass, true),
                        Err(rejection) => (rejection, CacheStatus::Rejected, true),
                    };
                }
            }
        }
    }

    async fn attempt(&mut self) -> Attempt {
        if self.resource().config.bypass {
            return Attempt::Alone(BypassReason::Disabled);
        }
        if self.local.is_none() && self.lookup.found.is_none() {
            self.lookup.predict(&*self.policy);
        }
        if self.is_in_own_fetch() {
            return Attempt::Alone(BypassReason::Nested);
        }
        if let Some(mode) = self.local {
            return match self.unanswered.take() {
                Some(unanswered) => self.enter_next(&unanswered, mode).await,
                None => self.enter(Scope::Local, mode, None).await,
            };
        }
        let found = match self.lookup.found.take() {
            Some(found) => found,
            None => {
                if let Some(waiter) = self.lookup.join_flight(&*self.policy, self.criteria()) {
                    return self.wait(waiter, LeadMode::Coordinated).await;
                }
                // Boxed, because few calls need a second lookup.
                Box::pin(self.lookup.read(&*self.policy)).await
            }
        };
        self.after_lookup(found).await
    }

    /// Decides what to do with the result of a lookup. If the store has no usable entry, the outage cache is asked.
    fn after_lookup(&mut self, found: Found) -> BoxFuture<'_, Attempt> {
        let kept = self.lookup.consult_outage_cache(&self.policy, &found);
        if self.is_in_own_fetch() {
            return done(Attempt::Alone(BypassReason::Nested));
        }
        match (kept, found) {
            (Some(KeptResult::Answer(answer, status)), _) => done(Attempt::Done(answer, status, false)),
            (Some(KeptResult::Bypass), _) => done(Attempt::Alone(BypassReason::Private)),
            (_, Err(error)) => self.on_store_unavailable(error),
            (None, Ok(Some(entry))) => self.on_entry(entry),
            (_, Ok(_)) => self.enter(self.criteria().fleet(), LeadMode::Coordinated, None),
        }
    }

    fn on_entry(&mut self, entry: Entry) -> BoxFuture<'_, Attempt> {
        let now = Timestamp::now();
        if self.has_waited
            && entry.meta().response_time >= self.requested_at
            && let Some(answer) = self.policy.decode(&entry, now)
        {
            return done(Attempt::Done(answer, CacheStatus::Coalesced, false));
        }
        match self.policy.evaluate(&entry, now) {
            Reuse::Serve(answer) => done(Attempt::Done(answer, status_of(&entry, now), false)),
            Reuse::ServeAndRevalidate(answer) => Box::pin(self.refresh(entry, answer)),
            Reuse::Redirect(redirect) if self.lookup.follow(&entry, &redirect) => done(Attempt::Again),
            Reuse::Revalidate | Reuse::Miss | Reuse::HitForPassOfOthers | Reuse::Redirect(_) => {
                self.enter(self.criteria().fleet(), LeadMode::Coordinated, Some(entry))
            }
            Reuse::Bypass => done(Attempt::Alone(BypassReason::ForOthers)),
            Reuse::HitForPass => Box::pin(self.hit_for_pass(entry)),
            Reuse::DoNotStore => self.enter(Scope::Local, LeadMode::DoNotStore(entry.meta().id), None),
        }
    }

    /// Waits for the flight of the fleet if its fetch has begun since this caller has looked. Otherwise continues in the
    /// local flight, or rejects the request if the guard is set to fail closed.
    fn on_store_unavailable(&mut self, error: StoreError) -> BoxFuture<'_, Attempt> {
        if let Some(waiter) = self.lookup.join_flight(&*self.policy, self.criteria()) {
            return self.wait(waiter, LeadMode::Coordinated);
        }
        match self.resource().config.on_store_failure {
            StoreFailure::FailOpen => self.enter(Scope::Local, LeadMode::Local(Some(NotStored::Unavailable)), None),
            StoreFailure::FailClosed => done(self.reject(Error::store_down(error.into()))),
        }
    }

    /// Decides how a caller goes on whose leader the store has not answered, or has refused. The outage cache is that of
    /// the caller, because the clone of the leader may have other settings.
    fn on_silence(&mut self, error: StoreError, waiter: &Waiter) -> Attempt {
        let (reason, now) = (NotStored::because_of(&error), Timestamp::now());
        let Resource { config, .. } = self.resource();
        if let Some(kept) = self.resource().kept_result(&self.policy, reason, waiter.seen())
            && let Some(answer) = self.policy.servable(&kept, now)
        {
            telemetry::outage_cache_hit(&config.meter);
            return Attempt::Done(answer, status_of(&kept, now), false);
        }
        if config.on_store_failure == StoreFailure::FailClosed {
            return self.stale_or_rejected(waiter.stale_candidate(), Error::store_down(error.into()));
        }
        self.local = Some(LeadMode::Local(Some(reason)));
        self.unanswered = Some(waiter.state().clone());
        Attempt::Again
    }

    /// Joins the flight of the cache key, or opens it and leads it. Then waits for its outcome.
    fn enter(&mut self, scope: Scope, mode: LeadMode, seen: Option<Entry>) -> BoxFuture<'_, Attempt> {
        let Resource { engine, key, .. } = self.resource();
        let entered = engine.flights.enter(key, scope, self.criteria(), seen.as_ref());
        self.wait_or_lead(entered, mode, seen)
    }

    /// Enters the local flight that follows one whose leader the store has not answered.
    fn enter_next(&mut self, unanswered: &FlightState, mode: LeadMode) -> BoxFuture<'_, Attempt> {
        let entered = self.resource().engine.flights.enter_next(unanswered, self.criteria());
        self.wait_or_lead(entered, mode, unanswered.seen().cloned())
    }

    fn wait_or_lead(
        &mut self,
        entered: Result<Flight, Waiter>,
        mode: LeadMode,
        seen: Option<Entry>,
    ) -> BoxFuture<'_, Attempt> {
        match entered {
            Err(waiter) => self.wait(waiter, mode),
            Ok(flight) => {
                let waiter = flight.waiter();
                let answered = self.lead(flight, mode, seen);
                let stale = self.stale_in_time(waiter.state());
                Self::first_of(Box::pin(self.wait_for_own(waiter, answered)), stale)
            }
        }
    }

    fn criteria(&self) -> JoinCriteria {
        let (nested, deadline) = (!self.active_fetches.is_empty(), self.resource().deadline);
        JoinCriteria { nested, incomplete_only: self.incomplete_only, deadline, since: self.policy.since() }
    }

    /// Spawns the leader of the flight. Returns the answer for this caller, if there will be one. If the fetch borrows
    /// from the caller, the leader is not spawned and runs as a part of that future.
    fn lead(
        &self,
        flight: Flight,
        mode: LeadMode,
        seen: Option<Entry>,
    ) -> impl Future<Output = Option<LeaderAnswer>> + use<'a> {
        let (reply, answer) = oneshot::channel();
        let Resource { engine, config, key, front_end, .. } = self.resource();
        let in_background = matches!(mode, LeadMode::Refresh) && self.spawn.is_some();
        let span = RequestSpan::of_leader(in_background, &config.meter, key, *front_end);
        let leader = Leader {
            policy: self.policy.clone(),
            reply: Some(reply),
            resource: Arc::new(self.resource().clone()),
            requested_at: self.requested_at,
            asked: self.asked,
            seen,
            redirects: self.lookup.redirects.clone(),
            outer_fetches: self.active_fetches.clone(),
            earlier_failures: 0,
            has_waited: matches!(mode, LeadMode::Refresh),
            scoped: self.spawn.is_none(),
            flight,
        };
        let state = leader.flight.state().clone();
        let leading = span.instrument(leader.run(mode, self.fetch.clone()));
        let leading: BoxFuture<'a, ()> = Box::pin(state.with_pulse(leading));
        let within = match self.spawn {
            Some(spawn) => {
                spawn(engine, leading);
                None
            }
            None => Some(leading),
        };
        async move {
            if let Some(leading) = within {
                leading.await;
            }
            answer.await.ok()
        }
    }

    /// Answers with the stale entry. If no refresh of it is in flight, this caller's fetch refreshes it in the
    /// background. A scoped refresh runs to its end first, and if it succeeds, its result is better than the stale entry.
    async fn refresh(&self, entry: Entry, answer: AnyAnswer) -> Attempt {
        let mut fetched = false;
        let Resource { engine, key, .. } = self.resource();
        if let Some(flight) = engine.flights.open(key, Scope::Fleet, self.criteria(), Some(&entry)) {
            let answered = self.lead(flight, LeadMode::Refresh, Some(entry.clone()));
            fetched = self.spawn.is_some()
                || match answered.await {
                    Some(LeaderAnswer { response, status, is_failure: false }) => {
                        return Attempt::Done(response, status, true);
                    }
                    _ => self.fetch.has_begun(),
                };
        }
        Attempt::Done(answer, status_of(&entry, Timestamp::now()), fetched)
    }

    /// Fetches for this caller only, under a hit-for-pass marker or an entry that each caller validates for itself. If
    /// the response may be stored, it replaces the marker.
    async fn hit_for_pass(&self, marker: Entry) -> Attempt {
        let resource = Arc::new(self.resource().clone());
        let (began, deadline) = (Timestamp::now(), clock::deadline_after(resource.config.fetch_timeout));
        let (id, redirects) = (Token::unique(Inbox::unique()), self.lookup.redirects.clone());
        let (replaced, is_value) = (marker.meta().id, marker.meta().kind == Kind::Value);
        let seen = is_value.then_some(marker);
        let mode = FetchMode::HitForPass { id, redirects: redirects.clone(), seen, deadline: deadline.into_std() };
        let head = match self.fetch_alone(mode, deadline, &resource).await {
            Ok(head) => head,
            Err(rejection) => return Attempt::Done(rejection, CacheStatus::Rejected, true),
        };
        let FetchHead { response, sharing, completion, .. } = *head;
        let meta = Meta::new(Kind::HitForPass, id, Timestamp::now());
        let (store_as, completion) = match sharing {
            Shareability::Complete(payload, store_as) => {
                let completed: Completion = Box::pin(ready(Completed::Payload(payload)));
                (Some(store_as), Some(completed))
            }
            Shareability::Cacheable(_, store_as) | Shareability::CacheableAtEnd(_, store_as) => {
                (Some(store_as), completion)
            }
            Shareability::Unshared(Unshared::Private(audience), ..) if is_value => {
                let marker = FillSet::marker(meta, audience, resource.config.uncacheable_ttl);
                let resource = resource.clone();
                self.resource().engine.tasks.spawn(async move {
                    let _ = resource.fill(FillCondition::ReplaceMarker(replaced), &marker).await;
                });
                (None, None)
            }
            Shareability::WaitersOnly(_) | Shareability::Unshared(..) => (None, completion),
        };
        if let Some(completion) = completion {
            self.resource().engine.tasks.spawn(async move {
                let completed = timeout_at(deadline, completion).await;
                if let (Ok(Completed::Payload(payload)), Some(store_as)) = (completed, store_as) {
                    let meta = Meta { kind: Kind::Value, cost: meta.response_time.since(began), ..meta };
                    let fill_set = FillSet::new(meta, store_as, payload, &redirects);
                    if resource.can_keep(&fill_set) {
                        let _ = resource.fill(FillCondition::ReplaceMarker(replaced), &fill_set).await;
                    }
                }
            });
        }
        Attempt::Done(response, CacheStatus::Bypass, true)
    }

    /// Fetches for this caller only, until `ends_at` or the deadline of this caller. Then drops the fetch, and returns
    /// the rejection. A panic of the fetch is counted and goes on to the caller.
    async fn fetch_alone(
        &self,
        mode: FetchMode,
        ends_at: Instant,
        resource: &Arc<Resource>,
    ) -> Result<Box<FetchHead<AnyAnswer>>, AnyAnswer> {
        let Resource { config, key, deadline, .. } = &**resource;
        let fetch = self.fetch.begin(mode, resource).ok_or_else(|| self.policy.reject(cancelled()))?;
        let until = deadline.map_or(ends_at, |deadline| deadline.min(ends_at));
        let head = fetching_alone(&config.meter, key, until, fetch).await;
        let (failure, result) = match head {
            Some(head) => (head.sharing.failure(), Ok(head)),
            None if until < ends_at => (None, Err(self.rejection(Error::deadline_exceeded()))),
            None => (Some(FetchFailure::TimedOut), Err(self.rejection(Error::fetch_timed_out()))),
        };
        if let Some(failure) = failure {
            telemetry::fetch_failed(&config.meter, key, failure);
        }
        result
    }

    /// Follows a redirect that a leader has confirmed, and tries again there.
    fn follow(&mut self, redirect: &Redirect) -> Attempt {
        if !self.lookup.move_to(redirect) {
            return Attempt::Alone(BypassReason::ForOthers);
        }
        (self.has_waited, self.incomplete_only, self.local) = (true, false, None);
        Attempt::Again
    }

    fn resource(&self) -> &Resource {
        &self.lookup.resource
    }

    /// Records the request for this cache key in the wait-for graph. Reports whether the key is being fetched by this
    /// caller's own task.
    fn is_in_own_fetch(&mut self) -> bool {
        let Resource { engine, key, .. } = &self.lookup.resource;
        drop(mem::replace(&mut self.wait_edge, WaitEdge::enter(&engine.wait_graph, key, &self.active_fetches)));
        self.active_fetches.iter().any(|active| active.would_wait_on_itself(&engine.store, key))
    }

    /// Answers with the confirmed stale entry if it may replace a failed fetch. Otherwise rejects the request.
    fn stale_or_rejected(&self, stale: Option<Entry>, error: Error) -> Attempt {
        match stale.and_then(|entry| self.policy.stale_answer(&entry, Timestamp::now())) {
            Some(answer) => Attempt::Done(answer, CacheStatus::Stale, self.fetch.has_begun()),
            None => self.reject(error),
        }
    }

    fn reject(&self, error: Error) -> Attempt {
        Attempt::Done(self.rejection(error), CacheStatus::Rejected, false)
    }

    fn rejection(&self, error: Error) -> AnyAnswer {
        telemetry::rejected(&self.resource().config.meter, &self.resource().key, &error);
        self.policy.reject(error)
    }

    /// Rejects a caller whose fetch has begun and will not end.
    fn cancelled(&self) -> Attempt {
        Attempt::Done(self.rejection(cancelled()), CacheStatus::Rejected, true)
    }
}

/// The task of a fetch was cancelled, together with its runtime.
fn cancelled() -> Error {
    Error::new(ErrorKind::Panicked, "the task of the fetch was cancelled")
}

/// Maximum number of attempts before a caller is rejected. An attempt is lost if the leader is not polled for half of a
/// lease, if it ends without a result after an invalidation, or if its result is for other callers.
const MAX_ATTEMPTS: usize = 64;
