//! The embedded store: entries and leases of one process.

#[cfg(feature = "testing")]
mod scripted;

use super::{
    entry::{Entry, Kind},
    entry_cache::{self, EntryCache},
    error::Answer,
    lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves, MARKED_FOR},
    port::{FillCondition, RedirectExtension, Store, Write},
    token::Token,
    wake::{Listener, WakeRegistry},
};
use crate::{
    clock::Timestamp,
    key::{CacheKey, CacheKeyRef},
    sync::mutex::{Mutex, MutexGuard},
};
use bytes::Bytes;
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    future::ready,
    hash::{BuildHasher, RandomState},
    mem,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// A store within the process, bounded by bytes, with the same leases as over Redis.
///
/// All guards that use one store share its entries: pass an `Arc<MemoryStore>` to each of them.
///
/// ```
/// use stampede_guard::{MemoryStore, StampedeGuard};
///
/// let guard = StampedeGuard::new(MemoryStore::with_max_bytes(8 << 20));
/// ```
///
/// # Defaults
///
/// 64 MiB, counting payloads, keys and 256 bytes of bookkeeping per entry. The least used entries are evicted first.
///
/// The store consists of shards: one per 8 MiB of its capacity, rounded down to a power of two, at most 32. It keeps
/// entries that fit a shard: up to 7 MiB, or up to 0.97 of a smaller capacity. For larger ones a capacity of 33
/// times their size is enough. An entry that cannot be kept is counted
/// ([`Stats::too_large`](crate::Stats::too_large)), and a marker takes its place for `uncacheable_ttl`: concurrent
/// requests share a fetch.
pub struct MemoryStore {
    entries: EntryCache<Entry>,
    /// The layouts of entries so far, so that an invalidation can drop a resource in each of them. A process has few.
    layouts: Mutex<BTreeSet<u64>>,
    leases: Leases,
    wakes: WakeRegistry,
}

/// The lease tables, with a lock each, so that leaders of different keys seldom wait for each other.
#[derive(Default)]
struct Leases {
    hasher: RandomState,
    shards: [Mutex<Shard>; SHARDS],
    last_stamp: AtomicU64,
}

#[derive(Default)]
struct Shard {
    table: HashMap<CacheKey, Held>,
    /// Size at which the table is next swept of expired leases.
    sweep_at: usize,
}

/// A lease or a failure marker, until it expires.
struct Held {
    /// Until then no other caller leads.
    blocks_until: Timestamp,
    until: Timestamp,
    failures: u32,
    what: LeaseSlot,
}

enum LeaseSlot {
    /// A lease that is marked has ended before, and is taken at its next end.
    Lease {
        lease: Lease,
        is_marked: bool,
    },
    FailureMarker(Bytes),
}

impl MemoryStore {
    /// Creates a store of at most `capacity` bytes. A store of zero bytes keeps no entries, but still grants leases.
    #[must_use]
    pub fn with_max_bytes(capacity: u64) -> Self {
        Self {
            entries: entry_cache::with_max_bytes(capacity),
            layouts: Mutex::default(),
            leases: Leases::default(),
            wakes: WakeRegistry::new(),
        }
    }

    /// Returns the entry if it is still retained.
    pub(crate) fn read(&self, key: &CacheKey, now: Timestamp) -> Option<Entry> {
        let entry = self.entries.get(key)?;
        if entry.is_retained(now) {
            return Some(entry);
        }
        self.entries.remove_if(key, |stored| !stored.is_retained(now));
        None
    }

    pub(crate) fn get_or_lease_now(&self, key: &CacheKey, request: LeaseRequest, now: Timestamp) -> LeaseReply {
        let mut leases = self.leases.of(key);
        let entry = self.read(key, now);
        let seen_alive = match entry {
            Some(entry) if Some(entry.meta().id) != request.seen => return LeaseReply::Hit(entry),
            entry => entry.is_some(),
        };
        let resource = key.without_layout();
        let failures = match leases.table.get_mut(&resource).filter(|held| now < held.until) {
            Some(held) => match held.what {
                LeaseSlot::Lease { lease, .. } if lease.token == request.token => {
                    return LeaseReply::Granted { lease, seen_alive, failures: held.failures };
                }
                LeaseSlot::Lease { lease: holder, ref mut is_marked } => {
                    if now >= held.blocks_until && !mem::replace(is_marked, true) {
                        held.set_end(now.after(MARKED_FOR));
                    }
                    if now < held.blocks_until {
                        let remaining = held.blocks_until.since(now);
                        return LeaseReply::Wait { remaining, holder, waiting: 0, registered: true, seen_alive };
                    }
                    0
                }
                LeaseSlot::FailureMarker(ref report) if now < held.blocks_until => {
                    let (retry_in, report) = (held.blocks_until.since(now), report.clone());
                    return LeaseReply::Failed { retry_in, report, seen_alive };
                }
                LeaseSlot::FailureMarker(_) => held.failures,
            },
            None => 0,
        };
        let lease = self.grant(&mut leases, resource, request, failures, now);
        LeaseReply::Granted { lease, seen_alive, failures }
    }

    fn grant(
        &self,
        leases: &mut Shard,
        resource: CacheKey,
        request: LeaseRequest,
        failures: u32,
        now: Timestamp,
    ) -> Lease {
        let lease = Lease { token: request.token, stamp: self.leases.stamp(now), name: 0 };
        let blocks_until = now.after(request.lease);
        let (until, what) = (blocks_until.after(request.kept_for), LeaseSlot::Lease { lease, is_marked: false });
        leases.put(resource, Held { blocks_until, until, failures, what }, now);
        lease
    }

    pub(crate) fn fill_now(
        &self,
        key: &CacheKey,
        condition: FillCondition,
        writes: Vec<Write>,
        now: Timestamp,
    ) -> FillOutcome {
        let mut leases = self.leases.of(key);
        let entitled = match condition {
            FillCondition::Lease(lease) => leases.lease(key, now).is_some_and(|(held, _)| held == lease),
            FillCondition::ReplaceMarker(marker) => self.read(key, now).is_some_and(|entry| entry.meta().id == marker),
        };
        if !entitled {
            let is_stored =
                |write: &Write| self.read(&write.key, now).is_some_and(|e| e.meta().id == write.entry.meta().id);
            return if writes.iter().any(is_stored) { FillOutcome::Stored } else { FillOutcome::Fenced };
        }
        // The entry of the cache key itself comes last, because it makes the other entries reachable.
        let mut extended = Vec::new();
        for Write { key, entry, extensions, .. } in writes.into_iter().rev() {
            self.layouts.lock().insert(key.layout());
            self.entries.insert(key, entry);
            extended.extend(extensions);
        }
        leases.table.remove(&key.without_layout());
        drop(leases);
        extended.iter().for_each(|extension| self.extend_redirect(extension, now));
        self.wakes.wake(key.hash());
        FillOutcome::Stored
    }

    /// Keeps a redirect entry for longer, if it is still stored. An invalidation holds the same lock while it drops the
    /// entry, so the entry is not restored after that.
    fn extend_redirect(&self, extension: &RedirectExtension, now: Timestamp) {
        let RedirectExtension { key, id, retention } = extension;
        let _leases = self.leases.of(key);
        if let Some(entry) = self.read(key, now).filter(|entry| entry.meta().id == *id)
            && !entry.is_retained(now.after(*retention))
        {
            let mut meta = *entry.meta();
            meta.lifetimes.fresh_for = entry.age(now).saturating_add(*retention);
            self.entries.insert(key.clone(), Entry::new(meta, entry.payload().clone()));
        }
    }

    pub(crate) fn release_now(
        &self,
        key: &CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
        now: Timestamp,
    ) -> LeaseStatus {
        let mut leases = self.leases.of(key);
        let failures = match leases.lease(key, now) {
            Some((lease, Held { failures, .. })) if lease.token == token => *failures,
            _ => return LeaseStatus::Lost,
        };
        let resource = key.without_layout();
        leases.table.remove(&resource);
        if let Some(FailureMarker { blocks_for, remembered_for, report }) = failure_marker {
            let blocks_until = now.after(blocks_for);
            let (until, what) = (blocks_until.after(remembered_for), LeaseSlot::FailureMarker(report));
            leases.put(resource, Held { blocks_until, until, failures: failures.saturating_add(1), what }, now);
        }
        drop(leases);
        self.wakes.wake(key.hash());
        LeaseStatus::Held
    }

    pub(crate) fn extend_now(&self, key: &CacheKey, lease: Lease, span: Duration, now: Timestamp) -> LeaseStatus {
        match self.leases.of(key).lease(key, now) {
            Some((kept, held)) if kept == lease => {
                held.set_end(now.after(span));
                held.what = LeaseSlot::Lease { lease, is_marked: false };
                LeaseStatus::Held
            }
            _ => LeaseStatus::Lost,
        }
    }

    /// Drops entries and lease, and grants the lease to the request of a put.
    pub(crate) fn invalidate_now(&self, key: &CacheKey, leaves: Leaves, now: Timestamp) -> Option<Lease> {
        let mut leases = self.leases.of(key);
        leases.table.remove(&key.without_layout());
        // A fill that adds a layout holds the lease table too.
        for layout in &*self.layouts.lock() {
            let key = key.in_layout(*layout);
            match matches!(leaves, Leaves::StaleValues).then(|| self.entries.get(&key)).flatten() {
                Some(entry) if entry.has_expired() => {}
                Some(entry) if entry.meta().kind == Kind::Value => self.entries.insert(key, entry.expired(now)),
                _ => _ = self.entries.remove(&key),
            }
        }
        let lease = match leaves {
            Leaves::Lease(request) => Some(self.grant(&mut leases, key.without_layout(), request, 0, now)),
            Leaves::Nothing | Leaves::StaleValues => None,
        };
        drop(leases);
        self.wakes.invalidated(key.hash());
        lease
    }
}

impl Held {
    /// Moves the end of a lease, and keeps it for as long after that as before.
    fn set_end(&mut self, end: Timestamp) {
        let kept_for = self.until.since(self.blocks_until);
        (self.blocks_until, self.until) = (end, end.after(kept_for));
    }
}

impl Leases {
    /// Locks the table with the lease of the resource: the same one for every layout.
    fn of(&self, key: &CacheKey) -> MutexGuard<'_, Shard> {
        self.shards[self.hasher.hash_one(key) as usize % SHARDS].lock()
    }

    /// Returns the time in microseconds, but never the same stamp twice.
    fn stamp(&self, now: Timestamp) -> u64 {
        let now = u64::try_from(now.as_micros()).unwrap_or(0);
        let after = |last: u64| now.max(last + 1);
        self.last_stamp.fetch_update(Relaxed, Relaxed, |last| Some(after(last))).map_or(now, after)
    }
}

impl Shard {
    /// Returns the lease that is kept, also one that has ended, and its place in the table.
    fn lease(&mut self, key: &CacheKey, now: Timestamp) -> Option<(Lease, &mut Held)> {
        let held = self.table.get_mut(&key.without_layout()).filter(|held| now < held.until)?;
        match held.what {
            LeaseSlot::Lease { lease, .. } => Some((lease, held)),
            LeaseSlot::FailureMarker(_) => None,
        }
    }

    /// Inserts a lease or failure marker. Sweeps expired ones when the table has doubled, which costs constant time per
    /// lease. Without it, leases that were never released and markers of keys that are not requested again would pile
    /// up.
    fn put(&mut self, key: CacheKey, held: Held, now: Timestamp) {
        if self.table.len() >= self.sweep_at {
            self.table.retain(|_, held| now < held.until);
            self.sweep_at = (2 * self.table.len()).max(64);
        }
        self.table.insert(key, held);
    }
}

impl Store for MemoryStore {
    /// Returns the entry even past its retention: its reader checks the age anyway. PERF: reading the clock costs as
    /// much as the lookup.
    fn peek(&self, key: CacheKeyRef<'_>) -> Option<Entry> {
        self.entries.get(&key)
    }

    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        Box::pin(ready(Ok(self.read(key, Timestamp::now()))))
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        Box::pin(ready(Ok(self.get_or_lease_now(key, request, Timestamp::now()))))
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        Box::pin(ready(Ok(self.fill_now(key, condition, writes, Timestamp::now()))))
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        Box::pin(ready(Ok(self.release_now(key, token, failure_marker, Timestamp::now()))))
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        Box::pin(ready(Ok(self.extend_now(key, lease, span, Timestamp::now()))))
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        let leases = keys.iter().map(|key| self.invalidate_now(key, leaves, Timestamp::now()));
        Box::pin(ready(Ok(leases.fold(None, |_, lease| lease))))
    }

    fn can_keep(&self, key: &CacheKey, entry: &Entry) -> bool {
        entry_cache::can_keep(&self.entries, key, entry)
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.wakes.listen(key)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::with_max_bytes(64 << 20)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("entries", &self.entries.len())
            .field("bytes", &self.entries.weight())
            .field("capacity", &self.entries.capacity())
            .finish_non_exhaustive()
    }
}

/// More than most machines have cores.
const SHARDS: usize = 32;
