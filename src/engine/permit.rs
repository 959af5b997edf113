//! The right to fill: acquired, kept alive, used by a fill, or released.

use super::{
    fill_set::FillSet,
    flight::{Flight, FlightState},
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    outage_cache::NotStored,
    store::{
        entry::{Kind, Meta},
        lease::{FailureMarker, Lease, LeaseStatus},
        port::FillCondition,
        token::{Inbox, Token},
        wake::Listener,
    },
    sync::{alongside::Alongside, deferred::DeferredHandle, newest_first},
};
use std::{
    future::{Future, pending},
    mem,
    sync::Arc,
    time::Duration,
};
use tokio::time::{sleep, timeout_at};

/// The permission of one leader to store the result of its fetch, and its subscription to the cache key. It exists
/// before a lease is requested. When it is dropped, it releases the lease, so that a reply that is lost, or not
/// awaited, leaves no lease.
pub(super) struct FillPermit {
    resource: Arc<Resource>,
    pub(super) listener: Listener,
    pub(super) right: FillRight,
    /// Extends the lease outside of the leader, so that a fetch that blocks its thread keeps its lease. `None` for a
    /// scoped leader, so that another process takes over if the caller does not poll the leader. `None` over an embedded
    /// store, because the waiters see by the pulse of the flight that the leader is alive.
    heartbeat: Option<DeferredHandle>,
}

/// What a leader may do with its result.
pub(super) enum FillRight {
    /// Nothing yet, or nothing any more.
    None,
    /// Nothing yet. The store was asked for the lease under this token, and may have granted it.
    Requested(Token),
    /// Fill as the leader of the fleet.
    Lease(Lease),
    /// Do not store; the result stays in this process. While the store is down, holds a `max_fallback_fetches` permit,
    /// unless it is nested in a fetch that may hold one. If `not_stored` is set, the outage cache keeps the result.
    Local { not_stored: Option<NotStored>, _fallback_permit: Option<newest_first::Permit> },
    /// Replace this do-not-store marker if the response may be stored after all.
    Marker(Token),
}

impl FillPermit {
    /// Creates a permit without a right yet. Wake-ups count from now on.
    pub(super) fn new(resource: Arc<Resource>) -> Self {
        Self { listener: resource.listen(), resource, right: FillRight::None, heartbeat: None }
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        match self.right {
            FillRight::Lease(lease) => Some(lease),
            _ => None,
        }
    }

    /// Reports whether a marker can be kept: in the store, or in the outage cache.
    pub(super) fn can_mark(&self) -> bool {
        matches!(self.right, FillRight::Lease(_) | FillRight::Local { not_stored: Some(_), .. })
    }

    pub(super) fn status(&self) -> CacheStatus {
        match self.right {
            FillRight::Lease(_) => CacheStatus::Miss,
            FillRight::Local { .. } => CacheStatus::FailOpen,
            _ => CacheStatus::Bypass,
        }
    }

    /// Returns the metadata of an entry of this kind that is to be filled now.
    pub(super) fn meta(&self, kind: Kind) -> Meta {
        let (id, stamp) = self
            .lease()
            .map_or_else(|| (Token::unique(Inbox::unique()), 0), |Lease { token, stamp, .. }| (token, stamp));
        Meta { stamp, ..Meta::new(kind, id, Timestamp::now()) }
    }

    /// Makes the token for a request for the lease.
    pub(super) fn token(&mut self) -> Token {
        let token = self.listener.token();
        self.right = FillRight::Requested(token);
        token
    }

    /// Keeps the lease alive, unless its heartbeat does so, and handles invalidations, while it is polled.
    pub(super) fn keep_alive<T>(&mut self, flight: &Flight) -> impl Future<Output = T> {
        let Self { resource, listener, right, heartbeat } = self;
        let extended = async move {
            if let (FillRight::Lease(lease), None) = (right, heartbeat) {
                // Boxed, because a lease with a heartbeat needs no room for it.
                Box::pin(sleep(resource.config.lease_ttl / 3)).await;
                Box::pin(extend_until_lost(resource, *lease, flight.state())).await;
            }
            pending().await
        };
        while_listening(listener, move || flight.invalidated(), extended)
    }

    /// Stores the entry if that is permitted. Handles invalidations meanwhile, because the flight may still be joined.
    pub(super) async fn fill(&mut self, flight: &Flight, fill_set: &FillSet) {
        self.heartbeat = None;
        let Self { resource, listener, right, .. } = self;
        let condition = match *right {
            FillRight::Lease(lease) => FillCondition::Lease(lease),
            FillRight::Marker(marker) => FillCondition::ReplaceMarker(marker),
            FillRight::Local { not_stored: Some(reason), .. } => return keep(resource, flight, fill_set, reason),
            FillRight::Local { .. } | FillRight::Requested(_) | FillRight::None => return,
        };
        let filled = while_listening(listener, || flight.invalidated(), resource.fill(condition, fill_set)).await;
        match filled {
            Ok(_) => *right = FillRight::None,
            Err(error) => {
                keep(resource, flight, fill_set, NotStored::because_of(&error));
                Box::pin(self.release(None)).await;
            }
        }
    }

    /// Releases the lease, if there is one. Reports whether it was still held. If the future is dropped while it waits,
    /// the release continues in the background.
    pub(super) async fn release(&mut self, failure_marker: Option<FailureMarker>) -> LeaseStatus {
        self.heartbeat = None;
        let Some(lease) = self.lease() else { return LeaseStatus::Lost };
        let status = self.resource.release(lease.token, failure_marker).await;
        self.right = FillRight::None; // if the outcome is unknown, the lease expires by itself
        status.unwrap_or(LeaseStatus::Lost)
    }

    /// Releases the lease in the background, if the store has granted one, or may have.
    pub(super) fn abandon(&mut self) {
        let (FillRight::Requested(token) | FillRight::Lease(Lease { token, .. })) =
            mem::replace(&mut self.right, FillRight::None)
        else {
            return;
        };
        // Without a runtime the process is about to end, and the lease expires by itself.
        if tokio::runtime::Handle::try_current().is_ok() {
            let resource = self.resource.clone();
            self.resource.engine.tasks.spawn(async move { resource.release(token, None).await });
        }
    }

    /// Extends the lease in a task of the engine, which all leases of a runtime share, at most until the fetch timeout is
    /// over. A fetch that blocks its thread cannot be aborted, so the heartbeat ends without it, and another process may
    /// take over.
    pub(super) async fn start_heartbeat(&mut self, flight: &Flight) {
        let Some(lease) = self.lease() else { return };
        let (resource, state) = (self.resource.clone(), flight.state().clone());
        let ends_at = clock::deadline_after(resource.config.fetch_timeout);
        let heartbeat = Box::pin(async move {
            // Boxed because few fetches last until an extension.
            let _ = Box::pin(timeout_at(ends_at, extend_until_lost(&resource, lease, &state))).await;
        });
        let Resource { engine, config, .. } = &*self.resource;
        self.heartbeat = engine.heartbeats.after(config.lease_ttl / 3, heartbeat).await;
    }
}

impl Drop for FillPermit {
    fn drop(&mut self) {
        self.abandon();
    }
}

/// Keeps a result that could not be stored, for the time that the outage cache allows.
fn keep(resource: &Resource, flight: &Flight, fill_set: &FillSet, reason: NotStored) {
    if let Some(outage) = resource.config.outage_cache() {
        outage.keep(fill_set.writes(&resource.key), flight.state().begun(), reason, Timestamp::now());
    }
}

/// Extends the lease now and after each third of its time-to-live, until it is lost. An extension that fails is sent
/// again soon, so that it arrives first when a silent store answers again, but not if two leases have passed.
async fn extend_until_lost(resource: &Resource, lease: Lease, flight_state: &Arc<FlightState>) {
    let (ttl, mut extended) = (resource.config.lease_ttl, clock::now());
    loop {
        let pause = match resource.extend(lease).await {
            Ok(LeaseStatus::Lost) => break,
            Err(error) if !error.is_refused() && clock::now() < clock::after(extended, 2 * ttl) => EXTENSION_PAUSE,
            Err(_) => ttl,
            Ok(LeaseStatus::Held) => {
                extended = clock::now();
                ttl
            }
        };
        sleep(pause.min(ttl / 3)).await;
    }
    flight_state.unlist(); // its result will not be stored
}

/// Awaits a future. If an invalidation arrives meanwhile, calls `on_invalidation`; the listener still reports the
/// wake-up later. The invalidation may be older than the grant, so it is only a hint: the store decides whether it
/// accepts the fill.
pub(super) fn while_listening<T>(
    listener: &mut Listener,
    mut on_invalidation: impl FnMut(),
    awaited: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let listening = async move {
        loop {
            listener.invalidated().await;
            on_invalidation();
        }
    };
    Alongside::new(listening, awaited)
}

/// Maximum time from an extension that has failed to the next one. Together with a round trip it must be shorter than
/// [`MARKED_FOR`](crate::store::lease::MARKED_FOR).
const EXTENSION_PAUSE: Duration = Duration::from_millis(100);
