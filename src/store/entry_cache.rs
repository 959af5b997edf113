//! Caches of entries in this process, bounded by the bytes that the entries take.

use super::entry::Entry;
use crate::key::CacheKey;
use quick_cache::{DefaultHashBuilder, OptionsBuilder, Weighter, sync::Cache};
use std::borrow::Borrow;

/// A cache of values that hold an entry each. It consists of shards, and each shard holds its part of the capacity.
pub(crate) type EntryCache<V> = Cache<CacheKey, V, EntryWeight>;

/// Weighs entries by the bytes that they take with their cache keys.
#[derive(Clone)]
pub(crate) struct EntryWeight;

impl<V: Borrow<Entry>> Weighter<CacheKey, V> for EntryWeight {
    fn weight(&self, key: &CacheKey, value: &V) -> u64 {
        let payload = value.borrow().payload().size();
        (BOOKKEEPING + key.primary().len() + key.variant().map_or(0, <[u8]>::len) + payload) as u64
    }
}

/// Creates a cache of at most `capacity` bytes.
pub(crate) fn with_max_bytes<V: Borrow<Entry> + Clone>(capacity: u64) -> EntryCache<V> {
    let shards = 1 << (capacity / MIN_SHARD).clamp(1, MAX_SHARDS).ilog2();
    // An estimate, for the first allocation.
    let entries = usize::try_from(capacity / 1024).unwrap_or(usize::MAX).clamp(64, 1 << 16);
    let mut options = OptionsBuilder::new();
    options.estimated_items_capacity(entries).weight_capacity(capacity).shards(shards).hot_allocation(MAX_PART);
    let options = options.build().expect("all capacities are set");
    Cache::with_options(options, EntryWeight, DefaultHashBuilder::default(), Default::default())
}

/// Reports whether the cache can keep the value. It drops larger values without a word.
pub(crate) fn can_keep<V: Borrow<Entry> + Clone>(cache: &EntryCache<V>, key: &CacheKey, value: &V) -> bool {
    EntryWeight.weight(key, value) <= (cache.shard_capacity() as f64 * MAX_PART) as u64
}

/// Bytes that an entry takes beside its payload and its cache key.
const BOOKKEEPING: usize = 256;
/// Minimum bytes per shard, if the capacity allows it: eight times the default of `max_payload`. A shard that holds few
/// entries evicts useful ones.
const MIN_SHARD: u64 = 8 << 20;
/// Maximum number of shards. More than most machines have cores.
const MAX_SHARDS: u64 = 32;
/// The part of a shard that one entry may take. The cache admits no larger one.
const MAX_PART: f64 = 0.97;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Timestamp,
        store::{
            entry::{Kind, Meta},
            token::{Inbox, Token},
        },
    };
    use bytes::Bytes;

    const MIB: u64 = 1 << 20;

    /// Seen to fail on 64 cores, with 256 KiB per shard of 64 MiB, when the number of shards followed the cores.
    #[test]
    fn entry_cache_has_shards_of_eight_max_payloads() {
        for (capacity, shards) in [(0, 1), (1, 1), (8, 1), (24, 2), (64, 8), (512, 32), (1 << 20, 32)] {
            let cache: EntryCache<Entry> = with_max_bytes(capacity * MIB);
            assert_eq!(cache.num_shards(), shards, "{capacity} MiB");
            assert!(cache.shard_capacity() >= capacity.min(8) * MIB, "{capacity} MiB");
        }
    }

    #[test]
    fn entry_cache_keeps_what_it_says_it_can_keep() {
        let cache = with_max_bytes(MIB);
        let key = CacheKey::new("sizes", 0, "k");
        let most = (MIB as f64 * MAX_PART) as usize - BOOKKEEPING - key.primary().len();
        for (bytes, kept) in [(0, true), (most, true), (most + 1, false)] {
            let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
            let entry = Entry::new(meta, Bytes::from(vec![0; bytes]));
            assert_eq!(can_keep(&cache, &key, &entry), kept, "{bytes} bytes");
            cache.insert(key.clone(), entry);
            assert_eq!(cache.get(&key).is_some(), kept, "{bytes} bytes");
        }
    }
}
