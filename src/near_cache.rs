//! The near cache: copies of entries that this process has read.
//!
//! A copy is served while it is fresh, no change was reported since its read was sent, and it was confirmed less than
//! `max_age` ago. A copy is confirmed by its read, and whenever the store confirms that no message was lost. If the
//! store reports no changes, `max_age` since the read is the only bound.

#[cfg(feature = "serde")]
use crate::file_values::{LONGEST, duration};
use crate::{
    clock::Timestamp,
    key::{CacheKey, CacheKeyRef},
    store::{
        entry::Entry,
        entry_cache::{self, EntryCache},
        error::StoreError,
        port::Store,
        tracking::{InvalidationFeed, TrackedRead, TrackedReader},
    },
    telemetry::{self, Meter, NearCacheBytes},
    versions::{Shard, Versions},
};
use std::{borrow::Borrow, fmt, sync::Arc, time::Duration};

/// The settings of a near cache: copies in this process of entries read from an external store. See
/// [`StampedeGuard::near_cache`](crate::StampedeGuard::near_cache).
///
/// ```
/// # fn main() -> Result<(), stampede_guard::redis::RedisError> {
/// use stampede_guard::{NearCacheConfig, StampedeGuard};
/// use std::time::Duration;
///
/// // 64 MiB of copies. After a lost connection they are served for half a second.
/// let copies = NearCacheConfig::max_bytes(64 << 20).max_age(Duration::from_millis(500));
/// let guard = StampedeGuard::connect("redis://127.0.0.1/")?.near_cache(copies);
/// # Ok(())
/// # }
/// ```
///
/// # Defaults
///
/// [`max_age`](Self::max_age) is 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize), serde(deny_unknown_fields))]
#[must_use]
pub struct NearCacheConfig {
    #[cfg_attr(feature = "serde", serde(rename = "max_bytes"))]
    pub(crate) capacity: u64,
    #[cfg_attr(feature = "serde", serde(default = "second", deserialize_with = "duration::<1, LONGEST, _, _>"))]
    pub(crate) max_age: Duration,
}

impl NearCacheConfig {
    /// Creates settings for a cache of at most `capacity` bytes: payloads, keys, and 256 bytes of bookkeeping per copy.
    /// Decoded values that are shared ([`fetch_arc`](crate::CacheEntry::fetch_arc), heads of HTTP responses) are not
    /// counted. A cache of zero bytes keeps no copies. What is too large for a copy is the same as for a
    /// [`MemoryStore`](crate::MemoryStore#defaults) of this capacity; such an entry is read from the store each time, and
    /// counted ([`Stats::too_large`](crate::Stats::too_large)).
    pub fn max_bytes(capacity: u64) -> Self {
        Self { capacity, max_age: second() }
    }

    /// Sets the maximum time a copy may be served after it was last confirmed. It bounds what is served after an
    /// [`invalidate`](crate::StampedeGuard::invalidate) has returned in another process. Default: 1 s.
    ///
    /// This is the worst case, after a lost connection or a suspended process. While the connection holds, messages
    /// drop copies within a round trip, and copies are served as long as they are fresh. The connection is checked
    /// every third of this time, at most once per millisecond. In a cluster there are no messages, and each copy ends this
    /// time after its read was sent.
    ///
    /// # Panics
    ///
    /// Panics if `bound` is zero.
    #[track_caller]
    pub fn max_age(self, bound: Duration) -> Self {
        assert!(!bound.is_zero(), "max_age must be greater than zero");
        Self { max_age: bound, ..self }
    }
}

/// The default of `max_age`.
const fn second() -> Duration {
    Duration::from_secs(1)
}

pub(crate) struct NearCache {
    copies: EntryCache<Arc<CachedCopy>>,
    max_age: Duration,
    /// The changes that this process has made, or that the store has reported.
    versions: Arc<Versions>,
    feed: Arc<InvalidationFeed>,
    reader: Option<Arc<dyn TrackedReader>>,
    bytes: NearCacheBytes,
}

struct CachedCopy {
    entry: Entry,
    /// The shard of its resource. PERF: a hit takes no hash of it.
    shard: Shard,
    /// The [number](Versions::now) of its read, and when that was sent.
    begun: u64,
    sent_at: Timestamp,
    is_tracked: bool,
}

impl NearCache {
    /// Creates the cache. `None` for a store of this process, whose entries are local already.
    pub(crate) fn in_front_of(store: &dyn Store, versions: Arc<Versions>, settings: NearCacheConfig) -> Option<Self> {
        let NearCacheConfig { capacity, max_age } = settings;
        let feed = Arc::new(InvalidationFeed::new(versions.clone()));
        store.is_shared().then(|| Self {
            copies: entry_cache::with_max_bytes(capacity),
            max_age,
            versions,
            reader: store.track(feed.clone(), (max_age / 3).max(Duration::from_millis(1))),
            feed,
            bytes: NearCacheBytes::default(),
        })
    }

    pub(crate) fn get(&self, key: CacheKeyRef<'_>, now: Timestamp) -> Option<Entry> {
        let copy = self.copies.get(&key)?;
        self.is_good(&copy, now).then(|| copy.entry.clone())
    }

    fn is_good(&self, copy: &CachedCopy, now: Timestamp) -> bool {
        // The confirmation is read first: see `InvalidationFeed::confirmed`.
        let confirmed = if copy.is_tracked { self.feed.confirmed().max(copy.sent_at) } else { copy.sent_at };
        now.since(confirmed) < self.max_age && self.versions.counts(copy.shard, copy.begun)
    }

    /// Reads from the store and keeps copies, with the time and the number at which the read began. If the future is
    /// dropped during the read, or if the store cannot track the read now, no copies are kept.
    pub(crate) async fn get_all(
        &self,
        store: &dyn Store,
        chain: &[CacheKey],
        meter: &Meter,
        (sent_at, begun): (Timestamp, u64),
    ) -> Result<Vec<Option<Entry>>, StoreError> {
        let TrackedRead { entries, is_tracked } = match &self.reader {
            Some(reader) => match reader.get_all(chain).await {
                Ok(tracked) => tracked,
                Err(_) => return store.get_all(chain).await,
            },
            None => TrackedRead { entries: store.get_all(chain).await?, is_tracked: false },
        };
        for (key, entry) in chain.iter().zip(&entries) {
            match entry.clone() {
                Some(entry) => {
                    self.keep(key, CachedCopy { entry, shard: Shard::from(key), begun, sent_at, is_tracked }, meter);
                }
                None => _ = self.copies.remove(key),
            }
        }
        self.bytes.set(|| self.copies.weight());
        Ok(entries)
    }

    fn keep(&self, key: &CacheKey, copy: CachedCopy, meter: &Meter) {
        if !self.is_good(&copy, Timestamp::now()) {
            return;
        }
        let copy = Arc::new(copy);
        if !entry_cache::can_keep(&self.copies, key, &copy) {
            telemetry::too_large(meter, key);
        }
        self.copies.insert(key.clone(), copy);
    }
}

impl fmt::Debug for NearCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NearCache").field("max_age", &self.max_age).finish_non_exhaustive()
    }
}

/// Gives the cache the weight of the entry.
impl Borrow<Entry> for Arc<CachedCopy> {
    fn borrow(&self) -> &Entry {
        &self.entry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{
        entry::{Kind, Meta},
        token::{Inbox, Token},
    };
    use bytes::Bytes;

    const MAX_AGE: Duration = Duration::from_secs(60);

    /// A cache whose reads a test sends.
    fn near() -> NearCache {
        let versions = Arc::<Versions>::default();
        let feed = Arc::new(InvalidationFeed::new(versions.clone()));
        let (copies, bytes) = (entry_cache::with_max_bytes(1 << 20), NearCacheBytes::default());
        NearCache { copies, max_age: MAX_AGE, versions, feed, reader: None, bytes }
    }

    fn key(n: usize) -> CacheKey {
        CacheKey::new("n", 0, format!("k{n}"))
    }

    impl NearCache {
        /// Keeps the result of a read that began at this number, and returns when it was sent.
        fn has_read(&self, key: &CacheKey, begun: u64, is_tracked: bool) -> Timestamp {
            let sent_at = Timestamp::now();
            let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), sent_at);
            let entry = Entry::new(meta, Bytes::new());
            self.keep(
                key,
                CachedCopy { entry, shard: key.into(), begun, sent_at, is_tracked },
                &Meter::new(&"n".into()),
            );
            sent_at
        }

        fn serves(&self, key: &CacheKey, now: Timestamp) -> bool {
            self.get(key.into(), now).is_some()
        }
    }

    #[test]
    fn tracked_copy_is_served_for_max_age_after_its_confirmation() {
        let near = near();
        let sent_at = near.has_read(&key(0), near.versions.now(), true);
        near.has_read(&key(1), near.versions.now(), false);
        for confirmed in [sent_at, sent_at.after(MAX_AGE / 2), sent_at.after(MAX_AGE / 4)] {
            near.feed.confirm_up_to(confirmed);
        }
        let end = sent_at.after(MAX_AGE / 2 + MAX_AGE);
        assert!(near.serves(&key(0), end.before(Duration::from_micros(1))), "confirmations may overtake each other");
        assert!(!near.serves(&key(0), end));
        assert!(!near.serves(&key(1), end.before(MAX_AGE / 4)), "its changes are not reported");
    }

    /// Seen to fail if `all_changed` does nothing.
    #[test]
    fn tracked_copy_is_not_confirmed_by_the_next_connection() {
        let near = near();
        let begun = near.versions.now();
        let sent_at = near.has_read(&key(0), begun, true);
        assert!(near.serves(&key(0), sent_at));
        let numbers = [(); 2].map(|()| near.feed.all_changed());
        assert_ne!(numbers[0], numbers[1]);
        near.feed.confirm_up_to(sent_at.after(MAX_AGE));
        assert!(!near.serves(&key(0), sent_at));
        near.has_read(&key(0), begun, true);
        assert!(!near.serves(&key(0), sent_at), "the answer over the last connection came late");
        let sent_at = near.has_read(&key(0), near.versions.now(), true);
        assert!(near.serves(&key(0), sent_at), "read over the next connection");
    }

    /// Seen to fail if each number counts.
    #[test]
    fn change_ends_the_copies_of_a_resource() {
        let near = near();
        let (begun, variant) = (near.versions.now(), key(0).to_variant("en".into()).in_layout(7));
        let sent_at = [&variant, &key(1)].map(|key| near.has_read(key, begun, false))[0];
        near.feed.changed(&key(0));
        assert!(!near.serves(&variant, sent_at) && near.serves(&key(1), sent_at));
        near.has_read(&variant, begun, false);
        assert!(!near.serves(&variant, sent_at), "its read was overtaken");
    }
}
