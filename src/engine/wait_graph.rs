//! The wait-for graph: prevents a fetch from waiting for itself, directly or through other fetches.

use super::{ActiveFetch, resource::Resource};
use crate::{key::CacheKey, sync::mutex::Mutex};
use std::collections::{HashMap, HashSet};

/// The requests of one engine that are made within fetches of the same engine. Requests of other engines and other
/// processes are not seen here. Such a deadlock ends when a request has waited for half of the time of its fetch.
#[derive(Default)]
pub(super) struct WaitGraph {
    /// The keys that each fetch has requested.
    requests: Mutex<HashMap<CacheKey, Vec<CacheKey>>>,
}

/// An edge of the wait-for graph: a request within a fetch, until it is dropped.
pub(super) struct WaitEdge {
    resource: Resource,
    fetch: CacheKey,
}

impl WaitEdge {
    /// Records the request if it is made within a fetch of this engine. Boxed, because few requests are nested.
    pub(super) fn enter(resource: &Resource, active_fetches: &[ActiveFetch]) -> Option<Box<Self>> {
        let fetch = innermost(resource, active_fetches)?;
        resource.engine.wait_graph.requests.lock().entry(fetch.clone()).or_default().push(graph_key(&resource.key));
        Some(Box::new(Self { resource: resource.clone(), fetch }))
    }
}

impl Drop for WaitEdge {
    fn drop(&mut self) {
        let mut requests = self.resource.engine.wait_graph.requests.lock();
        let Some(inner) = requests.get_mut(&self.fetch) else { return };
        let key = graph_key(&self.resource.key);
        if let Some(position) = inner.iter().position(|other| *other == key) {
            inner.swap_remove(position);
        }
        if inner.is_empty() {
            requests.remove(&self.fetch);
        }
    }
}

impl WaitGraph {
    /// Reports whether waiting for the key would deadlock: its fetch waits, directly or through other fetches, for one
    /// in `active_fetches`. Each caller records its edge before it checks, so of two callers that wait for each other
    /// at least the later one sees the deadlock.
    pub(super) fn would_deadlock(&self, resource: &Resource, active_fetches: &[ActiveFetch]) -> bool {
        if innermost(resource, active_fetches).is_none() {
            return false;
        }
        let requests = self.requests.lock();
        let (mut seen, mut next) = (HashSet::new(), vec![graph_key(&resource.key)]);
        while let Some(key) = next.pop() {
            if active_fetches.iter().any(|active| active.key.same_resource(&key)) {
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
}

/// Returns the innermost fetch that the request is nested in.
fn innermost(resource: &Resource, active_fetches: &[ActiveFetch]) -> Option<CacheKey> {
    let same_engine = |active: &&ActiveFetch| std::sync::Arc::ptr_eq(&active.store, &resource.engine.store);
    active_fetches.iter().rev().find(same_engine).map(|active| graph_key(&active.key))
}

/// Maps a cache key to its resource. Fetches are shared between layouts.
fn graph_key(key: &CacheKey) -> CacheKey {
    key.without_layout()
}
