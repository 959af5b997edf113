//! The heartbeat of a lease: extends it while its fetch runs.

use super::{flight::FlightState, resource::Resource};
use crate::{
    clock,
    store::lease::{Lease, LeaseStatus},
    sync::deferred::DeferredHandle,
};
use std::sync::Arc;
use tokio::time::{sleep, timeout_at};

/// Extends the lease in a task of the engine, which all leases of a runtime share, at most until the fetch timeout is
/// over. A fetch that blocks its thread cannot be aborted, so the heartbeat ends without it, and another process may
/// take over. Returns `None` outside of a runtime.
pub(super) async fn start(
    resource: &Resource,
    lease: Lease,
    flight_state: &Arc<FlightState>,
) -> Option<DeferredHandle> {
    let ends_at = clock::deadline_after(resource.config.fetch_timeout);
    let heartbeat = {
        let (resource, flight_state) = (resource.clone(), flight_state.clone());
        async move {
            // Boxed because few fetches last until an extension.
            let heartbeat = Box::pin(extend_until_lost(&resource, lease, &flight_state));
            if clock::now() < ends_at {
                let _ = timeout_at(ends_at, heartbeat).await;
            }
        }
    };
    resource.engine.heartbeats.after(resource.config.lease_ttl / 3, Box::pin(heartbeat)).await
}

/// Extends the lease within its leader, for the first time a third of its time-to-live from now, until it is lost.
pub(super) async fn extend_within_leader(resource: &Resource, lease: Lease, flight_state: &Arc<FlightState>) {
    sleep(resource.config.lease_ttl / 3).await;
    Box::pin(extend_until_lost(resource, lease, flight_state)).await;
}

/// Extends the lease now and after each third of its time-to-live, until it is lost.
async fn extend_until_lost(resource: &Resource, lease: Lease, flight_state: &Arc<FlightState>) {
    while !matches!(resource.extend(lease).await, Ok(LeaseStatus::Lost)) {
        sleep(resource.config.lease_ttl / 3).await;
    }
    flight_state.unlist(); // its result will not be stored
}
