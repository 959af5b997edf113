//! The leader drives one flight: it acquires the right to fetch or another result, fetches, publishes the result, and
//! stores it.

mod acquire;

use super::{
    containment::{Aborted, contained},
    erased::{AnyAnswer, FetchSlot, Policy},
    failure::{Effect, FailureCause, effect},
    fill_set::FillSet,
    flight::{Flight, Progress},
    frontend::{
        Completed, Completion, FetchHead, FetchMode, FollowedRedirect, MAX_BODY_TIME, Shareability, StoreAs, Unshared,
    },
    lookup::Lookup,
    nesting::{ACTIVE_FETCHES, ActiveFetch},
    permit::FillPermit,
    recent_failures::report_of,
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    config::Config,
    outage_cache::NotStored,
    policy::{Freshness, freshness},
    store::{
        entry::{Audience, Entry, Kind},
        lease::{FailureMarker, LeaseStatus},
        token::Token,
    },
    sync::alongside::Alongside,
    telemetry,
};
use bytes::Bytes;
use futures_util::future::join;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// The leader of a flight. Cancel safe: when it is dropped at any await, [`Flight`] lets the next caller lead and
/// [`LeaseGuard`](super::permit::LeaseGuard) releases the lease.
pub(super) struct Leader {
    pub(super) policy: Policy,
    /// To the caller that opened the flight. Sent before a state is published, which is for the other callers.
    pub(super) reply: Option<oneshot::Sender<LeaderAnswer>>,
    pub(super) resource: Resource,
    /// When the request of the caller that opened the flight began.
    pub(super) requested_at: Timestamp,
    /// When the flight was opened.
    pub(super) began: Timestamp,
    pub(super) flight: Flight,
    /// The stored entry that the caller could not use: the stale candidate if the fetch fails.
    pub(super) seen: Option<Entry>,
    /// The redirects that were followed to the cache key.
    pub(super) redirects: Vec<FollowedRedirect>,
    /// The fetches that this one is part of.
    pub(super) outer_fetches: Vec<ActiveFetch>,
    /// The leaders of other processes that this one has waited for, by the tokens of their leases.
    pub(super) awaited: Vec<Token>,
    /// Number of fetches in a row that failed before this one, as far as the store or the caller knows.
    pub(super) earlier_failures: u32,
    /// Whether the fetch runs within its caller. All work that is not handed to a task then delays the caller.
    pub(super) scoped: bool,
}

/// The way a leader begins.
#[derive(Clone, Copy)]
pub(super) enum LeadMode {
    /// Asks the store for the lease.
    Coordinated,
    /// Asks the store for the lease in the background. The caller has its answer already, the stale entry, so the
    /// refresh ends if another process leads.
    Refresh,
    /// Fetches at once, because the store is unavailable, or refuses to grant the lease.
    StoreDown(NotStored),
    /// Fetches at once, because the flight of the fleet is of no use to the caller: its response is too old for the
    /// request, and still arriving.
    Local,
    /// Fetches at once, because a marker says that the response must not be stored.
    DoNotStore(Token),
}

/// The answer of the fetch to the caller that opened the flight.
pub(super) struct LeaderAnswer {
    pub(super) response: AnyAnswer,
    pub(super) status: CacheStatus,
    /// Whether the fetch failed. The response is then the failure, or the stale entry.
    pub(super) is_failure: bool,
}

/// The work that is left once each caller that can be answered at the head has its answer.
pub(super) enum AfterHead {
    /// Await the payload and store it.
    Store(Token, (Timestamp, Timestamp), StoreAs, Completion),
    /// Store a marker that applies to this audience for this time.
    Mark(Kind, Audience, Duration, Completion),
    /// Release the lease, and leave the failure marker, if there is one. Then, if there is a result, one waiter leads
    /// again; a waiter on its second attempt gets the result.
    Release(Option<FailureMarker>, Option<Unshared>, Completion),
}

impl Leader {
    /// Drives the flight to its end.
    pub(super) async fn run(mut self: Box<Self>, mode: LeadMode, fetch: FetchSlot<'_>) {
        let began = self.began;
        let listener = self.resource.listen(); // before `get_or_lease`, so that no wake-up falls in between
        // The caller of a refresh has its answer and did not leave: it counts for as long as the refresh runs.
        let is_refresh = matches!(mode, LeadMode::Refresh);
        let permit = match mode {
            LeadMode::Coordinated => self.acquire_lease(listener).await,
            LeadMode::Refresh => Box::pin(self.acquire_refresh(listener)).await,
            LeadMode::StoreDown(reason) => Box::pin(self.acquire_fallback(listener, reason)).await,
            LeadMode::Local => Ok(FillPermit::local(listener)),
            LeadMode::DoNotStore(marker) => Ok(FillPermit::Marker(marker)),
        };
        telemetry::record_lease_wait(Timestamp::now().since(began));
        match permit {
            Ok(permit) => {
                let _caller = is_refresh.then(|| self.flight.waiter());
                if let Some((permit, deadline, rest)) = self.fetch(permit, &fetch).await {
                    drop(fetch);
                    Box::pin(self.finish(permit, deadline, rest)).await; // a fetch holds no room for what follows it
                }
            }
            Err(state) => self.flight.complete(state),
        }
    }

    /// Fetches, and answers all callers that can be answered at the response head.
    async fn fetch(
        &mut self,
        mut permit: FillPermit,
        fetch: &FetchSlot<'_>,
    ) -> Option<(FillPermit, Instant, AfterHead)> {
        let now = clock::now();
        let (began, deadline) = (Timestamp::of(now), clock::after(now, self.resource.config.fetch_timeout));
        self.flight.begin_fetch();
        let fencing_token = permit.lease().map(|lease| lease.stamp);
        let (id, seen, redirects) = (permit.id(), self.seen.clone(), self.redirects.clone());
        let status = permit.status();
        let mode = FetchMode::Lead { id, redirects, seen, deadline: deadline.into_std(), fencing_token, status };
        let head = {
            let Resource { config, key, .. } = &self.resource;
            let _timed = telemetry::fetching(&config.meter, key);
            self.run_to_head(&mut permit, deadline, fetch.run(mode, &self.resource)).await.transpose()?
        };
        let times = (began, Timestamp::now());
        let (permit, rest) = match head {
            Ok(head) => self.on_head(permit, head, id, times).await,
            Err(aborted) => Box::pin(self.on_aborted(permit, &aborted)).await,
        };
        Some((permit, deadline, rest))
    }

    /// Answers the callers that can be answered at the head of the response. Returns the work that is left.
    async fn on_head(
        &mut self,
        permit: FillPermit,
        FetchHead { response, sharing, completion }: FetchHead<AnyAnswer>,
        id: Token,
        times: (Timestamp, Timestamp),
    ) -> (FillPermit, AfterHead) {
        let status = permit.status();
        if let Some(failure) = sharing.failure() {
            telemetry::fetch_failed(&self.resource.config.meter, &self.resource.key, failure);
        }
        let rest = match sharing {
            Shareability::Unshared(result, cause, code) => {
                let unshared = self.on_unshared(permit, (response, status), (result, cause, code), completion);
                return Box::pin(unshared).await; // few results are unshared, and every flight would reserve room for it
            }
            Shareability::WaitersOnly(value) => {
                self.answer(response, status, false);
                self.flight.complete(Progress::Shared(value));
                let ttl = self.resource.config.uncacheable_ttl;
                AfterHead::Mark(Kind::DoNotStore, Audience::Everyone, ttl, completion)
            }
            Shareability::Cacheable(value, store_as) => {
                self.answer(response, status, false);
                self.flight.publish(Progress::Shared(value));
                AfterHead::Store(id, times, store_as, completion)
            }
            Shareability::CacheableAtEnd(head, store_as) => {
                self.answer(response, status, false);
                self.flight.publish_head(head);
                AfterHead::Store(id, times, store_as, completion)
            }
        };
        (permit, rest)
    }

    /// Handles a fetch that was aborted before its response head.
    async fn on_aborted(&mut self, permit: FillPermit, aborted: &Aborted) -> (FillPermit, AfterHead) {
        let Resource { key, config, .. } = &self.resource;
        let Some((kind, error)) = aborted.failure(config) else {
            telemetry::fetch_dropped(&config.meter, key);
            self.flight.complete(Progress::Abandoned);
            return (permit, AfterHead::Release(None, None, Completion::None));
        };
        telemetry::fetch_failed(&config.meter, key, kind);
        let response = (self.policy.reject(error.clone()), CacheStatus::Rejected);
        let result = (Unshared::Error(error), FailureCause::Origin, 0);
        self.on_unshared(permit, response, result, Completion::None).await
    }

    /// Handles a result without an entry: answers with it, or with the stale entry in place of a failure, or lets a
    /// waiter lead again.
    async fn on_unshared(
        &mut self,
        permit: FillPermit,
        (response, status): (AnyAnswer, CacheStatus),
        (result, cause, code): (Unshared, FailureCause, u16),
        completion: Completion,
    ) -> (FillPermit, AfterHead) {
        let now = Timestamp::now();
        let Effect { repeat, block } =
            effect(cause, self.policy.circumstances(self.seen.as_ref(), now), self.earlier_failures);
        let failure_marker = self.failure_marker(&permit, block, &result, code);
        let is_failure = matches!(result, Unshared::Error(_) | Unshared::Response(_));
        let asked = self.resource.engine.versions.now();
        let usable = |entry: &mut Entry| is_failure && self.policy.stale_answer(entry, now).is_some();
        let (permit, stale) = match self.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                let is_held = permit.release(failure_marker.clone()).await == LeaseStatus::Held;
                let is_valid = is_held && Box::pin(self.is_still_reachable()).await;
                (FillPermit::None, is_valid.then_some(stale))
            }
            _ => (permit, None),
        };
        self.flight.set_stale_candidate(stale.clone(), asked);
        let completion = match stale.and_then(|stale| self.policy.stale_answer(&stale, now)) {
            Some(answer) => {
                self.answer(answer, CacheStatus::Stale, true);
                Completion::None
            }
            None => {
                self.answer(response, status, is_failure);
                completion
            }
        };
        if repeat {
            return (permit, AfterHead::Release(failure_marker, Some(result), completion));
        }
        let Config { uncacheable_ttl, failure_ttl, .. } = *self.resource.config;
        let rest = match result {
            Unshared::Private(audience) => {
                let is_certain = cause == FailureCause::Answer;
                let ttl = if is_certain { uncacheable_ttl } else { failure_ttl.min(uncacheable_ttl) };
                AfterHead::Mark(Kind::HitForPass, audience, ttl, completion)
            }
            _ => AfterHead::Release(failure_marker, None, completion),
        };
        self.flight.complete(Progress::Unshared(result, false));
        (permit, rest)
    }

    /// Returns the failure marker that this leader leaves in place of its lease. It blocks callers for at most `limit`,
    /// and for that time this process keeps the error itself.
    fn failure_marker(
        &self,
        permit: &FillPermit,
        limit: Option<Duration>,
        result: &Unshared,
        code: u16,
    ) -> Option<FailureMarker> {
        let Self { resource: Resource { engine, config, .. }, earlier_failures, .. } = self;
        let (id, limit) = (permit.lease()?.token, limit?);
        let mut marker = config.failure_marker(Bytes::new(), *earlier_failures, limit)?;
        if !marker.blocks_for.is_zero() {
            // The block begins when the marker arrives, which takes up to two attempts.
            let span = marker.blocks_for.saturating_add(config.store_timeout.saturating_mul(2));
            if let Unshared::Error(error) = result {
                engine.recent_failures.keep(id, error, span);
            }
            marker.report = report_of(id, result, code);
        }
        Some(marker)
    }

    /// Reports whether the redirects still lead to this cache key. The invalidation of a resource with variants drops
    /// only its first redirect, and leaves entries and leases of the variants.
    async fn is_still_reachable(&self) -> bool {
        let resource = &self.resource;
        if self.redirects.is_empty() {
            return true;
        }
        let mut lookup = Lookup::new(resource.to_primary());
        matches!(lookup.find(&*self.policy).await, Ok(Some(_))) && lookup.resource.key == resource.key
    }

    /// Does the work after the head. The fetch has time for it until `deadline`. The flight may be joined until an
    /// entry is stored, so that this process does not fetch again what is about to be stored.
    async fn finish(self: Box<Self>, permit: FillPermit, deadline: Instant, rest: AfterHead) {
        if self.scoped {
            let (tasks, state) = (self.resource.engine.tasks.clone(), self.flight.state().clone());
            tasks.spawn(state.with_pulse(async move { self.finish_now(permit, deadline, rest).await }));
        } else {
            self.finish_now(permit, deadline, rest).await;
        }
    }

    async fn finish_now(&self, mut permit: FillPermit, deadline: Instant, rest: AfterHead) {
        // Rare work is boxed, here and below, because every flight would reserve room for it.
        match rest {
            AfterHead::Store(id, times, store_as, mut completion) => {
                let completed = match &completion {
                    Completion::Ready(payload) => Ok(Completed::Payload(payload.clone())),
                    _ => self.run_bounded(&mut permit, deadline, completion.completed()).await,
                };
                match completed {
                    Ok(Completed::Payload(payload)) => {
                        let fill_set = FillSet::new(id, times, store_as, payload, &self.redirects);
                        self.store(permit, Arc::new(fill_set)).await;
                    }
                    Ok(Completed::TooLarge) => {
                        self.flight.complete(Progress::Unshared(Unshared::Private(Audience::Everyone), false));
                        let ttl = self.resource.config.uncacheable_ttl;
                        Box::pin(self.mark(permit, Kind::HitForPass, Audience::Everyone, ttl)).await;
                    }
                    // The waiters try again with one leader, because a call of each waiter would be the stampede.
                    Ok(Completed::Truncated) | Err(Aborted::Panicked | Aborted::Detached) => {
                        Box::pin(self.release(permit, None, Some(Progress::Abandoned))).await;
                    }
                    Err(Aborted::TimedOut) => {
                        let abandoned = Some(Progress::Abandoned);
                        let drained = self.drain(deadline, completion);
                        Box::pin(join(self.release(permit, None, abandoned), drained)).await;
                    }
                }
            }
            AfterHead::Mark(kind, audience, ttl, completion) => {
                Box::pin(join(self.mark(permit, kind, audience, ttl), self.drain(deadline, completion))).await;
            }
            AfterHead::Release(failure_marker, repeated, completion) => {
                let state = repeated.map(|result| Progress::Unshared(result, true));
                let drained = self.drain(deadline, completion);
                Box::pin(join(self.release(permit, failure_marker, state), drained)).await;
            }
        }
    }

    /// Releases the lease, and then ends the flight with this state, so that the store tells the next leader of the
    /// failure.
    async fn release(&self, permit: FillPermit, failure_marker: Option<FailureMarker>, state: Option<Progress>) {
        permit.release(failure_marker).await;
        if let Some(state) = state {
            self.flight.complete(state);
        }
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
            self.resource.engine.redirect_cache.remember(&self.resource.key, index, self.flight.begun());
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

    /// Runs the fetch to its response head, within its bounds. A fetch that no caller waits for needs a `max_detached`
    /// permit until a caller joins it. Without a permit it is aborted.
    async fn run_to_head<T>(
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
    fn run_bounded<T>(
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

    /// Returns the result of an earlier flight that was kept after the caller had asked the outage cache.
    fn kept_result(&self, reason: NotStored) -> Option<Entry> {
        self.resource.kept_result(&self.policy, reason, self.seen.as_ref())
    }

    /// Answers the caller that opened the flight with the response of its fetch, if the caller is still there.
    fn answer(&mut self, response: AnyAnswer, status: CacheStatus, is_failure: bool) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(LeaderAnswer { response, status, is_failure });
        }
    }

    /// Handles an invalidation while the flight holds no lease: no caller joins the flight any more, and its stale
    /// candidate is dropped.
    fn on_invalidation(&mut self) {
        self.flight.invalidated();
        self.seen = None;
    }
}
