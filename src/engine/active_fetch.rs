//! The fetches that a task is part of.

use crate::{key::CacheKey, store::port::Store};
use std::sync::Arc;
use tokio::time::Instant;

tokio::task_local! {
    /// The fetches that the current task is part of, the innermost one last. A spawned task does not inherit a
    /// task-local value, so the leader is handed this list explicitly. Otherwise a guard within a guard, or a fetch
    /// within a fetch, would wait for itself.
    pub(super) static ACTIVE_FETCHES: Vec<ActiveFetch>;
}

/// An active fetch: its store and the cache key that it fills.
#[derive(Clone)]
pub(super) struct ActiveFetch {
    pub(super) store: Arc<dyn Store>,
    pub(super) key: CacheKey,
    /// When the fetch is aborted.
    pub(super) ends_at: Instant,
}

impl ActiveFetch {
    /// Reports whether a caller for this cache key of this store would wait for this fetch. Two clients may share one
    /// server, so all shared stores count as one. An embedded store in front of a shared one is another tier.
    pub(super) fn would_wait_on_itself(&self, store: &Arc<dyn Store>, key: &CacheKey) -> bool {
        let same_store = Arc::ptr_eq(&self.store, store) || (self.store.is_shared() && store.is_shared());
        same_store && self.key.same_resource(key)
    }
}
