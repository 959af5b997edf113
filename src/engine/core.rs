//! The tables of one engine, and the tracker of its tasks.

use super::{
    breaker::Breakers, flight::Flights, nesting::WaitGraph, pending_invalidations::PendingInvalidations,
    recent_failures::RecentFailures, redirects::RedirectCache,
};
#[cfg(feature = "http")]
use crate::telemetry::routes::Routes;
use crate::{
    health::{Failures, Health},
    key::CacheKey,
    near_cache::{NearCache, NearCacheConfig},
    store::port::Store,
    sync::deferred::DeferredWork,
    telemetry::NamedCounters,
    versions::Versions,
};
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool,
            Ordering::{Acquire, Release},
        },
    },
    time::Duration,
};
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

/// The state that all clones of a guard share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    /// The counters of all clones, by name.
    pub(crate) counters: NamedCounters,
    #[cfg(feature = "http")]
    pub(crate) routes: Routes,
    pub(super) versions: Arc<Versions>,
    /// Whether a clone has a near cache, whose copies end with each fill.
    has_near_copies: AtomicBool,
    pub(super) flights: Arc<Flights>,
    pub(super) breakers: Breakers,
    pub(super) failures: Failures,
    /// The extensions of leases.
    pub(super) heartbeats: DeferredWork,
    pub(super) wait_graph: Arc<WaitGraph>,
    /// All spawned tasks except heartbeats: leaders, refreshes, releases of leases. The tracker is closed from the
    /// beginning: that does not prevent spawning, and lets any number of callers wait until it is empty.
    pub(super) tasks: TaskTracker,
    pub(super) invalidations: PendingInvalidations,
    pub(super) redirect_cache: RedirectCache,
    pub(super) recent_failures: RecentFailures,
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>, counters: NamedCounters) -> Arc<Self> {
        let tasks = TaskTracker::new();
        tasks.close();
        let flights = Arc::<Flights>::default();
        let versions = flights.versions.clone();
        Arc::new(Self {
            counters,
            #[cfg(feature = "http")]
            routes: Routes::default(),
            breakers: Breakers::default(),
            failures: Failures::default(),
            heartbeats: DeferredWork::default(),
            wait_graph: Arc::new(WaitGraph::new(store.clone())),
            tasks,
            invalidations: PendingInvalidations::default(),
            redirect_cache: RedirectCache::new(versions.clone()),
            versions,
            has_near_copies: AtomicBool::new(false),
            flights,
            recent_failures: RecentFailures::default(),
            store,
        })
    }

    /// Creates a near cache for a clone of the guard.
    pub(crate) fn near_cache(&self, settings: NearCacheConfig) -> Option<Arc<NearCache>> {
        let near = NearCache::in_front_of(&*self.store, self.versions.clone(), settings)?;
        self.has_near_copies.store(true, Release);
        Some(Arc::new(near))
    }

    /// Ends the copies of a resource in the near caches of all clones.
    pub(super) fn end_near_copies(&self, key: &CacheKey) {
        if self.has_near_copies.load(Acquire) {
            self.versions.bump(key);
        }
    }

    /// Waits until no spawned task is running, at most for this time. Returns the number of tasks that still run.
    pub(crate) async fn drain(&self, max_wait: Duration) -> usize {
        let _ = timeout(max_wait, self.tasks.wait()).await;
        self.tasks.len()
    }

    /// Returns what the operations of the store so far have shown.
    pub(crate) fn health(&self) -> Health {
        Health::of(&*self.store, self.breakers.state(), &self.failures, self.invalidations.pending())
    }

    /// Returns the number of flights.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }
}
