//! The right to fill: kept alive, used by a fill, or released.

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
        lease::{FailureMarker, Lease, LeaseStatus},
        port::FillCondition,
        token::{Inbox, Token},
        wake::Listener,
    },
    sync::{deferred::DeferredHandle, newest_first},
};
use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};
use tokio::time::{sleep, timeout_at};

/// The permission to store the result of a fetch.
pub(super) enum FillPermit {
    /// Fill as the leader of the fleet.
    Lease(Box<HeldLease>),
    /// Do not store; the result stays in this process. Still receives invalidations. While the store is down, holds a
    /// `max_fallback_fetches` permit, unless it is nested in a fetch that may hold one. If `not_stored` is set, the
    /// outage cache keeps the result.
    Local { listener: Box<Listener>, not_stored: Option<NotStored>, _fallback_permit: Option<newest_first::Permit> },
    /// Replace this do-not-store marker if the response may be stored after all.
    Marker(Token),
    /// No permission any more.
    None,
}

impl FillPermit {
    /// Creates the permission of a local fetch whose result is not kept.
    pub(super) fn local(listener: Listener) -> Self {
        Self::Local { listener: Box::new(listener), not_stored: None, _fallback_permit: None }
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        match self {
            Self::Lease(held) => Some(held.lease),
            Self::Local { .. } | Self::Marker(_) | Self::None => None,
        }
    }

    /// Reports whether a marker can be kept: in the store, or in the outage cache.
    pub(super) fn can_mark(&self) -> bool {
        matches!(self, Self::Lease(_) | Self::Local { not_stored: Some(_), .. })
    }

    pub(super) fn status(&self) -> CacheStatus {
        match self {
            Self::Lease(_) => CacheStatus::Miss,
            Self::Local { .. } => CacheStatus::FailOpen,
            Self::Marker(_) | Self::None => CacheStatus::Bypass,
        }
    }

    /// Returns the id of the entry to be filled.
    pub(super) fn id(&self) -> Token {
        self.lease().map_or_else(|| Token::unique(Inbox::unique()), |lease| lease.token)
    }

    /// Keeps the lease alive, unless its heartbeat does so, and handles invalidations, while it is polled.
    pub(super) async fn keep_alive(&mut self, flight: &Flight) -> Infallible {
        match self {
            Self::Lease(held) => held.keep_alive(flight).await,
            Self::Local { listener, .. } => while_listening(listener, || flight.invalidated(), pin!(pending())).await,
            Self::Marker(_) | Self::None => pending().await,
        }
    }

    /// Stores the entry if that is permitted. Handles invalidations meanwhile, because the flight may still be joined.
    pub(super) async fn fill(self, resource: &Resource, flight: &Flight, fill_set: &FillSet) {
        match self {
            Self::Lease(mut held) => {
                held.heartbeat = None;
                let fill = pin!(resource.fill(FillCondition::Lease(held.lease), fill_set));
                match while_listening(&mut held.listener, || flight.invalidated(), fill).await {
                    Ok(_) => held.guard.disarm(),
                    Err(error) => {
                        keep(resource, flight, fill_set, NotStored::because_of(&error));
                        held.guard.release(None).await;
                    }
                }
            }
            Self::Marker(marker) => {
                if let Err(error) = resource.fill(FillCondition::ReplaceMarker(marker), fill_set).await {
                    keep(resource, flight, fill_set, NotStored::because_of(&error));
                }
            }
            Self::Local { not_stored: Some(reason), .. } => keep(resource, flight, fill_set, reason),
            Self::Local { .. } | Self::None => {}
        }
    }

    /// Releases the lease, if there is one. Reports whether it was still held.
    pub(super) async fn release(self, failure_marker: Option<FailureMarker>) -> LeaseStatus {
        let Self::Lease(mut held) = self else { return LeaseStatus::Lost };
        held.heartbeat = None;
        held.guard.release(failure_marker).await
    }
}

/// Keeps a result that could not be stored, for the time that the outage cache allows.
fn keep(resource: &Resource, flight: &Flight, fill_set: &FillSet, reason: NotStored) {
    if let Some(outage) = resource.config.outage_cache() {
        outage.keep(fill_set.writes(&resource.key), flight.begun(), reason, Timestamp::now());
    }
}

/// A held lease with its guard and its listener.
pub(super) struct HeldLease {
    lease: Lease,
    guard: LeaseGuard,
    listener: Listener,
    /// Extends the lease outside of the leader, so that a fetch that blocks its thread keeps its lease. `None` for a
    /// scoped leader, so that another process takes over if the caller does not poll the leader. `None` over an embedded
    /// store, because the waiters see by the pulse of the flight that the leader is alive.
    heartbeat: Option<DeferredHandle>,
}

impl HeldLease {
    pub(super) fn new(lease: Lease, guard: LeaseGuard, listener: Listener) -> Self {
        Self { lease, guard, listener, heartbeat: None }
    }

    /// Extends the lease in a task of the engine, which all leases of a runtime share, at most until the fetch timeout is
    /// over. A fetch that blocks its thread cannot be aborted, so the heartbeat ends without it, and another process may
    /// take over.
    pub(super) async fn start_heartbeat(&mut self, flight: &Flight) {
        let (resource, lease, state) = (self.guard.resource.clone(), self.lease, flight.state().clone());
        let ends_at = clock::deadline_after(resource.config.fetch_timeout);
        let heartbeat = Box::pin(async move {
            // Boxed because few fetches last until an extension.
            let _ = timeout_at(ends_at, Box::pin(extend_until_lost(&resource, lease, &state))).await;
        });
        let Resource { engine, config, .. } = &self.guard.resource;
        self.heartbeat = engine.heartbeats.after(config.lease_ttl / 3, heartbeat).await;
    }

    async fn keep_alive(&mut self, flight: &Flight) -> Infallible {
        let Self { lease, guard, listener, heartbeat } = self;
        let extended = async {
            if heartbeat.is_none() {
                sleep(guard.resource.config.lease_ttl / 3).await;
                Box::pin(extend_until_lost(&guard.resource, *lease, flight.state())).await;
            }
            pending().await
        };
        while_listening(listener, || flight.invalidated(), pin!(extended)).await
    }
}

/// Extends the lease now and after each third of its time-to-live, until it is lost. An extension that fails is sent
/// again soon, so that it arrives first when a silent store answers again.
async fn extend_until_lost(resource: &Resource, lease: Lease, flight_state: &Arc<FlightState>) {
    let third = resource.config.lease_ttl / 3;
    loop {
        let pause = match resource.extend(lease).await {
            Ok(LeaseStatus::Lost) => break,
            Err(error) if !error.is_refused() => third.min(EXTENSION_PAUSE),
            _ => third,
        };
        sleep(pause).await;
    }
    flight_state.unlist(); // its result will not be stored
}

/// Awaits a future. If an invalidation arrives meanwhile, calls `on_invalidation`; the listener still reports the
/// wake-up later. The invalidation may be older than the grant, so it is only a hint: the store decides whether it
/// accepts the fill.
pub(super) async fn while_listening<T>(
    listener: &mut Listener,
    mut on_invalidation: impl FnMut(),
    mut awaited: Pin<&mut impl Future<Output = T>>,
) -> T {
    loop {
        tokio::select! {
            biased;
            () = listener.invalidated() => on_invalidation(),
            done = &mut awaited => return done,
        }
    }
}

/// A guard that releases a lease when it is dropped. Created before the lease is requested, so that a reply that is
/// lost, or not awaited, leaves no lease.
pub(super) struct LeaseGuard {
    resource: Resource,
    token: Token,
    armed: bool,
}

impl LeaseGuard {
    pub(super) fn new(resource: Resource, token: Token) -> Self {
        Self { resource, token, armed: true }
    }

    pub(super) fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Disarms the guard: there is nothing to release.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
    }

    /// Releases the lease. If the future is dropped while it waits, the release continues in the background.
    pub(super) async fn release(mut self, failure_marker: Option<FailureMarker>) -> LeaseStatus {
        let status = self.resource.release(self.token, failure_marker).await;
        self.armed = false; // if the outcome is unknown, the lease expires by itself
        status.unwrap_or(LeaseStatus::Lost)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        // Without a runtime the process is about to end, and the lease expires by itself.
        if self.armed && tokio::runtime::Handle::try_current().is_ok() {
            let (resource, token) = (self.resource.clone(), self.token);
            self.resource.engine.tasks.spawn(async move { resource.release(token, None).await });
        }
    }
}

/// Maximum time from an extension that has failed to the next one. Together with a round trip it must be shorter than
/// [`MARKED_FOR`](crate::store::lease::MARKED_FOR).
const EXTENSION_PAUSE: Duration = Duration::from_millis(100);
