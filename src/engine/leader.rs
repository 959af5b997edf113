//! The leader drives one flight: it acquires the right to fetch or another result, fetches, publishes the result, and
//! stores it.

use super::{
    caller::Caller,
    execution::{AfterHead, Execution, Pending},
    flight::Progress,
    frontend::{BoxFetch, Completion, Failure, FetchHead, FetchMode, Reuse, ReusePolicy, Shareability},
    permit::{FillPermit, HeldLease, LeaseGuard},
};
use crate::{
    backoff,
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    config::WaitTimeout,
    error::Error,
    outage_cache::NotStored,
    policy::is_uncacheable_marker,
    store::{
        entry::{Audience, Entry, Kind},
        lease::{LeaseReply, LeaseRequest, LeaseStatus},
        token::Token,
        wake::Listener,
    },
    telemetry,
};
use std::{pin::pin, sync::Arc};
use tokio::sync::oneshot;

/// The leader of a flight. Cancel safe: when it is dropped at any await, [`Flight`](super::flight::Flight) lets the
/// next caller lead and [`LeaseGuard`] releases the lease.
pub(super) struct Leader<'a, R, J> {
    pub(super) policy: J,
    pub(super) reply: Option<oneshot::Sender<LeaderResult<'a, R>>>,
    /// In a box because it is moved: an `async fn` reserves room for its arguments twice.
    pub(super) execution: Box<Execution>,
}

/// The way a flight begins.
pub(super) enum LeadMode {
    /// Asks the store for the lease. `background`: the stale entry was served already, so the refresh ends if another
    /// process leads.
    Coordinated { background: bool },
    /// Fetches at once, because the store is unavailable.
    StoreDown,
    /// Fetches at once, because another leader does not answer in time.
    Overdue,
    /// Fetches at once, because a marker says that the response must not be stored.
    DoNotStore(Token),
}

/// The result of a flight for the caller that opened it.
pub(super) enum LeaderResult<'a, R> {
    Response(R, CacheStatus),
    /// The caller's own fetch failed with this answer.
    FailureResponse(R, CacheStatus),
    /// The result that the waiters get, and the unused fetch.
    NotFetched(Progress, BoxFetch<'a, R>),
    /// The stale entry, because the fetch failed.
    ServeStale(Entry),
    /// The fetch was aborted.
    Failed(Error),
}

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Leader<'a, R, J> {
    pub(super) async fn run(mut self, mode: LeadMode, fetch: BoxFetch<'a, R>) {
        let listener = self.execution.resource.listen(); // before `get_or_lease`, so that no wake-up falls in between
        let permit = match mode {
            LeadMode::Coordinated { background } => self.acquire_lease(background, listener).await,
            LeadMode::StoreDown => match self.execution.kept_result(&self.policy, NotStored::Unavailable) {
                Some(kept) => Err(kept),
                None => self.execution.acquire_fallback_permit(Box::new(listener), NotStored::Unavailable).await,
            },
            LeadMode::Overdue => Ok(FillPermit::local(listener)),
            LeadMode::DoNotStore(marker) => Ok(FillPermit::Marker(marker)),
        };
        match permit {
            Ok(permit) => {
                if let Some(pending) = self.fetch(permit, fetch).await {
                    self.execution.finish(pending).await;
                }
            }
            Err(state) => {
                self.execution.flight.complete(state.clone());
                self.reply_to_caller(LeaderResult::NotFetched(state, fetch));
            }
        }
    }

    /// Waits until the right to fetch is granted, or until there is a result without a fetch.
    async fn acquire_lease(&mut self, background: bool, mut listener: Listener) -> Result<FillPermit, Progress> {
        let resource = self.execution.resource.clone();
        let give_up = self.execution.give_up;
        // A local flight that began before this one may have been invalidated since, without notice.
        let since = Some(self.execution.flight.started_at());
        let (mut polls, mut hits, mut invalidations, mut disconnected) = (0, 0, 0, false);
        let mut awaited: Vec<Token> = Vec::new();
        loop {
            let breaker_opened = resource.engine.breakers.opened(); // before `get_or_lease`, so that no opening is missed
            let token = listener.token();
            let guard = LeaseGuard::new(resource.clone(), token);
            let seen = self.execution.seen.as_ref().map(|entry| entry.meta().id);
            let request = LeaseRequest { token, lease: resource.config.lease_ttl, seen };
            let reply = match self.execution.while_listening(&listener, pin!(resource.get_or_lease(request))).await {
                Ok(reply) => reply,
                Err(_) if background => return Err(Progress::Abandoned),
                Err(error) if error.is_disconnected() && !disconnected => {
                    disconnected = true;
                    continue; // with a new token; the old one is released in the background
                }
                Err(error) => match self.execution.kept_result(&self.policy, NotStored::because_of(&error)) {
                    Some(kept) => return Err(kept),
                    None => return self.execution.fail_open(listener, error).await,
                },
            };
            let (remaining, holder, waiting, registered) = match reply {
                LeaseReply::Granted { lease, seen_alive } => {
                    self.execution.confirm_stale_candidate(seen_alive);
                    return Ok(FillPermit::Lease(Box::new(HeldLease::new(lease, guard, listener))));
                }
                LeaseReply::Hit(entry) => {
                    guard.disarm();
                    hits += 1;
                    match self.on_hit(entry, &awaited) {
                        Some(Hit::Complete(state)) => return Err(state),
                        Some(Hit::DoNotStore(marker)) => return self.execution.lead_without_storing(marker).await,
                        None if hits > MAX_HITS => return self.execution.go_local(listener, since).await,
                        None => continue,
                    }
                }
                LeaseReply::Failed { retry_in, code, seen_alive } => {
                    guard.disarm();
                    self.execution.confirm_stale_candidate(seen_alive);
                    if background {
                        self.execution
                            .while_listening(&listener, pin!(self.execution.hold_refresh_slot(retry_in)))
                            .await;
                        return Err(Progress::Abandoned);
                    }
                    if resource.config.failure_ttl.is_zero() {
                        return self.execution.go_local(listener, since).await;
                    }
                    let error = Error::recently_failed(code, retry_in);
                    return Err(Progress::Failed(Failure::Error(error), self.execution.seen.take()));
                }
                LeaseReply::Wait { remaining, holder, waiting, registered, seen_alive } => {
                    guard.disarm();
                    self.execution.confirm_stale_candidate(seen_alive);
                    (remaining, holder, waiting, registered)
                }
            };
            if background {
                self.execution.while_listening(&listener, pin!(self.execution.hold_refresh_slot(remaining))).await;
                return Err(Progress::Abandoned);
            }
            if listener.is_orphaned_lease(holder) && !awaited.contains(&holder) {
                awaited.push(holder);
                let _ = resource.release(holder, None).await;
                continue;
            }
            if !awaited.contains(&holder) {
                awaited.push(holder);
            }
            // The other leader may be waiting for a fetch that this one is part of.
            let outer = self.execution.active_fetches.split_last().map_or(&[][..], |(_, outer)| outer);
            if resource.engine.wait_graph.would_deadlock(&resource, outer) {
                telemetry::deadlock_avoided(&resource.engine.stats, &resource.key);
                return self.execution.go_local(listener, since).await;
            }
            let expiry = remaining.saturating_add(backoff::after_expiry(waiting, clock::random_unit()));
            let pause = backoff::poll(polls, registered, clock::random_unit()).min(expiry);
            polls += 1;
            tokio::select! {
                biased;
                invalidated = listener.notified() => if invalidated {
                    self.execution.flight.invalidated();
                    self.execution.seen = None;
                    invalidations += 1;
                    if invalidations == MAX_INVALIDATIONS {
                        // The key is invalidated faster than it is fetched.
                        return self.execution.go_local(listener, since).await;
                    }
                },
                () = breaker_opened => {}
                () = tokio::time::sleep(pause) => {}
                () = tokio::time::sleep_until(give_up) => {
                    telemetry::wait_timed_out(&resource.engine.stats, &resource.key);
                    let now = Timestamp::now();
                    match self.execution.seen.take_if(|entry| self.policy.allows_stale_on_error(entry, now)) {
                        Some(entry) => return Err(Progress::ServeStale(entry)),
                        None if resource.deadline.is_some_and(|deadline| deadline <= give_up) => {
                            return Err(Progress::Refused(Error::deadline_exceeded(), None));
                        }
                        None if resource.config.on_wait_timeout == WaitTimeout::Reject => {
                            return Err(Progress::Refused(Error::wait_timed_out(), None));
                        }
                        None => return self.execution.go_local(listener, since).await,
                    }
                }
            }
        }
    }

    /// Decides what an entry that `get_or_lease` returned means for the flight. `None`: ask the store again.
    fn on_hit(&mut self, entry: Entry, awaited: &[Token]) -> Option<Hit> {
        let now = Timestamp::now();
        let id = entry.meta().id;
        if is_uncacheable_marker(&entry, now) {
            return Some(match entry.meta().kind {
                Kind::DoNotStore => Hit::DoNotStore(id),
                // Even if the marker does not cover this caller: it may cover some of the waiters.
                Kind::HitForPass | Kind::Value => Hit::Complete(Progress::Uncacheable(entry.meta().audience)),
            });
        }
        // An entry that this flight waited for counts, however short its lifetime is. Otherwise the waiters would lead
        // one after another.
        if awaited.contains(&id) && self.policy.decode(&entry, now).is_some() {
            return Some(Hit::Complete(Progress::Filled(Arc::new(entry.into()))));
        }
        match self.policy.evaluate(&entry, now) {
            Reuse::Serve | Reuse::ServeAndRevalidate if self.policy.decode(&entry, now).is_some() => {
                Some(Hit::Complete(Progress::EntryFound(entry)))
            }
            // Each waiter evaluates the entry for itself.
            Reuse::Bypass => Some(Hit::Complete(Progress::EntryFound(entry))),
            Reuse::Redirect if self.policy.redirect(&entry).is_some() => {
                Some(Hit::Complete(Progress::EntryFound(entry)))
            }
            _ => self.remember_unusable(entry),
        }
    }

    fn remember_unusable(&mut self, entry: Entry) -> Option<Hit> {
        self.execution.flight.set_stale_candidate(None); // the new entry has replaced it
        self.execution.seen = Some(entry);
        None
    }

    /// Fetches, and answers all callers that can be answered at the response head.
    async fn fetch(&mut self, mut permit: FillPermit, fetch: BoxFetch<'a, R>) -> Option<Pending> {
        let now = clock::now();
        let (began, deadline) = (Timestamp::of(now), clock::after(now, self.execution.resource.config.fetch_timeout));
        let fencing_token = permit.lease().map(|lease| lease.stamp);
        let (id, seen, redirects) = (permit.id(), self.execution.seen.clone(), self.execution.redirects.clone());
        let mode = FetchMode::Lead { id, redirects, seen, deadline: deadline.into_std(), fencing_token };
        let head = self.execution.run_bounded(&mut permit, deadline, async move { fetch(mode).await }).await;
        let FetchHead { response, sharing, completion } = match head {
            Ok(head) => head,
            Err(aborted) => {
                let error = aborted.error(&self.execution.resource.config);
                let result = LeaderResult::Failed(error.clone());
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
                if let Some(value) = head {
                    self.execution.flight.publish(Progress::HeadersReady(value));
                }
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
        let usable = |entry: &mut Entry| {
            self.policy.allows_stale_on_error(entry, now) && self.policy.decode(entry, now).is_some()
        };
        let permit = match self.execution.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                if let LeaseStatus::Held = permit.release(failure_marker).await
                    && Box::pin(self.is_still_reachable()).await
                {
                    self.complete(LeaderResult::ServeStale(stale.clone()), Progress::Failed(failure, Some(stale)));
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
        let found = Caller::new(resource.to_primary(), self.policy.clone(), None).lookup_entry().await;
        found.is_some_and(|(reached, _)| reached.key == resource.key)
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

/// The consequence of an entry that `get_or_lease` returned instead of the lease.
enum Hit {
    Complete(Progress),
    DoNotStore(Token),
}

/// Number of invalidations during one wait after which the flight fetches for its own process.
const MAX_INVALIDATIONS: u32 = 2;
/// Maximum number of unusable entries in a row before the flight fetches for its own process.
const MAX_HITS: u32 = 16;
