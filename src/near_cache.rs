//! The near cache: copies of entries that this process has read.
//!
//! A copy is served while it is fresh, no change was reported since its read was sent, and it was confirmed less than
//! `max_age` ago. A copy is confirmed by its read, and whenever the store confirms that no message was lost. If the
//! store reports no changes, `max_age` since the read is the only bound.

pub(crate) mod config;

use crate::{
    clock::Timestamp,
    key::{CacheKey, CacheKeyRef},
    store::{
        entry::Entry,
        entry_cache::{self, EntryCache},
        error::StoreError,
        port::Store,
        tracking::{InvalidationFeed, TrackedRead, TrackedReader, Version},
    },
    sync::mutex::Mutex,
    telemetry::{self, Meter, NearCacheBytes},
};
use config::NearCacheConfig;
use std::{
    borrow::Borrow,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

pub(crate) struct NearCache {
    copies: EntryCache<Arc<CachedCopy>>,
    max_age: Duration,
    /// Changes made by this process itself. The store's messages about them arrive later.
    from_process: Arc<InvalidationFeed>,
    reader: Option<Arc<dyn TrackedReader>>,
    bytes: NearCacheBytes,
}

struct CachedCopy {
    entry: Entry,
    sent_at: Timestamp,
    from_process: Version,
    from_store: Option<Version>,
}

impl CachedCopy {
    fn is_good(&self, now: Timestamp, max_age: Duration) -> bool {
        let confirmed = match &self.from_store {
            Some(version) => version.valid_until(),
            None => Some(self.sent_at),
        };
        let is_recent = |confirmed: Timestamp| now.since(confirmed.max(self.sent_at)) < max_age;
        confirmed.is_some_and(is_recent) && self.from_process.valid_until().is_some()
    }
}

impl NearCache {
    /// Creates the cache. `None` for a store of this process, whose entries are local already.
    pub(crate) fn in_front_of(store: &dyn Store, settings: NearCacheConfig) -> Option<Self> {
        let NearCacheConfig { capacity, max_age } = settings;
        store.is_shared().then(|| Self {
            copies: entry_cache::with_max_bytes(capacity),
            max_age,
            from_process: Arc::new(InvalidationFeed::new()),
            reader: store.track((max_age / 3).max(Duration::from_millis(1))),
            bytes: NearCacheBytes::default(),
        })
    }

    pub(crate) fn get(&self, key: CacheKeyRef<'_>, now: Timestamp) -> Option<Entry> {
        let copy = self.copies.get(&key)?;
        copy.is_good(now, self.max_age).then(|| copy.entry.clone())
    }

    /// Reads from the store and keeps copies. If the future is dropped during the read, or if the store cannot track
    /// the read now, no copies are kept.
    pub(crate) async fn get_all(
        &self,
        store: &dyn Store,
        chain: &[CacheKey],
        meter: &Meter,
    ) -> Result<Vec<Option<Entry>>, StoreError> {
        let sent_at = Timestamp::now();
        let from_process: Vec<_> = chain.iter().map(|key| self.from_process.version(key)).collect();
        let TrackedRead { entries, versions } = match &self.reader {
            Some(reader) => match reader.get_all(chain).await {
                Ok(tracked) => tracked,
                Err(_) => return store.get_all(chain).await,
            },
            None => TrackedRead { entries: store.get_all(chain).await?, versions: Vec::new() },
        };
        let mut versions = versions.into_iter();
        for ((key, entry), from_process) in chain.iter().zip(&entries).zip(from_process) {
            let from_store = versions.next();
            match entry.clone().map(|entry| CachedCopy { entry, sent_at, from_process, from_store }) {
                Some(copy) => self.keep(key, copy, meter),
                None => _ = self.copies.remove(key),
            }
        }
        self.bytes.set(|| self.copies.weight());
        Ok(entries)
    }

    /// Drops the copies, in all layouts. Reads in flight will not become copies.
    pub(crate) fn forget(&self, key: &CacheKey) {
        self.from_process.changed(key);
        if self.copies.remove(key).is_some() {
            self.bytes.set(|| self.copies.weight());
        }
    }

    fn keep(&self, key: &CacheKey, copy: CachedCopy, meter: &Meter) {
        if !copy.is_good(Timestamp::now(), self.max_age) {
            return;
        }
        let copy = Arc::new(copy);
        if !entry_cache::can_keep(&self.copies, key, &copy) {
            telemetry::too_large(meter, key);
        }
        self.copies.insert(key.clone(), copy);
    }
}

/// The near caches of one engine. A change by one clone ends the copies of all clones.
#[derive(Default)]
pub(crate) struct NearCaches(Mutex<Vec<Weak<NearCache>>>);

impl NearCaches {
    pub(crate) fn add(&self, near: &Arc<NearCache>) {
        let mut caches = self.0.lock();
        caches.retain(|near| near.strong_count() > 0);
        caches.push(Arc::downgrade(near));
    }

    pub(crate) fn forget(&self, key: &CacheKey) {
        for near in self.0.lock().iter().filter_map(Weak::upgrade) {
            near.forget(key);
        }
    }
}

impl fmt::Debug for NearCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NearCache")
            .field("copies", &self.copies.len())
            .field("bytes", &self.copies.weight())
            .field("capacity", &self.copies.capacity())
            .field("max_age", &self.max_age)
            .field("is_tracked", &self.reader.is_some())
            .finish()
    }
}

/// Gives the cache the weight of the entry.
impl Borrow<Entry> for Arc<CachedCopy> {
    fn borrow(&self) -> &Entry {
        &self.entry
    }
}
