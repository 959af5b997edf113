//! Redirects that were followed recently, so that redirect and variant are read at once.

use super::frontend::{Redirect, ReusePolicy};
use crate::{key::CacheKey, store::entry::Entry};
use quick_cache::{Equivalent, sync::Cache};
use std::{
    hash::{BuildHasher, Hash, Hasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The last redirect entry of each cache key. Only a guess: the lookup still reads the current one.
pub(super) struct RedirectCache(Cache<ByResource, Entry>);

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
        Self(Cache::new(MAX_REMEMBERED))
    }
}

impl RedirectCache {
    pub(super) fn remember(&self, key: &CacheKey, index: &Entry) {
        let is_same = self.0.get(key).is_some_and(|remembered| remembered.meta().id == index.meta().id);
        if !is_same && key.primary().len() <= MAX_KEY_LENGTH {
            self.0.insert(ByResource(key.clone()), index.clone());
        }
    }

    /// Forgets the redirect: the next lookup reads it again.
    pub(super) fn forget(&self, key: &CacheKey) {
        self.0.remove(key);
    }

    pub(super) fn redirect_of<R>(&self, key: &CacheKey, policy: &impl ReusePolicy<R>) -> Option<Redirect> {
        policy.redirect(&self.0.get(key)?)
    }
}

/// The keys that this process has recently dropped from the store, and that no caller has requested since. The next
/// caller skips the lookup, because `get_or_lease` returns an entry that was stored meanwhile. Also only a guess.
pub(super) struct Dropped {
    hasher: RandomState,
    /// Hashes of cache keys; 0 for an empty slot.
    slots: Box<[AtomicU64]>,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { hasher: RandomState::new(), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Dropped {
    pub(super) fn remember(&self, key: &CacheKey) {
        let (slot, hash) = self.slot(key);
        slot.store(hash, Relaxed);
    }

    /// Returns `true` once per dropped key.
    pub(super) fn take(&self, key: &CacheKey) -> bool {
        let (slot, hash) = self.slot(key);
        slot.load(Relaxed) == hash && slot.compare_exchange(hash, 0, Relaxed, Relaxed).is_ok()
    }

    fn slot(&self, key: &CacheKey) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(key).max(1);
        (&self.slots[hash as usize % SLOTS], hash)
    }
}

/// Maximum number of remembered redirects, most with a few hundred bytes.
const MAX_REMEMBERED: usize = 8192;
/// Number of slots, 8 KiB in total.
const SLOTS: usize = 1024;
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
            assert_eq!(redirect_cache.0.get(&key).is_some(), expected, "{length}");
        }
    }
}
