//! The engine resolves one key: from the store, from an in-flight fetch, or by leading a new fetch.
//!
//! ```text
//! fetch in flight?      -> join it (unless the entry that it refreshes can be served)
//! lookup (shared)       -> evaluate: serve | serve and refresh in the background | hit-for-pass: bypass | miss
//! miss                  -> open a flight (`leader`): lead, wait for the leader, or fetch locally
//! ```

pub(crate) mod breaker;
mod breakers;
mod caller;
mod execution;
mod fill_set;
mod flight;
pub(crate) mod frontend;
mod invalidation;
mod leader;
mod peek;
mod permit;
mod redirects;
pub(crate) mod resource;
mod wait_graph;

use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    key::CacheKey,
    near_cache::{NearCache, NearCaches, config::NearCacheConfig},
    store::{
        entry::{Entry, Payload},
        port::{FillCondition, Store},
        token::{Inbox, Token},
    },
    telemetry::Counters,
};
use breakers::Breakers;
use caller::Caller;
use fill_set::FillSet;
use flight::Flights;
use frontend::{BoxFetch, FetchHead, FetchMode, ReusePolicy, StoreAs};
use invalidation::PendingInvalidations;
use redirects::{Dropped, RedirectCache};
use resource::Resource;
use std::{
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio::time::{Instant, timeout};
use tokio_util::task::TaskTracker;
use wait_graph::WaitGraph;

/// The state that all clones of a guard share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) stats: Counters,
    /// Whether reads are expected to answer at once. True for a store of this process until one of its reads does not.
    at_once: AtomicBool,
    flights: Arc<Flights>,
    breakers: Breakers,
    wait_graph: WaitGraph,
    /// All spawned tasks: leaders, refreshes, releases of leases. The tracker is closed from the beginning: that does
    /// not prevent spawning, and lets any number of callers wait until it is empty.
    tasks: TaskTracker,
    invalidations: PendingInvalidations,
    redirect_cache: RedirectCache,
    dropped: Dropped,
    near_caches: NearCaches,
}

tokio::task_local! {
    /// The fetches of the current task, nested ones included. A spawned leader does not inherit a task local, so it is
    /// handed on explicitly. Without it, a guard within a guard, or a fetch within a fetch, would wait for itself.
    static ACTIVE_FETCHES: Vec<ActiveFetch>;
}

/// An active fetch: its store and the cache key that it fills.
#[derive(Clone)]
struct ActiveFetch {
    store: Arc<dyn Store>,
    key: CacheKey,
    /// When the fetch is aborted.
    ends_at: Instant,
}

impl ActiveFetch {
    /// Reports whether a caller for `other` would wait for this fetch. Two clients may share one server, so all shared
    /// stores count as one. An embedded store in front of a shared one is another tier.
    fn would_wait_on_itself(&self, other: &Resource) -> bool {
        let store = &other.engine.store;
        let same_store = Arc::ptr_eq(&self.store, store) || (self.store.is_shared() && store.is_shared());
        same_store && self.key.same_resource(&other.key)
    }
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let tasks = TaskTracker::new();
        tasks.close();
        Arc::new(Self {
            at_once: AtomicBool::new(!store.is_shared()),
            store,
            stats: Counters::default(),
            flights: Arc::default(),
            breakers: Breakers::default(),
            wait_graph: WaitGraph::default(),
            tasks,
            invalidations: PendingInvalidations::default(),
            redirect_cache: RedirectCache::default(),
            dropped: Dropped::default(),
            near_caches: NearCaches::default(),
        })
    }

    /// Creates a near cache for a clone of the guard.
    pub(crate) fn near_cache(&self, settings: NearCacheConfig) -> Option<Arc<NearCache>> {
        let cache = Arc::new(NearCache::in_front_of(&*self.store, settings)?);
        self.near_caches.add(&cache);
        Some(cache)
    }

    /// Drops the copies that this process keeps of the cache key.
    pub(crate) fn forget_copies(&self, key: &CacheKey) {
        self.near_caches.forget(key);
    }

    /// Waits until no spawned task is running, at most for this time. Returns the number of tasks that still run.
    pub(crate) async fn drain(&self, max_wait: Duration) -> usize {
        let _ = timeout(max_wait, self.tasks.wait()).await;
        self.tasks.len()
    }

    /// Returns the number of flights, lookups included.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }
}

impl Resource {
    /// Resolves the key. A fetch runs in a task of its own and outlives its caller.
    ///
    /// Cancel safe: a fetch started by this future keeps running, and a fetch that it joined is unaffected.
    pub(crate) fn resolve<R, J, F, Fut>(self, policy: J, fetch: F) -> impl Future<Output = (R, CacheStatus)> + Send
    where
        R: Send + 'static,
        J: ReusePolicy<R> + Clone + Send + Sync + 'static,
        F: FnOnce(FetchMode) -> Fut + Send + 'static,
        Fut: Future<Output = FetchHead<R>> + Send + 'static,
    {
        let spawn = |engine: &Engine, flight| _ = engine.tasks.spawn(flight);
        Caller::deferred(self, policy, Some(spawn), boxed(fetch))
    }

    /// Resolves the key from the store only, without a fetch and without waiting for one. An entry that may be served
    /// while it is refreshed is served, but not refreshed.
    pub(crate) async fn lookup_only<R: Send, J: ReusePolicy<R> + Clone + Send + Sync + 'static>(
        self,
        policy: J,
    ) -> Option<(R, CacheStatus)> {
        Caller::new(self, policy, None).lookup_only().await
    }

    /// Returns the stored entry and its cache key. The entry may be of no use to the caller.
    pub(crate) async fn lookup_entry<R: Send, J: ReusePolicy<R> + Clone + Send + Sync + 'static>(
        self,
        policy: J,
    ) -> Option<(Self, Entry)> {
        Caller::new(self, policy, None).lookup_entry().await
    }

    /// Returns the handle of the whole resource, without a variant.
    pub(crate) fn to_primary(&self) -> Self {
        Self { key: self.key.to_primary(), ..self.clone() }
    }

    /// Replaces the entry, if it is still stored.
    pub(crate) async fn freshen(&self, entry: &Entry, store_as: StoreAs, payload: Payload) {
        let meta = entry.meta();
        let now = Timestamp::now();
        let times = (now.before(meta.cost), now);
        let fill_set = FillSet::new(Token::unique(Inbox::unique()), times, store_as, payload);
        // Ignores the outcome: if the fill fails, the old entry is still valid.
        let _ = self.fill(FillCondition::ReplaceMarker(meta.id), &fill_set).await;
    }

    /// Resolves the key. A fetch runs within its caller, so that it may borrow.
    ///
    /// Cancellation: dropping the future drops a fetch that it started, and the next waiter takes over with its own
    /// fetch.
    pub(crate) fn resolve_scoped<'a, R, J, F, Fut>(
        self,
        policy: J,
        fetch: F,
    ) -> impl Future<Output = (R, CacheStatus)> + Send
    where
        R: Send + 'a,
        J: ReusePolicy<R> + Clone + Send + Sync + 'static,
        F: FnOnce(FetchMode) -> Fut + Send + 'a,
        Fut: Future<Output = FetchHead<R>> + Send + 'a,
    {
        Caller::deferred(self, policy, None, boxed(fetch))
    }
}

fn boxed<'a, R, F, Fut>(fetch: F) -> BoxFetch<'a, R>
where
    F: FnOnce(FetchMode) -> Fut + Send + 'a,
    Fut: Future<Output = FetchHead<R>> + Send + 'a,
{
    Box::new(move |mode| Box::pin(fetch(mode)))
}

/// Maximum number of redirects that are followed on the way to an entry.
pub(crate) const MAX_REDIRECTS: usize = 4;
