//! The heartbeat of a lease: extends it while its fetch runs.

use super::{flight::state::FlightState, resource::Resource};
use crate::store::lease::{Lease, LeaseStatus};
use std::sync::Arc;
use tokio::{
    task::yield_now,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

/// Extends the lease in a task of its own, at most until the fetch timeout is over. A fetch that blocks its thread
/// cannot be aborted, so the heartbeat ends without it, and another process may take over.
pub(super) async fn start(resource: &Resource, lease: Lease, flight_state: &Arc<FlightState>) -> AbortOnDropHandle<()> {
    let tasks = resource.engine.tasks.clone();
    let (resource, flight_state) = (resource.clone(), flight_state.clone());
    let heartbeat = async move {
        let _ = timeout(resource.config.fetch_timeout, extend_until_lost(&resource, lease, &flight_state)).await;
    };
    let heartbeat = AbortOnDropHandle::new(tasks.spawn(heartbeat));
    // A worker of tokio polls the task that it spawned last itself, and no other worker can steal it. Without the
    // yield, a fetch that blocks this worker would block the heartbeat as well.
    yield_now().await;
    heartbeat
}

/// Extends the lease, until it is lost.
pub(super) async fn extend_until_lost(resource: &Resource, lease: Lease, flight_state: &Arc<FlightState>) {
    loop {
        sleep(resource.config.lease_ttl / 3).await;
        // Boxed because few fetches last until an extension.
        if let Ok(LeaseStatus::Lost) = Box::pin(resource.extend(lease)).await {
            return flight_state.lose_lease();
        }
    }
}
