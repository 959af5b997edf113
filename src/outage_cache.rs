//! The outage cache: results of this process that could not be stored.
//!
//! Without it, each key would be fetched again as soon as its last fetch has ended, for as long as the store is down. A
//! result is kept for a short time after its response, is never written to the store, and ends with any invalidation
//! that this process requests or hears of.

#[cfg(feature = "serde")]
use crate::file_values::{LONGEST, duration};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        entry::Entry,
        entry_cache::{EntryCache, with_max_bytes},
        error::StoreError,
        port::Write,
    },
    versions::Versions,
};
use std::{
    borrow::Borrow,
    sync::{
        OnceLock,
        atomic::{
            AtomicI64,
            Ordering::{AcqRel, Acquire, Relaxed, Release},
        },
    },
    time::Duration,
};

/// The settings of the outage cache: results of this process that could not be stored. See
/// [`StampedeGuard::outage_cache`](crate::StampedeGuard::outage_cache).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use stampede_guard::{OutageCacheConfig, StampedeGuard};
/// use std::time::Duration;
///
/// // While Redis is down, each process asks the origin once in five seconds for each key.
/// let kept = OutageCacheConfig::max_bytes(64 << 20).ttl(Duration::from_secs(5));
/// let guard = StampedeGuard::connect("redis://127.0.0.1:1/")?.outage_cache(kept); // no server there
/// for _ in 0..3 {
///     guard.fetch("rate", async || Ok::<_, std::io::Error>(1.1)).await?;
/// }
/// assert_eq!(guard.stats().outage_cache_hits, 2);
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// 64 MiB, and a [`ttl`](Self::ttl) of 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(default, deny_unknown_fields))]
#[must_use]
pub struct OutageCacheConfig {
    #[cfg_attr(feature = "serde", serde(rename = "max_bytes"))]
    pub(crate) capacity: u64,
    #[cfg_attr(feature = "serde", serde(deserialize_with = "duration::<0, LONGEST, _, _>"))]
    pub(crate) ttl: Duration,
}

impl OutageCacheConfig {
    /// Creates settings for a cache of at most `capacity` bytes: payloads, keys, and 256 bytes of bookkeeping per
    /// entry. What is too large for an entry is the same as for a [`MemoryStore`](crate::MemoryStore#defaults) of this
    /// capacity. Such a result is not kept, and not counted. Zero turns the cache off.
    pub fn max_bytes(capacity: u64) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Sets how long after its response a result is used at most. It is never used longer than it is fresh. Zero turns
    /// the cache off. Default: 1 s.
    ///
    /// It bounds for how long this process may serve a kept result after another process has invalidated the key. While
    /// a fill is sent again, requests may share its result for longer: see the [guide](crate::guide::outages).
    pub fn ttl(self, limit: Duration) -> Self {
        Self { ttl: limit, ..self }
    }
}

impl Default for OutageCacheConfig {
    fn default() -> Self {
        Self { capacity: 64 << 20, ttl: Duration::from_secs(1) }
    }
}

#[derive(Debug)]
pub(crate) struct OutageCache {
    settings: OutageCacheConfig,
    /// Created with the first entry, because most processes never see an outage.
    table: OnceLock<EntryCache<KeptEntry>>,
    /// When the last entry ends, in microseconds, or `EMPTY`.
    last_end: AtomicI64,
}

/// The reason why a result was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStored {
    /// The store did not answer, was not asked, or failed with unknown outcome.
    Unavailable,
    /// The store has refused to grant the lease or to fill, for example because it is full.
    Refused,
}

/// An entry that could not be stored.
#[derive(Clone)]
struct KeptEntry {
    entry: Entry,
    reason: NotStored,
    ends: Timestamp,
    begun: u64,
}

impl OutageCache {
    pub(crate) fn new(settings: OutageCacheConfig) -> Self {
        Self { settings, table: OnceLock::new(), last_end: AtomicI64::new(EMPTY) }
    }

    /// Reports whether nothing was kept recently. PERF: one load, so that a healthy store pays next to nothing.
    pub(crate) fn is_empty(&self) -> bool {
        self.last_end.load(Relaxed) == EMPTY
    }

    /// Keeps the entries of a fill. `begun` is the [number](Versions::now) at which their fetch began.
    pub(crate) fn keep(&self, writes: Vec<Write>, begun: u64, reason: NotStored, now: Timestamp) {
        for Write { key, entry, .. } in writes {
            let meta = entry.meta();
            let ends = meta.response_time.after(meta.lifetimes.fresh_for.min(self.settings.ttl));
            if ends <= now {
                continue;
            }
            let table = self.table.get_or_init(|| with_max_bytes(self.settings.capacity));
            table.insert(key, KeptEntry { entry, reason, ends, begun });
            self.last_end.fetch_max(ends.as_micros(), Release);
        }
    }

    /// Returns the entry, unless its time is over, or its resource was invalidated since its fetch began.
    ///
    /// `reason` says why nothing can be stored now. If the store answers and only refuses to store, an entry counts
    /// only if it was refused as well and is not older than the `stored` one, because another process may have
    /// invalidated every other kept entry.
    pub(crate) fn get(
        &self,
        key: &CacheKey,
        versions: &Versions,
        (reason, stored): (NotStored, Option<&Entry>),
        now: Timestamp,
    ) -> Option<Entry> {
        let last_end = self.last_end.load(Acquire);
        let table = self.table.get().filter(|_| last_end != EMPTY)?;
        if last_end <= now.as_micros() {
            // The outage is over, so the memory is released. If an entry is kept meanwhile, it may be lost, which costs
            // a fetch.
            if self.last_end.compare_exchange(last_end, EMPTY, AcqRel, Relaxed).is_ok() {
                table.clear();
            }
            return None;
        }
        let kept = table.get(key).filter(|kept| now < kept.ends && versions.counts(key, kept.begun))?;
        let is_older = |stored: &Entry| kept.entry.meta().response_time < stored.meta().response_time;
        let counts = match reason {
            NotStored::Unavailable => true,
            NotStored::Refused => kept.reason == NotStored::Refused && !stored.is_some_and(is_older),
        };
        counts.then_some(kept.entry)
    }
}

impl NotStored {
    pub(crate) fn because_of(error: &StoreError) -> Self {
        if error.is_refused() { Self::Refused } else { Self::Unavailable }
    }
}

/// Gives the cache the weight of the entry.
impl Borrow<Entry> for KeptEntry {
    fn borrow(&self) -> &Entry {
        &self.entry
    }
}

/// The value of `last_end` while nothing is kept.
const EMPTY: i64 = i64::MIN;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock,
        store::{
            entry::{Kind, Lifetimes, Meta},
            token::{Inbox, Token},
        },
    };
    use bytes::Bytes;

    const SECOND: Duration = Duration::from_secs(1);

    fn write(key: &CacheKey, response_time: Timestamp, fresh_for: Duration, bytes: usize) -> Vec<Write> {
        let mut meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), response_time);
        meta.lifetimes = Lifetimes::fresh_for(fresh_for);
        vec![Write::new(key.clone(), Entry::new(meta, Bytes::from(vec![0; bytes])))]
    }

    fn key(n: usize) -> CacheKey {
        CacheKey::new("n", 0, format!("k{n}"))
    }

    fn get(outage: &OutageCache, key: &CacheKey, now: Timestamp) -> Option<Entry> {
        outage.get(key, &Versions::default(), (NotStored::Unavailable, None), now)
    }

    #[test]
    fn outage_cache_entry_ends_with_its_freshness_or_the_ttl() {
        for (fresh_for, expected) in [(SECOND / 4, SECOND / 4), (60 * SECOND, SECOND), (Duration::ZERO, Duration::ZERO)]
        {
            let (outage, began) = (OutageCache::new(OutageCacheConfig::default()), Timestamp::from_micros(7));
            outage.keep(write(&key(0), began, fresh_for, 1), 0, NotStored::Refused, began);
            let last = began.after(expected).before(Duration::from_micros(1));
            assert_eq!(get(&outage, &key(0), last).is_some(), !expected.is_zero(), "{fresh_for:?}");
            assert!(get(&outage, &key(0), began.after(expected)).is_none(), "{fresh_for:?}");
            assert!(outage.is_empty(), "the memory is released: {fresh_for:?}");
        }
    }

    #[test]
    fn outage_cache_of_zero_bytes_keeps_nothing() {
        let (outage, now) = (OutageCache::new(OutageCacheConfig::max_bytes(0)), Timestamp::from_micros(7));
        outage.keep(write(&key(0), now, SECOND, 1), 0, NotStored::Unavailable, now);
        assert!(get(&outage, &key(0), now).is_none());
        assert_eq!(outage.table.get().map_or(0, EntryCache::weight), 0);
    }

    /// Seen to fail (nothing is kept) with four shards per core, on a machine with 64 cores.
    #[test]
    fn outage_cache_keeps_payloads_of_the_largest_default_size() {
        let (outage, now) = (OutageCache::new(OutageCacheConfig::default()), Timestamp::from_micros(7));
        for n in 0..96 {
            outage.keep(write(&key(n), now, SECOND, 1 << 20), 0, NotStored::Unavailable, now);
            assert!(get(&outage, &key(n), now).is_some(), "{n}");
        }
        let kept = outage.table.get().map_or(0, EntryCache::weight);
        assert!(((32 << 20)..=(64 << 20)).contains(&kept), "{kept}");
    }

    #[test]
    fn only_refused_entries_count_if_the_store_answers() {
        for (reason, expected) in [(NotStored::Refused, true), (NotStored::Unavailable, false)] {
            let (outage, now) = (OutageCache::new(OutageCacheConfig::default()), Timestamp::from_micros(7));
            outage.keep(write(&key(0), now, SECOND, 1), 0, reason, now);
            let (versions, refused) = (Versions::default(), NotStored::Refused);
            let get = |stored: Option<Entry>| outage.get(&key(0), &versions, (refused, stored.as_ref()), now).is_some();
            let stored = |at| Some(write(&key(0), Timestamp::from_micros(at), SECOND, 1).remove(0).entry);
            assert_eq!((get(None), get(stored(6))), (expected, expected), "{reason:?}");
            assert!(!get(stored(8)), "a newer entry is stored");
        }
    }

    /// Seen to fail if each entry counts.
    #[test]
    fn outage_cache_entry_ends_with_an_invalidation_of_its_resource() {
        let versions = Versions::default();
        let variant = CacheKey::new("n", 3, crate::Key::from("k0").variant("en"));
        let (begun, now) = (versions.now(), Timestamp::of(clock::now()));
        let outage = OutageCache::new(OutageCacheConfig::default());
        let is_kept = || outage.get(&variant, &versions, (NotStored::Unavailable, None), now).is_some();
        outage.keep(write(&variant, now, SECOND, 1), begun, NotStored::Unavailable, now);
        assert!(is_kept());
        versions.bump(&key(0));
        assert!(!is_kept(), "invalidated after it was kept");
        outage.keep(write(&variant, now, SECOND, 1), begun, NotStored::Unavailable, now);
        assert!(!is_kept(), "and before it was kept");
        outage.keep(write(&variant, now, SECOND, 1), versions.now(), NotStored::Unavailable, now);
        assert!(is_kept(), "its fetch began after the invalidation");
    }
}
