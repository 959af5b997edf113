//! Redirects that were followed recently, so that redirect and variant are read at once.

use crate::{
    key::CacheKey,
    store::entry::Entry,
    versions::{Shard, Versions},
};
use quick_cache::sync::Cache;
use std::sync::{
    Arc,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

/// The last redirect entry of each cache key, in any layout. Only a guess: the lookup still reads the current one.
pub(super) struct RedirectCache {
    versions: Arc<Versions>,
    indexes: Cache<CacheKey, Remembered>,
    /// PERF: whether a redirect was ever remembered, so that callers without redirects pay one load.
    has_any: AtomicBool,
}

/// A redirect entry, and the number at which its read or its fetch began.
#[derive(Clone)]
struct Remembered {
    index: Entry,
    /// The shard of its resource. PERF: the hash is taken when the redirect is remembered.
    shard: Shard,
    begun: u64,
}

impl RedirectCache {
    pub(super) fn new(versions: Arc<Versions>) -> Self {
        Self { versions, indexes: Cache::new(MAX_REMEMBERED), has_any: AtomicBool::new(false) }
    }

    /// Remembers a redirect. `begun` is the [number](Versions::now) at which its read or its fetch began.
    pub(super) fn remember(&self, key: &CacheKey, index: &Entry, begun: u64) {
        if index.payload().bytes().len() > MAX_INDEX {
            return;
        }
        let is_same = self.get(key).is_some_and(|remembered| remembered.meta().id == index.meta().id);
        if !is_same {
            self.indexes.insert(key.without_layout(), Remembered { index: index.clone(), shard: key.into(), begun });
            self.has_any.store(true, Release);
        }
    }

    /// Forgets a redirect that has changed: the next lookup reads it again.
    pub(super) fn forget(&self, key: &CacheKey) {
        self.indexes.remove(&key.without_layout());
    }

    /// Returns the redirect, unless its resource was invalidated since.
    pub(super) fn get(&self, key: &CacheKey) -> Option<Entry> {
        let remembered = self.has_any.load(Acquire).then(|| self.indexes.get(&key.without_layout()))?;
        let Remembered { index, shard, begun } = remembered?;
        self.versions.counts(shard, begun).then_some(index)
    }
}

/// Maximum number of remembered redirects, most with a few hundred bytes.
const MAX_REMEMBERED: usize = 8192;
/// Maximum length in bytes of a remembered redirect. A response may be one as well.
const MAX_INDEX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Timestamp,
        store::{
            entry::{Audience, Kind, Lifetimes, Meta},
            token::{Inbox, Token},
        },
    };
    use bytes::Bytes;
    use std::time::Duration;

    fn index() -> Entry {
        let (id, lifetimes, response_time) =
            (Token::unique(Inbox::unique()), Lifetimes::default(), Timestamp::from_micros(0));
        let (kind, cost, audience) = (Kind::Value, Duration::ZERO, Audience::Everyone);
        Entry::new(Meta { kind, id, stamp: 0, response_time, cost, lifetimes, codec: 0, audience }, Bytes::new())
    }

    /// Seen to fail if each redirect counts, and if the first number of a redirect stays.
    #[test]
    fn redirect_is_forgotten_in_all_layouts_by_an_invalidation() {
        let versions = Arc::<Versions>::default();
        let (redirect_cache, key, index) = (RedirectCache::new(versions.clone()), CacheKey::new("n", 0, "k"), index());
        let (begun, in_layout) = (versions.now(), key.in_layout(7));
        redirect_cache.remember(&key, &index, begun);
        assert!(redirect_cache.get(&key).is_some());
        versions.bump(&in_layout);
        assert!(redirect_cache.get(&key).is_none());
        redirect_cache.remember(&key, &index, begun);
        assert!(redirect_cache.get(&key).is_none(), "its read began before the invalidation");
        redirect_cache.remember(&key, &index, versions.now());
        assert!(redirect_cache.get(&key).is_some(), "read again");
    }
}
