//! Redirects that were followed recently, so that redirect and variant are read at once.

use crate::{key::CacheKey, store::entry::Entry};
use quick_cache::{Equivalent, sync::Cache};
use std::{
    hash::{Hash, Hasher},
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

/// The last redirect entry of each cache key. Only a guess: the lookup still reads the current one.
pub(super) struct RedirectCache {
    indexes: Cache<ByResource, Entry>,
    /// PERF: whether a redirect was ever remembered, so that callers without redirects pay one load.
    has_any: AtomicBool,
}

/// A cache key that is compared by its resource, so that a redirect is forgotten in all layouts at once.
struct ByResource(CacheKey);

impl PartialEq for ByResource {
    fn eq(&self, other: &Self) -> bool {
        self.0.same_resource(&other.0)
    }
}

impl Eq for ByResource {}

impl Hash for ByResource {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Hash::hash(&self.0, state);
    }
}

impl Equivalent<ByResource> for CacheKey {
    fn equivalent(&self, other: &ByResource) -> bool {
        self.same_resource(&other.0)
    }
}

impl Default for RedirectCache {
    fn default() -> Self {
        Self { indexes: Cache::new(MAX_REMEMBERED), has_any: AtomicBool::new(false) }
    }
}

impl RedirectCache {
    pub(super) fn remember(&self, key: &CacheKey, index: &Entry) {
        let is_same = self.indexes.get(key).is_some_and(|remembered| remembered.meta().id == index.meta().id);
        if !is_same && key.primary().len() <= MAX_KEY_LENGTH {
            self.indexes.insert(ByResource(key.clone()), index.clone());
            self.has_any.store(true, Release);
        }
    }

    /// Forgets the redirect: the next lookup reads it again.
    pub(super) fn forget(&self, key: &CacheKey) {
        self.indexes.remove(key);
    }

    pub(super) fn get(&self, key: &CacheKey) -> Option<Entry> {
        self.has_any.load(Acquire).then(|| self.indexes.get(key))?
    }
}

/// Maximum number of remembered redirects, most with a few hundred bytes.
const MAX_REMEMBERED: usize = 8192;
/// Maximum length of a key. Longer keys are not remembered and cost a second lookup. Clients choose URLs: 8,192 keys of
/// 64 KiB would take 512 MiB.
const MAX_KEY_LENGTH: usize = 2048;

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
        Entry::new(Meta { kind, id, response_time, cost, lifetimes, codec: 0, audience }, Bytes::new())
    }

    #[test]
    fn redirects_of_long_keys_are_not_remembered() {
        let redirect_cache = RedirectCache::default();
        for (length, expected) in [(MAX_KEY_LENGTH, true), (MAX_KEY_LENGTH + 1, false)] {
            let key = CacheKey::new("n", 0, vec![b'a'; length]);
            redirect_cache.remember(&key, &index());
            assert_eq!(redirect_cache.get(&key).is_some(), expected, "{length}");
        }
    }
}
