//! One execution of a fetch: its context, its bounds, and the work that is left after the response head.

use super::{
    ACTIVE_FETCHES, ActiveFetch,
    fill_set::FillSet,
    flight::{Flight, JoinCriteria, Progress},
    frontend::{Completed, Completion, StoreAs},
    permit::FillPermit,
    resource::Resource,
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::{Config, StoreFailure},
    error::{Error, ErrorKind},
    policy::{Freshness, freshness},
    store::{
        entry::{Audience, Entry, Kind, SharedValue},
        error::StoreError,
        lease::FailureMarker,
        token::Token,
        wake::Listener,
    },
    sync::alongside::Alongside,
};
use futures_util::{FutureExt, future::join};
use std::{future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(super) struct Execution {
    pub(super) resource: Resource,
    pub(super) flight: Flight,
    /// The stored entry that the caller could not use: the stale candidate if the fetch fails.
    pub(super) seen: Option<Entry>,
    /// The redirects that were followed to its cache key.
    pub(super) redirects: Vec<SharedValue>,
    /// This fetch, and the fetches that it is part of.
    pub(super) active_fetches: Vec<ActiveFetch>,
    /// When the caller's wait timeout ends.
    pub(super) give_up: Instant,
    /// Whether the fetch runs within its caller. All work that is not handed to a task then delays the caller.
    pub(super) scoped: bool,
}

/// The work that is left when all callers that can be answered at the head are answered.
pub(super) struct Pending {
    pub(super) permit: FillPermit,
    /// When the fetch is aborted.
    pub(super) deadline: Instant,
    pub(super) rest: AfterHead,
}

/// The kind of work that is left.
pub(super) enum AfterHead {
    /// Await the payload and store it.
    Store(Token, (Timestamp, Timestamp), StoreAs, Completion),
    /// Store a marker that applies to this audience.
    Mark(Kind, Audience, Completion),
    /// Release the lease, leaving a failure marker if there is one.
    Release(Option<FailureMarker>, Completion),
}

/// The reason why a part of a fetch was aborted.
pub(super) enum Aborted {
    Panicked,
    TimedOut,
}

impl Execution {
    /// Records whether the store still has the stale candidate. Otherwise the candidate must not be served any more.
    pub(super) fn confirm_stale_candidate(&mut self, alive: bool) {
        if !alive {
            self.seen = None;
        }
        self.flight.set_stale_candidate(self.seen.clone());
    }

    /// Fetches for this process only, unless another local flight that began after `since` does so.
    pub(super) async fn go_local(&self, listener: Listener, since: Option<Timestamp>) -> Result<FillPermit, Progress> {
        self.join_or_lead_locally(FillPermit::Local { listener: Box::new(listener), _fallback_permit: None }, since)
            .await
    }

    /// Fetches for this process only, or rejects the request, as `on_store_failure` says.
    pub(super) async fn fail_open(&self, listener: Listener, error: StoreError) -> Result<FillPermit, Progress> {
        match self.resource.config.on_store_failure {
            StoreFailure::FailOpen => match self.go_local(listener, None).await? {
                FillPermit::Local { listener, .. } => self.acquire_fallback_permit(listener).await,
                permit => Ok(permit),
            },
            StoreFailure::FailClosed => {
                Err(Progress::Refused(Error::store_down(error.into()), self.flight.stale_candidate()))
            }
        }
    }

    /// Acquires a `max_fallback_fetches` permit. A nested fetch needs none, because the enclosing fetch may hold the
    /// last one.
    pub(super) async fn acquire_fallback_permit(&self, listener: Box<Listener>) -> Result<FillPermit, Progress> {
        if self.is_nested() {
            return Ok(FillPermit::Local { listener, _fallback_permit: None });
        }
        let permits = self.resource.config.max_fallback_fetches.clone();
        let permit = match permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.flight.publish(Progress::Queued);
                let Ok(Ok(permit)) = timeout_at(self.give_up, permits.acquire_owned()).await else {
                    let error =
                        Error::overloaded("the store is unavailable and all `max_fallback_fetches` permits are in use");
                    return Err(Progress::Refused(error, None));
                };
                self.flight.publish(Progress::Running);
                permit
            }
        };
        Ok(FillPermit::Local { listener, _fallback_permit: Some(permit) })
    }

    /// Fetches for this process only, as a do-not-store marker says.
    pub(super) async fn lead_without_storing(&self, marker: Token) -> Result<FillPermit, Progress> {
        self.join_or_lead_locally(FillPermit::Marker(marker), None).await
    }

    async fn join_or_lead_locally(&self, permit: FillPermit, since: Option<Timestamp>) -> Result<FillPermit, Progress> {
        let nested = self.is_nested();
        let Some(waiter) = self.flight.go_local(JoinCriteria { since, nested, incomplete_only: false }) else {
            return Ok(permit);
        };
        // The other flight may be waiting for a fetch that this one is part of.
        let config = &self.resource.config;
        let wait = backoff::budget(config.wait_timeout, clock::random_unit());
        let max_wait = if nested { wait } else { config.fetch_timeout.saturating_add(wait) };
        match timeout(max_wait, waiter.outcome(|_| false)).await {
            Ok(Progress::Queued) | Err(_) => Ok(permit),
            Ok(state) => Err(state),
        }
    }

    /// Reports whether this fetch is nested in another fetch.
    fn is_nested(&self) -> bool {
        self.active_fetches.len() > 1
    }

    /// Awaits a future while the flight does not hold a lease. If an invalidation arrives meanwhile, the flight leaves
    /// the table at once. The next use of the listener handles the other consequences.
    pub(super) async fn while_listening<T>(
        &self,
        listener: &Listener,
        mut awaited: Pin<&mut impl Future<Output = T>>,
    ) -> T {
        tokio::select! {
            biased;
            () = listener.invalidation_pending() => {
                self.flight.invalidated();
                awaited.await
            }
            done = &mut awaited => done,
        }
    }

    /// Keeps the refresh slot for a short time, so that concurrent stale hits do not each ask the store for the lease.
    pub(super) async fn hold_refresh_slot(&self, max: Duration) {
        if !self.scoped {
            sleep(max.min(MAX_SLOT_TIME)).await;
        }
    }

    /// Runs a part of the fetch as an active fetch of its key. Catches panics, stops at the deadline, and keeps the
    /// lease alive meanwhile.
    pub(super) fn run_bounded<T>(
        &self,
        permit: &mut FillPermit,
        deadline: Instant,
        part: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Aborted>> {
        let part = ACTIVE_FETCHES.scope(self.active_fetches.clone(), part);
        let contained = AssertUnwindSafe(part).catch_unwind().map(|done| done.map_err(|_| Aborted::Panicked));
        let limited = timeout_at(deadline, contained).map(|done| done.unwrap_or(Err(Aborted::TimedOut)));
        Alongside::new(limited, permit.keep_alive(&self.flight))
    }

    /// Does the work that is left. The flight may be joined until an entry is stored, so that this process does not
    /// fetch again what is about to be stored.
    pub(super) async fn finish(self: Box<Self>, pending: Pending) {
        if self.scoped {
            let tasks = self.resource.engine.tasks.clone();
            tasks.spawn(async move { self.finish_now(pending).await });
        } else {
            self.finish_now(pending).await;
        }
    }

    async fn finish_now(&self, pending: Pending) {
        let Pending { mut permit, deadline, rest } = pending;
        match rest {
            AfterHead::Store(id, times, store_as, completion) => {
                let completed = match completion {
                    Completion::Ready(payload) => Completed::Payload(payload),
                    completion => self
                        .run_bounded(&mut permit, deadline, completion.completed())
                        .await
                        .unwrap_or(Completed::Truncated),
                };
                match completed {
                    Completed::Payload(payload) => {
                        let fill_set = Arc::new(FillSet::new(id, times, store_as, payload));
                        let can_keep = self.resource.can_keep(&fill_set);
                        // The flight stays open during the fill only if the entry is of use to new callers.
                        let state = Progress::Filled(fill_set.clone());
                        match freshness(&fill_set.entry, Timestamp::now()) {
                            Freshness::Fresh if can_keep => self.flight.publish(state),
                            _ => self.flight.complete(state),
                        }
                        if let (None, Some((_, index))) = (permit.lease(), &fill_set.index) {
                            // The entry stays in this process. Other callers follow the remembered redirect to its
                            // flight.
                            self.resource.engine.redirect_cache.remember(&self.resource.key, index);
                        }
                        // Rare work is boxed, here and below, because every flight would reserve room for it.
                        match can_keep {
                            true => permit.fill(&self.resource, &self.flight, &fill_set).await,
                            false => Box::pin(self.mark(permit, Kind::DoNotStore, Audience::Everyone)).await,
                        }
                    }
                    Completed::TooLarge => {
                        self.flight.complete(Progress::Uncacheable(Audience::Everyone));
                        self.mark(permit, Kind::HitForPass, Audience::Everyone).await;
                    }
                    // The waiters try again with one leader, because a call of each waiter would be the stampede.
                    Completed::Truncated => {
                        permit.release(None).await;
                        self.flight.complete(Progress::Abandoned);
                    }
                }
            }
            AfterHead::Mark(kind, audience, completion) => {
                Box::pin(join(self.mark(permit, kind, audience), self.drain(deadline, completion))).await;
            }
            AfterHead::Release(failure_marker, completion) => {
                Box::pin(join(permit.release(failure_marker), self.drain(deadline, completion))).await;
            }
        }
    }

    /// Stores a marker that applies to this audience, unless an entry is stored that is still fresh.
    async fn mark(&self, permit: FillPermit, kind: Kind, audience: Audience) {
        let fresh = |e: &Entry| e.meta().kind == Kind::Value && freshness(e, Timestamp::now()) == Freshness::Fresh;
        let is_off = audience == Audience::NoOne || self.resource.config.uncacheable_ttl.is_zero();
        if is_off || self.seen.as_ref().is_some_and(fresh) {
            permit.release(None).await;
        } else if permit.lease().is_some() {
            let marker = FillSet::marker(permit.id(), kind, audience, self.resource.config.uncacheable_ttl);
            permit.fill(&self.resource, &self.flight, &marker).await;
        }
    }

    /// Drives a body that is not stored, for the callers that read it.
    async fn drain(&self, deadline: Instant, completion: Completion) {
        let _ = self.run_bounded(&mut FillPermit::None, deadline, completion.completed()).await;
    }
}

impl Aborted {
    pub(super) fn error(&self, config: &Config) -> Error {
        match self {
            Self::Panicked => Error::new(ErrorKind::Panicked, "the fetch panicked"),
            Self::TimedOut => {
                let what = format!("the fetch was aborted after {:?}; see `fetch_timeout`", config.fetch_timeout);
                Error::new(ErrorKind::TimedOut, what)
            }
        }
    }
}

/// Maximum time that a refresh slot is held.
const MAX_SLOT_TIME: Duration = Duration::from_millis(50);
