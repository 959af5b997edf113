//! Nested fetches: a fetch must not wait for itself, directly or through other fetches.

use super::flight::FlightState;
use crate::{key::CacheKey, store::port::Store, sync::mutex::Mutex};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};
use tokio::time::Instant;

tokio::task_local! {
    /// The fetches that the current task is part of, the innermost one last. A spawned task does not inherit a
    /// task-local value, so the leader is handed this list explicitly. Otherwise a guard within a guard, or a fetch
    /// within a fetch, would wait for itself.
    pub(super) static ACTIVE_FETCHES: Vec<ActiveFetch>;
}

/// An active fetch: its store, and the flight whose cache key it fills.
#[derive(Clone)]
pub(super) struct ActiveFetch {
    pub(super) store: Arc<dyn Store>,
    pub(super) flight: Arc<FlightState>,
    /// When the fetch is aborted.
    pub(super) ends_at: Instant,
}

impl ActiveFetch {
    /// Reports whether a caller for this cache key of this store would wait for this fetch. Two clients may share one
    /// server, so all shared stores count as one. An embedded store in front of a shared one is another tier.
    pub(super) fn would_wait_on_itself(&self, store: &Arc<dyn Store>, key: &CacheKey) -> bool {
        let same_store = Arc::ptr_eq(&self.store, store) || (self.store.is_shared() && store.is_shared());
        same_store && self.flight.key().same_resource(key)
    }
}

/// The wait-for graph: the requests of one engine that are made within fetches of the same engine. Requests of other
/// engines and other processes are not seen here. Such a deadlock ends with the fetch timeout.
pub(super) struct WaitGraph {
    /// The store of the engine.
    store: Arc<dyn Store>,
    /// The keys that each fetch has requested.
    requests: Mutex<HashMap<CacheKey, Vec<CacheKey>>>,
}

/// An edge of the wait-for graph: a request within a fetch, until it is dropped.
pub(super) struct WaitEdge {
    graph: Arc<WaitGraph>,
    fetch: CacheKey,
    request: CacheKey,
}

impl WaitEdge {
    /// Records a request for the key if it is made within a fetch of this engine. Boxed, because few requests are
    /// nested.
    pub(super) fn enter(graph: &Arc<WaitGraph>, key: &CacheKey, active_fetches: &[ActiveFetch]) -> Option<Box<Self>> {
        let (fetch, request) = (graph.innermost(active_fetches)?, key.without_layout());
        graph.requests.lock().entry(fetch.clone()).or_default().push(request.clone());
        Some(Box::new(Self { graph: graph.clone(), fetch, request }))
    }
}

impl Drop for WaitEdge {
    fn drop(&mut self) {
        let mut requests = self.graph.requests.lock();
        let Some(inner) = requests.get_mut(&self.fetch) else { return };
        if let Some(position) = inner.iter().position(|other| *other == self.request) {
            inner.swap_remove(position);
        }
        if inner.is_empty() {
            requests.remove(&self.fetch);
        }
    }
}

impl WaitGraph {
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self { store, requests: Mutex::default() }
    }

    /// Reports whether waiting for the key would deadlock, because its fetch waits, directly or through other fetches,
    /// for a fetch in `active_fetches`. Each caller records its edge before it checks, so of two callers that wait for
    /// each other at least the later one sees the deadlock.
    pub(super) fn would_deadlock(&self, key: &CacheKey, active_fetches: &[ActiveFetch]) -> bool {
        if self.innermost(active_fetches).is_none() {
            return false;
        }
        let requests = self.requests.lock();
        let (mut seen, mut next) = (HashSet::new(), vec![key.without_layout()]);
        while let Some(key) = next.pop() {
            if active_fetches.iter().any(|active| active.flight.key().same_resource(&key)) {
                return true;
            }
            if let Some(inner) = requests.get(&key)
                && seen.insert(key)
            {
                next.extend(inner.iter().cloned());
            }
        }
        false
    }

    /// Returns the innermost fetch of this engine, without its layout, because fetches are shared between layouts.
    fn innermost(&self, active_fetches: &[ActiveFetch]) -> Option<CacheKey> {
        let same_engine = |active: &&ActiveFetch| Arc::ptr_eq(&active.store, &self.store);
        active_fetches.iter().rev().find(same_engine).map(|active| active.flight.key().without_layout())
    }
}
