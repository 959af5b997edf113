//! The leader drives one flight after its lookup: it acquires the right to fetch or another result, fetches, publishes
//! the result, and stores it.

mod acquire;

use super::{
    execution::{AfterHead, Execution, Pending},
    flight::state::Progress,
    frontend::{BoxFetch, Completion, Failure, FetchHead, FetchMode, ReusePolicy, Shareability},
    lookup::Lookup,
    permit::FillPermit,
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    error::Error,
    outage_cache::NotStored,
    store::{
        entry::{Audience, Entry, Kind},
        lease::LeaseStatus,
        token::Token,
    },
};
use futures_util::future::{Either, select};
use std::{pin::pin, sync::Arc};
use tokio::{sync::oneshot, time::sleep};

/// The leader of a flight. Cancel safe: when it is dropped at any await, [`Flight`](super::flight::{Flight}) lets the
/// next caller lead and [`LeaseGuard`] releases the lease.
pub(super) struct Leader<'a, R, J> {
    pub(super) policy: J,
    pub(super) reply: Option<oneshot::Sender<LeaderResult<'a, R>>>,
    /// In a box because it is moved: an `async fn` reserves room for its arguments twice.
    pub(super) execution: Box<Execution>,
    /// The leaders of other processes that this one has waited for, by the tokens of their leases.
    pub(super) awaited: Vec<Token>,
}

/// The way a leader begins.
pub(super) enum LeadMode {
    /// Asks the store for the lease.
    Coordinated,
    /// Asks the store for the lease in the background. The caller has its answer already, the stale entry, so the
    /// refresh ends if another process leads.
    Refresh,
    /// Fetches at once, because the store is unavailable.
    StoreDown,
    /// Fetches at once, because the flight of the fleet is of no use to the caller. That flight does not answer in time,
    /// or has a response that is too old and still arriving.
    Local,
    /// Fetches at once, because a marker says that the response must not be stored.
    DoNotStore(Token),
}

/// The result of a flight for the caller that opened it.
pub(super) enum LeaderResult<'a, R> {
    Response(R, CacheStatus),
    /// The caller's own fetch failed: its answer, or the stale one.
    FailureResponse(R, CacheStatus),
    /// No fetch was made: the state that the waiters get as well, and the unused fetch.
    NotFetched(Progress, BoxFetch<'a, R>),
    /// The fetch was aborted, or the caller has stopped waiting. The stale entry may be served.
    Failed(Error, Option<Entry>),
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Leader<'a, R, J> {
    pub(super) async fn run(mut self, mode: LeadMode, fetch: BoxFetch<'a, R>) {
        let listener = self.execution.resource.listen(); // before `get_or_lease`, so that no wake-up falls in between
        let permit = match mode {
            LeadMode::Coordinated => self.acquire_lease(listener).await,
            LeadMode::Refresh => self.acquire_refresh(listener).await,
            LeadMode::StoreDown => match self.kept_result(NotStored::Unavailable) {
                Some(kept) => Err(Progress::LookedUp(Ok(Some(kept)))),
                None => self.execution.acquire_fallback_permit(Box::new(listener), NotStored::Unavailable).await,
            },
            LeadMode::Local => Ok(FillPermit::local(listener)),
            LeadMode::DoNotStore(marker) => Ok(FillPermit::Marker(marker)),
        };
        match permit {
            Ok(permit) => {
                let pending = match permit.lease() {
                    None if !self.awaited.is_empty() => Box::pin(self.fetch_beside(permit, fetch)).await,
                    _ => self.fetch(permit, fetch).await,
                };
                if let Some(pending) = pending {
                    self.execution.finish(pending).await;
                }
            }
            Err(state) => {
                self.execution.flight.complete(state.clone());
                self.reply_to_caller(LeaderResult::NotFetched(state, fetch));
            }
        }
    }

    /// Fetches without a lease, beside the leader of another process. All callers of the flight get the first answer:
    /// that of this fetch, or that of the other leader.
    async fn fetch_beside(&mut self, permit: FillPermit, fetch: BoxFetch<'a, R>) -> Option<Pending> {
        let (resource, policy) = (self.execution.resource.clone(), self.policy.clone());
        let other = answer_of_other_leader(resource, policy, self.awaited.clone());
        let (entry, answer) = {
            let (own, other) = (pin!(self.fetch(permit, fetch)), pin!(other));
            match select(own, other).await {
                Either::Left((pending, _)) => return pending,
                Either::Right((answered, _)) => answered,
            }
        };
        self.complete(LeaderResult::Response(answer, CacheStatus::Coalesced), Progress::Filled(Arc::new(entry.into())));
        None
    }

    /// Fetches, and answers all callers that can be answered at the response head.
    async fn fetch(&mut self, mut permit: FillPermit, fetch: BoxFetch<'a, R>) -> Option<Pending> {
        let now = clock::now();
        let (began, deadline) = (Timestamp::of(now), clock::after(now, self.execution.resource.config.fetch_timeout));
        self.execution.flight.begin_fetch();
        let fencing_token = permit.lease().map(|lease| lease.stamp);
        let (id, seen, redirects) = (permit.id(), self.execution.seen.clone(), self.execution.redirects.clone());
        let mode = FetchMode::Lead { id, redirects, seen, deadline: deadline.into_std(), fencing_token };
        let head = self.execution.run_bounded(&mut permit, deadline, async move { fetch(mode).await }).await;
        let FetchHead { response, sharing, completion } = match head {
            Ok(head) => head,
            Err(aborted) => {
                let error = aborted.error(&self.execution.resource.config);
                let result = LeaderResult::Failed(error.clone(), None);
                let (permit, rest) =
                    self.on_fetch_failed(permit, result, Failure::Error(error), Some(0), Completion::None).await?;
                return Some(Pending { permit, deadline, rest });
            }
        };
        let times = (began, Timestamp::now());
        let status = permit.status();
        let rest = match sharing {
            Shareability::Failed(failure, code) => {
                let result = LeaderResult::FailureResponse(response, status);
                let (permit, rest) = self.on_fetch_failed(permit, result, failure, code, completion).await?;
                return Some(Pending { permit, deadline, rest });
            }
            Shareability::Private(audience) => {
                self.complete(LeaderResult::Response(response, status), Progress::Uncacheable(audience));
                AfterHead::Mark(Kind::HitForPass, audience, completion)
            }
            Shareability::WaitersOnly(value) => {
                self.complete(LeaderResult::Response(response, status), Progress::Shared(value));
                AfterHead::Mark(Kind::DoNotStore, Audience::Everyone, completion)
            }
            Shareability::Cacheable(value, store_as) => {
                self.execution.flight.publish(Progress::Shared(value));
                self.reply_to_caller(LeaderResult::Response(response, status));
                AfterHead::Store(id, times, store_as, completion)
            }
            Shareability::CacheableAtEnd(head, store_as) => {
                self.execution.flight.publish_head(head);
                self.reply_to_caller(LeaderResult::Response(response, status));
                AfterHead::Store(id, times, store_as, completion)
            }
        };
        Some(Pending { permit, deadline, rest })
    }

    async fn on_fetch_failed(
        &mut self,
        permit: FillPermit,
        result: LeaderResult<'a, R>,
        failure: Failure,
        code: Option<u16>,
        completion: Completion,
    ) -> Option<(FillPermit, AfterHead)> {
        let failure_marker = code.and_then(|code| self.execution.resource.config.failure_marker(code));
        let now = Timestamp::now();
        let usable = |entry: &mut Entry| self.policy.stale_answer(entry, now).is_some();
        let permit = match self.execution.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                if let LeaseStatus::Held = permit.release(failure_marker).await
                    && Box::pin(self.is_still_reachable()).await
                    && let Some(answer) = self.policy.stale_answer(&stale, now)
                {
                    let result = LeaderResult::FailureResponse(answer, CacheStatus::Stale);
                    self.complete(result, Progress::Failed(failure, Some(stale)));
                    return None;
                }
                FillPermit::None
            }
            _ => permit,
        };
        self.complete(result, Progress::Failed(failure, None));
        Some((permit, AfterHead::Release(failure_marker, completion)))
    }

    /// Reports whether the redirects still lead to this cache key. The invalidation of a resource with variants drops
    /// only its first redirect, and leaves entries and leases of the variants.
    async fn is_still_reachable(&self) -> bool {
        let resource = &self.execution.resource;
        if self.execution.redirects.is_empty() {
            return true;
        }
        let mut lookup = Lookup::new(resource.to_primary(), self.policy.clone());
        matches!(lookup.find().await, Ok(Some(_))) && lookup.resource.key == resource.key
    }

    /// Returns the result of an earlier flight that was kept after the caller had asked the outage cache.
    fn kept_result(&self, reason: NotStored) -> Option<Entry> {
        self.execution.resource.kept_result(&self.policy, reason, self.execution.seen.as_ref())
    }

    /// Ends the flight: publishes the state, and answers the caller that opened it.
    fn complete(&mut self, result: LeaderResult<'a, R>, state: Progress) {
        self.execution.flight.complete(state);
        self.reply_to_caller(result);
    }

    /// Answers the caller that opened the flight, if it is still there.
    fn reply_to_caller(&mut self, result: LeaderResult<'a, R>) {
        if let Some(reply) = self.reply.take() {
            let _ = reply.send(result);
        }
    }
}

/// Waits until the store has an entry that answers the callers. An entry of a leader with one of these tokens counts at
/// any age, an entry of a later leader only if the reuse policy serves it.
async fn answer_of_other_leader<R, J: ReusePolicy<R>>(
    resource: Resource,
    policy: J,
    awaited: Vec<Token>,
) -> (Entry, R) {
    let mut listener = resource.listen();
    loop {
        if let Ok(Some(entry)) = resource.get().await {
            let now = Timestamp::now();
            let answer = match awaited.contains(&entry.meta().id) {
                true => policy.decode(&entry, now),
                false => policy.servable(&entry, now),
            };
            if let Some(answer) = answer {
                return (entry, answer);
            }
        }
        tokio::select! {
            _ = listener.notified() => {}
            () = sleep(resource.config.lease_ttl) => {} // a wake-up may be lost
        }
    }
}
