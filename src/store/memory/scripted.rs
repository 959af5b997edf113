//! Faults scripted by a test, for the feature `testing`.

use super::{Held, LeaseSlot, MemoryStore};
use crate::{clock::Timestamp, key::CacheKey, store::entry::Entry};
use std::cell::RefCell;

impl MemoryStore {
    /// Ends matching leases, and returns their cache keys.
    pub(crate) fn expire_leases(&self, which: impl Fn(&CacheKey) -> bool, now: Timestamp) -> Vec<CacheKey> {
        let mut expired = Vec::new();
        for mut shard in self.leases.each() {
            for (key, held) in &mut shard.table {
                if now < held.until && held.is_lease() && which(key) {
                    held.until = now;
                    expired.push(key.clone());
                }
            }
        }
        in_order(expired)
    }

    /// Drops matching entries, and returns their cache keys.
    pub(crate) fn evict(&self, which: impl Fn(&CacheKey) -> bool) -> Vec<CacheKey> {
        let evicted = RefCell::default();
        self.entries.retain(|key, _| {
            let is_kept = !which(key);
            if !is_kept {
                Vec::push(&mut evicted.borrow_mut(), key.clone());
            }
            is_kept
        });
        in_order(evicted.into_inner())
    }

    /// Drops all entries, leases and failure markers.
    pub(crate) fn clear(&self) {
        for mut shard in self.leases.each() {
            shard.table.clear();
        }
        self.entries.clear();
    }

    /// Returns the cache keys that have an entry, a lease or a failure marker.
    pub(crate) fn cache_keys(&self, which: impl Fn(&CacheKey) -> bool) -> Vec<CacheKey> {
        let leased = self.leases.each().flat_map(|shard| shard.table.keys().cloned().collect::<Vec<_>>());
        let stored = self.entries.iter().map(|(key, _)| key);
        let mut keys = in_order(leased.chain(stored).filter(|key| which(key)));
        keys.dedup();
        keys
    }

    pub(crate) fn any_entry(&self, which: impl Fn(&CacheKey, &Entry) -> bool) -> bool {
        self.entries.iter().any(|(key, entry)| which(&key, &entry))
    }

    /// Returns the number of leases held.
    pub(crate) fn leases(&self, which: impl Fn(&CacheKey) -> bool, now: Timestamp) -> usize {
        let held = |(key, held): &(&CacheKey, &Held)| now < held.until && held.is_lease() && which(key);
        self.leases.each().map(|shard| shard.table.iter().filter(held).count()).sum()
    }
}

impl Held {
    fn is_lease(&self) -> bool {
        matches!(self.what, LeaseSlot::Lease(_))
    }
}

/// Sorts by key hash, because the order of a hash table differs from run to run.
fn in_order(keys: impl IntoIterator<Item = CacheKey>) -> Vec<CacheKey> {
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable_by_key(|key| (*key.hash().as_bytes(), key.layout()));
    keys
}
