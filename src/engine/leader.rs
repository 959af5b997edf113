//! The leader drives one flight after its lookup: it acquires the right to fetch or another result, fetches, publishes
//! the result, and stores it.

mod acquire;
mod failing;

use super::{
    execution::{AfterHead, Execution, Pending},
    flight::state::Progress,
    frontend::{BoxFetch, FetchHead, FetchMode, ReusePolicy, Shareability},
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
        token::Token,
    },
    telemetry,
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
        // The caller of a refresh has its answer and did not leave: it counts for as long as the refresh runs.
        let is_refresh = matches!(mode, LeadMode::Refresh);
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
                let _caller = is_refresh.then(|| self.execution.flight.opener());
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
        let status = permit.status();
        let mode = FetchMode::Lead { id, redirects, seen, deadline: deadline.into_std(), fencing_token, status };
        let head = {
            let _timed = telemetry::fetching(&self.execution.resource.config.meter);
            self.execution.run_to_head(&mut permit, deadline, async move { fetch(mode).await }).await
        };
        let times = (began, Timestamp::now());
        let (permit, rest) = match head {
            Ok(head) => self.on_head(permit, head, id, times).await?,
            Err(aborted) => Box::pin(self.on_aborted(permit, &aborted)).await?,
        };
        Some(Pending { permit, deadline, rest })
    }

    /// Answers the callers that can be answered at the head of the response. Returns the work that is left.
    async fn on_head(
        &mut self,
        permit: FillPermit,
        FetchHead { response, sharing, completion }: FetchHead<R>,
        id: Token,
        times: (Timestamp, Timestamp),
    ) -> Option<(FillPermit, AfterHead)> {
        let (status, config) = (permit.status(), self.execution.resource.config.clone());
        if let Some(failure) = sharing.failure() {
            telemetry::fetch_failed(&config.meter, &self.execution.resource.key, failure);
        }
        let rest = match sharing {
            Shareability::Failed(failure, cause, code) => {
                let result = LeaderResult::FailureResponse(response, status);
                return self.on_fetch_failed(permit, result, (failure, cause, code), completion).await;
            }
            Shareability::Inconclusive(audience) => {
                self.on_inconclusive(LeaderResult::Response(response, status), audience, completion)
            }
            Shareability::Private(audience) => {
                self.complete(LeaderResult::Response(response, status), Progress::Uncacheable(audience));
                AfterHead::Mark(Kind::HitForPass, audience, config.uncacheable_ttl, completion)
            }
            Shareability::WaitersOnly(value) => {
                self.complete(LeaderResult::Response(response, status), Progress::Shared(value));
                AfterHead::Mark(Kind::DoNotStore, Audience::Everyone, config.uncacheable_ttl, completion)
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
        Some((permit, rest))
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
