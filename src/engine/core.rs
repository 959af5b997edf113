//! The tables of one engine, and the tracker of its tasks.

use super::{
    breakers::Breakers,
    flight::state::Flights,
    pending_invalidations::{Acknowledged, PendingInvalidations},
    redirects::RedirectCache,
    wait_graph::WaitGraph,
};
#[cfg(feature = "http")]
use crate::telemetry::routes::Routes;
use crate::{
    clock::Timestamp,
    near_cache::{NearCache, NearCaches, config::NearCacheConfig},
    store::port::Store,
    telemetry::NamedCounters,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// The state that all clones of a guard share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    /// The counters of all clones, by name.
    pub(crate) counters: NamedCounters,
    #[cfg(feature = "http")]
    pub(crate) routes: Routes,
    pub(super) flights: Arc<Flights>,
    pub(super) breakers: Breakers,
    pub(super) wait_graph: Arc<WaitGraph>,
    /// All spawned tasks: leaders, refreshes, releases of leases. The tracker is closed from the beginning: that does
    /// not prevent spawning, and lets any number of callers wait until it is empty.
    pub(super) tasks: TaskTracker,
    pub(super) invalidations: PendingInvalidations,
    replay: Replay,
    pub(super) redirect_cache: RedirectCache,
    pub(super) near_caches: NearCaches,
}

/// A function that sends invalidations again which the store may have lost. It must not block.
type Replay = fn(&Arc<Engine>, VecDeque<Acknowledged>);

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, counters: NamedCounters, replay: Replay) -> Arc<Self> {
        let tasks = TaskTracker::new();
        tasks.close();
        Arc::new(Self {
            counters,
            #[cfg(feature = "http")]
            routes: Routes::default(),
            flights: Arc::default(),
            breakers: Breakers::default(),
            wait_graph: Arc::new(WaitGraph::new(store.clone())),
            tasks,
            invalidations: PendingInvalidations::default(),
            replay,
            redirect_cache: RedirectCache::default(),
            near_caches: NearCaches::default(),
            store,
        })
    }

    /// Creates a near cache for a clone of the guard.
    pub(crate) fn near_cache(&self, settings: NearCacheConfig) -> Option<Arc<NearCache>> {
        let cache = Arc::new(NearCache::in_front_of(&*self.store, settings)?);
        self.near_caches.add(&cache);
        Some(cache)
    }

    /// Handles an answer of the store to an operation that was sent at `sent_at`. If the epoch has changed, the
    /// invalidations that the store may have lost are sent again in the background.
    pub(super) fn on_answer(self: &Arc<Self>, sent_at: Timestamp) {
        let lost = self.invalidations.take_lost(self.store.epoch(), sent_at);
        if !lost.is_empty() {
            (self.replay)(self, lost);
        }
    }

    /// Waits until no spawned task is running, at most for this time. Returns the number of tasks that still run.
    pub(crate) async fn drain(&self, max_wait: Duration) -> usize {
        let _ = timeout(max_wait, self.tasks.wait()).await;
        self.tasks.len()
    }

    /// Returns the number of flights.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }
}
