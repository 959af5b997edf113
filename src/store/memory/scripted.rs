//! Faults scripted by a test, for the feature `testing`.

use super::{Held, LeaseSlot, MemoryStore, Shard};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::entry::Entry,
    sync::mutex::{Mutex, MutexGuard},
};

impl MemoryStore {
    /// Ends the lease of the key.
    pub(crate) fn expire_lease(&self, key: &CacheKey, now: Timestamp) {
        if let Some((_, held)) = self.leases.of(key).lease(key, now) {
            held.set_end(now);
        }
    }

    /// Drops matching entries, and returns their cache keys.
    pub(crate) fn evict(&self, which: impl Fn(&CacheKey) -> bool) -> Vec<CacheKey> {
        let evicted = in_order(self.entries.iter().map(|(key, _)| key).filter(|key| which(key)));
        for key in &evicted {
            self.entries.remove(key);
        }
        evicted
    }

    /// Drops all entries, leases and failure markers.
    pub(crate) fn clear(&self) {
        for mut shard in self.lease_tables() {
            shard.table.clear();
        }
        self.entries.clear();
    }

    /// Returns the cache keys that have an entry, a lease or a failure marker.
    pub(crate) fn cache_keys(&self, which: impl Fn(&CacheKey) -> bool) -> Vec<CacheKey> {
        let leased = self.lease_tables().flat_map(|shard| shard.table.keys().cloned().collect::<Vec<_>>());
        let stored = self.entries.iter().map(|(key, _)| key);
        let mut keys = in_order(leased.chain(stored).filter(|key| which(key)));
        keys.dedup();
        keys
    }

    pub(crate) fn any_entry(&self, which: impl Fn(&CacheKey, &Entry) -> bool) -> bool {
        self.entries.iter().any(|(key, entry)| which(&key, &entry))
    }

    /// Returns the cache keys with a lease that has not ended.
    pub(crate) fn leased_keys(&self, which: impl Fn(&CacheKey) -> bool, now: Timestamp) -> Vec<CacheKey> {
        let held = |(key, held): &(&CacheKey, &Held)| held.is_lease(now) && which(key);
        let keys = |shard: MutexGuard<'_, Shard>| shard.table.iter().filter(held).map(|(key, _)| key.clone()).collect();
        in_order(self.lease_tables().flat_map::<Vec<_>, _>(keys))
    }

    /// Reports whether there is a lease, which may have ended.
    pub(crate) fn keeps_lease(&self, key: &CacheKey, now: Timestamp) -> bool {
        self.leases.of(key).lease(key, now).is_some()
    }

    /// Locks the tables one after the other. A lease granted meanwhile is in a table that was visited, or in one that
    /// will be.
    fn lease_tables(&self) -> impl Iterator<Item = MutexGuard<'_, Shard>> {
        self.leases.shards.iter().map(Mutex::lock)
    }
}

impl Held {
    /// Reports whether this is a lease that has not ended.
    fn is_lease(&self, now: Timestamp) -> bool {
        now < self.blocks_until && matches!(self.what, LeaseSlot::Lease { .. })
    }
}

/// Sorts by key hash, because the order of a hash table differs from run to run.
fn in_order(keys: impl IntoIterator<Item = CacheKey>) -> Vec<CacheKey> {
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable_by_key(|key| (*key.hash().as_bytes(), key.layout()));
    keys
}
