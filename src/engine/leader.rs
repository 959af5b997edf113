//! The leader drives one flight: it acquires the right to fetch or another result, fetches, publishes the result, and
//! stores it.

mod acquire;

use super::{
    containment::{Aborted, contained, report_slow},
    erased::{AnyAnswer, FetchSlot, Policy},
    fill_set::FillSet,
    flight::{Flight, Progress},
    frontend::{
        Completed, Completion, FetchHead, FetchMode, FollowedRedirect, MAX_BODY_TIME, Shareability, StoreAs, Unshared,
    },
    lookup::Lookup,
    nesting::{ACTIVE_FETCHES, ActiveFetch},
    permit::{FillPermit, FillRight},
    recent_failures::report_of,
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    config::FailureClass,
    error::ErrorKind,
    outage_cache::NotStored,
    policy::{Freshness, freshness, servable_for},
    store::{
        entry::{Audience, Entry, Kind, Meta},
        error::BoxFuture,
        lease::{FailureMarker, LeaseStatus},
        token::Token,
    },
    sync::alongside::Alongside,
    telemetry,
};
use std::{future::Future, sync::Arc, time::Duration};
use tokio::{sync::oneshot, time::Instant};

/// The leader of a flight. Cancel safe: when it is dropped at any await, [`Flight`] lets the next caller lead and
/// [`FillPermit`] releases the lease.
pub(super) struct Leader {
    pub(super) policy: Policy,
    /// To the caller that opened the flight. Sent before a state is published, which is for the other callers.
    pub(super) reply: Option<oneshot::Sender<LeaderAnswer>>,
    pub(super) resource: Arc<Resource>,
    /// When the request of the caller that opened the flight began.
    pub(super) requested_at: Timestamp,
    /// When that call began, or last tried again after a flight without a result.
    pub(super) asked: Timestamp,
    pub(super) flight: Flight,
    /// The stored entry that the caller could not use: the stale candidate if the fetch fails.
    pub(super) seen: Option<Entry>,
    /// The redirects that were followed to the cache key.
    pub(super) redirects: Vec<FollowedRedirect>,
    /// The fetches that this one is part of.
    pub(super) outer_fetches: Vec<ActiveFetch>,
    /// Number of fetches in a row that failed before this one, as far as the store knows.
    pub(super) earlier_failures: u32,
    /// Whether the leader has waited for the leader of another process, whose failure then counts, or refreshes an entry
    /// that its callers have.
    pub(super) has_waited: bool,
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
    /// Fetches at once, because the store is unavailable, or refuses to grant the lease. Without a reason, because the
    /// flight of the fleet is of no use to the caller: its response is too old for the request, and still arriving.
    Local(Option<NotStored>),
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
    /// Store the entry, which is published.
    Fill(Arc<FillSet>),
    /// Await the payload of the entry with this metadata, then publish and store it.
    Await(Meta, StoreAs, Option<Completion>),
    /// Store a marker that applies to this audience for this time.
    Mark(Kind, Audience, Duration, Option<Completion>),
    /// Release the lease, and leave the failure marker, if there is one. A flight without a result is handed over
    /// afterwards, so that the store tells the next leader of the failure.
    Release(Option<FailureMarker>, Option<Completion>),
}

impl Leader {
    /// Drives the flight to its end.
    #[allow(clippy::manual_async_fn, reason = "an `async fn` reserves room for its arguments twice")]
    pub(super) fn run(mut self, mode: LeadMode, fetch: FetchSlot<'_>) -> impl Future<Output = ()> {
        async move {
            let mut permit = FillPermit::new(self.resource.clone()); // before `get_or_lease`, so that no wake-up is missed
            permit.right = {
                let began = Timestamp::now();
                let acquired = match mode {
                    LeadMode::Coordinated => self.acquire_lease(&mut permit).await,
                    LeadMode::Refresh => Box::pin(self.acquire_refresh(&mut permit)).await,
                    LeadMode::Local(Some(reason)) => Box::pin(self.acquire_fallback(reason)).await,
                    LeadMode::Local(None) => Ok(FillRight::Local { not_stored: None, _fallback_permit: None }),
                    LeadMode::DoNotStore(marker) => Ok(FillRight::Marker(marker)),
                };
                telemetry::record_lease_wait(|| Timestamp::now().since(began));
                match acquired {
                    Ok(right) => right,
                    Err(state) => {
                        drop(permit); // before a waiter leads again
                        return self.flight.complete(state);
                    }
                }
            };
            // The caller of a refresh has its answer and did not leave: it counts for as long as the refresh runs.
            let _caller = matches!(mode, LeadMode::Refresh).then(|| self.flight.waiter());
            if !self.scoped && self.resource.engine.store.is_shared() {
                permit.start_heartbeat(&self.flight).await;
            }
            let Some((deadline, rest)) = self.fetch(&mut permit, &fetch).await else { return };
            drop(fetch);
            if self.scoped {
                let (tasks, state) = (self.resource.engine.tasks.clone(), self.flight.state().clone());
                tasks.spawn(state.with_pulse(async move { self.finish(&mut permit, deadline, rest).await }));
            } else {
                self.finish(&mut permit, deadline, rest).await;
            }
        }
    }

    /// Fetches, and answers all callers that can be answered at the response head.
    async fn fetch(&mut self, permit: &mut FillPermit, fetch: &FetchSlot<'_>) -> Option<(Instant, AfterHead)> {
        let now = clock::now();
        let (began, deadline) = (Timestamp::of(now), clock::after(now, self.resource.config.fetch_timeout));
        self.flight.set_begun(self.resource.engine.versions.now());
        let mut meta = permit.meta(Kind::Value);
        let mode = FetchMode::Lead {
            id: meta.id,
            redirects: self.redirects.clone(),
            seen: self.seen.clone(),
            deadline: deadline.into_std(),
            fencing_token: permit.lease().map(|lease| lease.stamp),
            status: permit.status(),
        };
        let fetched = fetch.begin(mode, &self.resource)?;
        let head = {
            let _timed = telemetry::fetching(&self.resource.config.meter, &self.resource.key, began);
            self.run_to_head(permit, deadline, fetched).await
        };
        meta.response_time = Timestamp::now();
        meta.cost = meta.response_time.since(began);
        let rest = match head {
            Ok(head) => self.on_head(permit, head, meta).await,
            Err(aborted) => Box::pin(self.on_aborted(permit, &aborted)).await,
        };
        Some((deadline, rest))
    }

    /// Answers the callers that can be answered at the head of the response. Returns the work that is left.
    async fn on_head(&mut self, permit: &mut FillPermit, head: Box<FetchHead<AnyAnswer>>, meta: Meta) -> AfterHead {
        let FetchHead { response, mut sharing, is_inconclusive, completion } = *head;
        let status = permit.status();
        if let Some(failure) = sharing.failure() {
            telemetry::fetch_failed(&self.resource.config.meter, &self.resource.key, failure);
        }
        if !matches!(sharing, Shareability::Unshared(_)) && is_inconclusive && self.can_be_repeated() {
            sharing = Shareability::private(Audience::Everyone); // what the repeat returns is shared
        }
        match sharing {
            Shareability::Unshared(result) => {
                let unshared = self.on_unshared(permit, (response, status), (result, is_inconclusive), completion);
                Box::pin(unshared).await // few results are unshared, and every flight would reserve room for it
            }
            Shareability::WaitersOnly(value) => {
                self.answer(response, status, false);
                self.flight.complete(Progress::Shared(value));
                let ttl = self.resource.config.uncacheable_ttl;
                AfterHead::Mark(Kind::DoNotStore, Audience::Everyone, ttl, completion)
            }
            Shareability::Complete(payload, store_as) => {
                self.answer(response, status, false);
                self.publish(permit, FillSet::new(meta, store_as, payload, &self.redirects))
            }
            Shareability::Cacheable(value, store_as) => {
                self.answer(response, status, false);
                self.flight.publish(Progress::Shared(value));
                AfterHead::Await(meta, store_as, completion)
            }
            Shareability::CacheableAtEnd(head, store_as) => {
                self.answer(response, status, false);
                self.flight.publish_head(head);
                AfterHead::Await(meta, store_as, completion)
            }
        }
    }

    /// Handles a fetch that was aborted, before its response head or afterwards.
    async fn on_aborted(&mut self, permit: &mut FillPermit, aborted: &Aborted) -> AfterHead {
        let Resource { key, config, .. } = &*self.resource;
        let Some((kind, error)) = aborted.failure() else {
            telemetry::fetch_dropped(&config.meter, key);
            return AfterHead::Release(None, None);
        };
        telemetry::fetch_failed(&config.meter, key, kind);
        let response = (self.policy.reject(error.clone()), CacheStatus::Rejected);
        let result = Unshared::Error(error, FailureClass::OriginDown);
        self.on_unshared(permit, response, (result, true), None).await
    }

    /// Reports whether a waiter can repeat the fetch. The failure of a repeat counts for all of its waiters, because a
    /// failing origin must not get their requests one after the other.
    fn can_be_repeated(&self) -> bool {
        !self.is_repeat() && self.flight.has_waiters() && self.policy.request_hash().is_some()
    }

    /// Reports whether the fetch repeats one that has failed while its callers waited.
    fn is_repeat(&self) -> bool {
        self.flight.has_failed() || self.has_waited && self.earlier_failures > 0
    }

    /// Handles a result without an entry: answers with it, or with the stale entry in place of a failure. A waiter
    /// repeats the fetch if the result may be due to this request alone.
    async fn on_unshared(
        &mut self,
        permit: &mut FillPermit,
        (response, status): (AnyAnswer, CacheStatus),
        (result, is_inconclusive): (Unshared, bool),
        completion: Option<Completion>,
    ) -> AfterHead {
        let (now, is_failure) = (Timestamp::now(), result.is_failure());
        let repeats = is_inconclusive && self.can_be_repeated();
        let limit = if is_failure && !repeats { self.max_block(now) } else { Duration::ZERO };
        let failure_marker =
            if is_failure || is_inconclusive { self.failure_marker(permit, limit, &result) } else { None };
        let asked = self.resource.engine.versions.now();
        let usable = |entry: &mut Entry| is_failure && self.policy.stale_answer(entry, now).is_some();
        let stale = match self.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                let is_held = permit.release(failure_marker.clone()).await == LeaseStatus::Held;
                (is_held && Box::pin(self.is_still_reachable()).await).then_some(stale)
            }
            _ => None,
        };
        self.flight.set_stale_candidate(stale.clone(), asked);
        let completion = match stale.and_then(|stale| self.policy.stale_answer(&stale, now)) {
            Some(answer) => {
                self.answer(answer, CacheStatus::Stale, true);
                None
            }
            None => {
                self.answer(response, status, is_failure);
                completion
            }
        };
        if repeats {
            self.flight.set_failed(self.policy.request_hash().unwrap_or_default());
            return AfterHead::Release(failure_marker, completion);
        }
        let rest = match result {
            Unshared::Private(audience) if !is_inconclusive => {
                AfterHead::Mark(Kind::HitForPass, audience, self.resource.config.uncacheable_ttl, completion)
            }
            _ => AfterHead::Release(failure_marker, completion),
        };
        self.flight.complete(Progress::Unshared(result));
        rest
    }

    /// Returns for how long a failure may block other callers. If their requests are not all alike, it blocks them while
    /// they get the stored entry. Without one, only the failure of two requests blocks others, for [`MAX_BLOCK`].
    fn max_block(&self, now: Timestamp) -> Duration {
        let seen = self.seen.as_ref().filter(|seen| self.policy.allows_stale_on_error(seen, now));
        match seen.map_or(Duration::ZERO, |seen| servable_for(seen, now)) {
            _ if self.policy.request_hash().is_none() => Duration::MAX,
            Duration::ZERO if self.is_repeat() => MAX_BLOCK,
            servable_for => servable_for,
        }
    }

    /// Returns the failure marker that this leader leaves in place of its lease. `None` if markers are off. It blocks
    /// other callers for a time that doubles from failure to failure, but at most for `limit`. For that time this process
    /// keeps the error itself.
    fn failure_marker(&self, permit: &FillPermit, limit: Duration, result: &Unshared) -> Option<FailureMarker> {
        let Resource { engine, config, .. } = &*self.resource;
        let (id, first, longest) = (permit.lease()?.token, config.failure_ttl, config.failure_ttl.saturating_mul(10));
        let blocks_for = first.saturating_mul(1 << self.earlier_failures.min(8)).min(longest).min(limit);
        let kind = match result {
            _ if first.is_zero() => return None,
            Unshared::Error(error, _) => {
                // The block begins when the marker arrives, which takes up to two attempts.
                let span = blocks_for.saturating_add(config.store_timeout.saturating_mul(2));
                engine.recent_failures.keep(id, error, span);
                error.kind()
            }
            _ => ErrorKind::Origin,
        };
        Some(FailureMarker { blocks_for, remembered_for: longest, report: report_of(id, kind) })
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
    ///
    /// Each kind of work is boxed, so that a fetch holds no room for what follows it.
    fn finish<'a>(&'a mut self, permit: &'a mut FillPermit, deadline: Instant, rest: AfterHead) -> BoxFuture<'a, ()> {
        match rest {
            AfterHead::Fill(fill_set) => Box::pin(async move { permit.fill(&self.flight, &fill_set).await }),
            AfterHead::Await(meta, store_as, completion) => Box::pin(async move {
                let rest = self.on_end(permit, deadline, (meta, store_as), completion).await;
                self.finish(permit, deadline, rest).await;
            }),
            AfterHead::Mark(kind, audience, ttl, completion) => {
                self.drain(deadline, completion);
                Box::pin(self.mark(permit, kind, audience, ttl))
            }
            // Afterwards the leader drops the flight.
            AfterHead::Release(failure_marker, completion) => {
                self.drain(deadline, completion);
                Box::pin(async move { _ = permit.release(failure_marker).await })
            }
        }
    }

    /// Awaits the payload. Returns the work that is left.
    async fn on_end(
        &mut self,
        permit: &mut FillPermit,
        deadline: Instant,
        (meta, store_as): (Meta, StoreAs),
        completion: Option<Completion>,
    ) -> AfterHead {
        let Some(mut completion) = completion else { return AfterHead::Release(None, None) };
        match self.run_bounded(permit, deadline, || (), &mut completion).await {
            Ok(Completed::Payload(payload)) => {
                self.publish(permit, FillSet::new(meta, store_as, payload, &self.redirects))
            }
            Ok(Completed::TooLarge) => {
                self.flight.complete(Progress::Unshared(Unshared::Private(Audience::Everyone)));
                AfterHead::Mark(Kind::HitForPass, Audience::Everyone, self.resource.config.uncacheable_ttl, None)
            }
            Ok(Completed::Truncated) => self.on_aborted(permit, &Aborted::BrokeOff).await,
            // The callers that read the body go on.
            Err(Aborted::TimedOut) => AfterHead::Release(None, Some(completion)),
            Err(aborted) => self.on_aborted(permit, &aborted).await,
        }
    }

    /// Publishes the entry. Returns the work that is left: to store it, or a marker if the store has no room for it.
    fn publish(&self, permit: &FillPermit, fill_set: FillSet) -> AfterHead {
        let (can_keep, fill_set) = (self.resource.can_keep(&fill_set), Arc::new(fill_set));
        // The flight stays open during the fill only if the entry is of use to new callers.
        let state = Progress::Filled(fill_set.clone());
        match freshness(&fill_set.entry, Timestamp::now()) {
            Freshness::Fresh if can_keep => self.flight.publish(state),
            _ => self.flight.complete(state),
        }
        if let (None, Some((_, index))) = (permit.lease(), &fill_set.index) {
            // The entry stays in this process. Other callers follow the remembered redirect to its flight.
            self.resource.engine.redirect_cache.remember(&self.resource.key, index, self.flight.state().begun());
        }
        match can_keep {
            true => AfterHead::Fill(fill_set),
            false => {
                let ttl = self.resource.config.uncacheable_ttl;
                AfterHead::Mark(Kind::DoNotStore, Audience::Everyone, ttl, None)
            }
        }
    }

    /// Stores a marker that applies to this audience for this time. A fresh entry stays.
    async fn mark(&self, permit: &mut FillPermit, kind: Kind, audience: Audience, ttl: Duration) {
        let now = Timestamp::now();
        let stays = |entry: &Entry| entry.meta().kind == Kind::Value && freshness(entry, now) == Freshness::Fresh;
        if ttl.is_zero() || self.seen.as_ref().is_some_and(stays) {
            permit.release(None).await;
        } else if permit.can_mark() {
            let marker = FillSet::marker(permit.meta(kind), audience, ttl);
            permit.fill(&self.flight, &marker).await;
        }
    }

    /// Drives a body that is not stored, or not any more, for the callers that read it, in a task that outlasts the
    /// flight. `deadline` ends the fetch and its lease. It does not end the body, because the callers have a part of it
    /// already.
    fn drain(&self, deadline: Instant, completion: Option<Completion>) {
        if let Some(completion) = completion {
            let more = self.resource.config.fetch_timeout.saturating_mul(MAX_BODY_TIME - 1);
            let drained = self.as_active(clock::after(deadline, more), || (), completion);
            self.resource.engine.tasks.spawn(async move { _ = drained.await });
        }
    }

    /// Runs the fetch to its response head, within its bounds. A fetch that no caller waits for needs a `max_detached`
    /// permit until a caller joins it. Without a permit it is aborted.
    fn run_to_head<T>(
        &self,
        permit: &mut FillPermit,
        deadline: Instant,
        head: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Aborted>> {
        let undemanded = async move {
            loop {
                self.flight.deserted().await;
                let Some(_permit) = self.resource.config.max_detached.try_acquire() else { break };
                self.flight.joined().await;
            }
            Err(Aborted::Detached)
        };
        let on_slow = || report_slow(&self.resource.config.meter, &self.resource.key);
        Alongside::new(self.run_bounded(permit, deadline, on_slow, head), undemanded)
    }

    /// Runs a part of the fetch within its bounds, and keeps the lease alive meanwhile.
    fn run_bounded<T>(
        &self,
        permit: &mut FillPermit,
        deadline: Instant,
        on_slow: impl FnOnce(),
        part: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Aborted>> {
        Alongside::new(self.as_active(deadline, on_slow, part), permit.keep_alive(&self.flight))
    }

    /// Runs a part of the fetch as an active fetch of its key, within its bounds.
    fn as_active<F: Future, S: FnOnce()>(
        &self,
        deadline: Instant,
        on_slow: S,
        part: F,
    ) -> impl Future<Output = Result<F::Output, Aborted>> + use<F, S> {
        let mut active_fetches = Vec::with_capacity(self.outer_fetches.len() + 1);
        active_fetches.extend_from_slice(&self.outer_fetches);
        let (store, flight) = (self.resource.engine.store.clone(), self.flight.state().clone());
        active_fetches.push(ActiveFetch { store, flight, ends_at: deadline });
        contained(deadline, on_slow, ACTIVE_FETCHES.scope(active_fetches, part))
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

/// How long a failure blocks requests that get no stored response, at most: a request with other fields may succeed.
const MAX_BLOCK: Duration = Duration::from_millis(100);
