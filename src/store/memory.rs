//! The embedded store: entries and leases of one process.

#[cfg(feature = "testing")]
mod scripted;

use super::{
    Address, Answer, Ask, Entry, Filled, Hold, Lead, Lease, Listener, Right, Store, Timestamp, Token, Tombstone, Wakes,
    Write,
};
use crate::entry::expected_within;
use quick_cache::{Weighter, sync::Cache};
use std::{
    borrow::Cow,
    collections::HashMap,
    fmt,
    future::ready,
    hash::{BuildHasher, RandomState},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A cache within the process, bounded by bytes, with the same leases as over Redis: what a guard has without one.
///
/// Everything that shares it shares its entries, so `Arc<MemoryStore>` can stand behind several guards.
///
/// ```
/// use stampede_guard::{MemoryStore, StampedeGuard};
///
/// let guard = StampedeGuard::new(MemoryStore::bytes(8 << 20));
/// ```
///
/// # Defaults
///
/// 64 MiB, payloads and keys and 256 bytes of bookkeeping per entry counted. What is used least goes first; an entry
/// larger than the whole is not kept.
pub struct MemoryStore {
    entries: Cache<Address, Entry, Weight>,
    leases: Leases,
    wakes: Wakes,
}

/// Tables that are locked each on its own, so that those who lead on different keys seldom wait for one another.
#[derive(Default)]
struct Leases {
    hasher: RandomState,
    shelves: [Mutex<Shelf>; SHELVES],
    last_stamp: AtomicU64,
}

#[derive(Default)]
struct Shelf {
    table: HashMap<Address, Held>,
    /// The table is swept of what has expired when it grows to this size.
    sweep_at: usize,
}

/// What stands in the place of a lease until it expires.
struct Held {
    until: Timestamp,
    fails: u32,
    what: What,
}

enum What {
    Lease(Lease),
    Tombstone { blocks_until: Timestamp, code: u16 },
}

impl MemoryStore {
    /// A store of at most that many bytes.
    #[must_use]
    pub fn bytes(capacity: u64) -> Self {
        Self {
            entries: Cache::with_weighter(expected_within(capacity), capacity, Weight),
            leases: Leases::default(),
            wakes: Wakes::new(),
        }
    }

    /// The entry, if it is still retained.
    pub(crate) fn read(&self, at: &Address, now: Timestamp) -> Option<Entry> {
        let entry = self.entries.get(at)?;
        if entry.is_retained(now) {
            return Some(entry);
        }
        self.entries.remove_if(at, |stored| !stored.is_retained(now));
        None
    }

    pub(crate) fn lead_now(&self, at: &Address, ask: Ask, now: Timestamp) -> Lead {
        let mut leases = self.leases.of(at);
        let entry = self.read(at, now);
        let seen_alive = match entry {
            Some(entry) if Some(entry.meta().id) != ask.seen => return Lead::Hit(entry),
            entry => entry.is_some(),
        };
        let resource = of_every_schema(at);
        let fails = match leases.table.get(&*resource) {
            Some(held) if now < held.until => match held.what {
                What::Lease(lease) if lease.token == ask.token => return Lead::Granted { lease, seen_alive },
                What::Lease(lease) => {
                    let remaining = held.until.since(now);
                    return Lead::Wait { remaining, holder: lease.token, waiting: 0, registered: true, seen_alive };
                }
                What::Tombstone { blocks_until, code } if now < blocks_until => {
                    return Lead::Failed { retry_in: blocks_until.since(now), code, seen_alive };
                }
                What::Tombstone { .. } => held.fails,
            },
            _ => 0,
        };
        let lease = Lease { token: ask.token, stamp: self.leases.stamp(now) };
        leases.put(resource.into_owned(), Held { until: now.after(ask.lease), fails, what: What::Lease(lease) }, now);
        Lead::Granted { lease, seen_alive }
    }

    pub(crate) fn fill_now(&self, at: &Address, right: Right, writes: Vec<Write>, now: Timestamp) -> Filled {
        let mut leases = self.leases.of(at);
        let entitled = match right {
            Right::Lease(lease) => leases.owner(at, now) == Some(lease),
            Right::Promote(marker) => self.read(at, now).is_some_and(|entry| entry.meta().id == marker),
        };
        if !entitled {
            let landed_before =
                |write: &Write| self.read(&write.at, now).is_some_and(|e| e.meta().id == write.entry.meta().id);
            return if writes.iter().any(landed_before) { Filled::Stored } else { Filled::Fenced };
        }
        // The entry of the address comes last: it makes the others reachable.
        for Write { at, entry } in writes.into_iter().rev() {
            self.entries.insert(at, entry);
        }
        leases.table.remove(&*of_every_schema(at));
        drop(leases);
        self.wakes.wake(at.hash());
        Filled::Stored
    }

    pub(crate) fn abandon_now(&self, at: &Address, token: Token, tombstone: Option<Tombstone>, now: Timestamp) -> Hold {
        let resource = of_every_schema(at);
        let mut leases = self.leases.of(at);
        let fails = match leases.table.get(&*resource) {
            Some(Held { until, fails, what: What::Lease(lease) }) if lease.token == token && now < *until => *fails,
            _ => return Hold::Lost,
        };
        leases.table.remove(&*resource);
        if let Some(Tombstone { first, most, code }) = tombstone {
            let blocks_until = now.after(first.saturating_mul(1 << fails.min(8)).min(most));
            let what = What::Tombstone { blocks_until, code };
            leases.put(resource.into_owned(), Held { until: blocks_until.after(most), fails: fails + 1, what }, now);
        }
        drop(leases);
        self.wakes.wake(at.hash());
        Hold::Held
    }

    pub(crate) fn extend_now(&self, at: &Address, lease: Lease, span: Duration, now: Timestamp) -> Hold {
        let mut leases = self.leases.of(at);
        if leases.owner(at, now) != Some(lease) {
            return Hold::Lost;
        }
        if let Some(held) = leases.table.get_mut(&*of_every_schema(at)) {
            held.until = now.after(span);
        }
        Hold::Held
    }

    pub(crate) fn invalidate_now(&self, at: &Address) {
        let mut leases = self.leases.of(at);
        leases.table.remove(&*of_every_schema(at));
        for schema in at.neighbours() {
            self.entries.remove(&at.in_schema(schema));
        }
        drop(leases);
        self.wakes.gone(at.hash());
    }
}

impl Leases {
    /// Where the lease of that resource is: the same for every schema.
    fn of(&self, at: &Address) -> MutexGuard<'_, Shelf> {
        lock(&self.shelves[self.hasher.hash_one(at) as usize % SHELVES])
    }

    /// The time, but never the same twice.
    fn stamp(&self, now: Timestamp) -> u64 {
        let now = u64::try_from(now.as_micros()).unwrap_or(0);
        let after = |last: u64| now.max(last + 1);
        self.last_stamp.fetch_update(Relaxed, Relaxed, |last| Some(after(last))).map_or(now, after)
    }

    /// One after the other: whoever asks meanwhile is on one that was seen, or on one that will be.
    fn each(&self) -> impl Iterator<Item = MutexGuard<'_, Shelf>> {
        self.shelves.iter().map(lock)
    }
}

/// No lease code panics while it holds the lock.
fn lock(shelf: &Mutex<Shelf>) -> MutexGuard<'_, Shelf> {
    shelf.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shelf {
    fn owner(&self, at: &Address, now: Timestamp) -> Option<Lease> {
        match self.table.get(&*of_every_schema(at)) {
            Some(Held { until, what: What::Lease(lease), .. }) if now < *until => Some(*lease),
            _ => None,
        }
    }

    /// Leases that nobody gave back and tombstones of keys that nobody asks for again would pile up: sweeping at each
    /// doubling costs a constant time per lease.
    fn put(&mut self, at: Address, held: Held, now: Timestamp) {
        if self.table.len() >= self.sweep_at {
            self.table.retain(|_, held| now < held.until);
            self.sweep_at = (2 * self.table.len()).max(64);
        }
        self.table.insert(at, held);
    }
}

/// Leases are shared between schemas.
fn of_every_schema(at: &Address) -> Cow<'_, Address> {
    if at.schema() == 0 { Cow::Borrowed(at) } else { Cow::Owned(at.in_schema(0)) }
}

impl Store for MemoryStore {
    /// Also past its retention: those who peek go by its age anyhow, and the clock costs as much as the lookup.
    fn peek(&self, at: &Address) -> Option<Entry> {
        self.entries.get(at)
    }

    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        Box::pin(ready(Ok(self.read(at, Timestamp::now()))))
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        Box::pin(ready(Ok(self.lead_now(at, ask, Timestamp::now()))))
    }

    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        Box::pin(ready(Ok(self.fill_now(at, right, writes, Timestamp::now()))))
    }

    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold> {
        Box::pin(ready(Ok(self.abandon_now(at, token, tombstone, Timestamp::now()))))
    }

    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold> {
        Box::pin(ready(Ok(self.extend_now(at, lease, span, Timestamp::now()))))
    }

    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()> {
        self.invalidate_now(at);
        Box::pin(ready(Ok(())))
    }

    fn is_shared(&self) -> bool {
        false
    }

    fn listen(&self, at: &Address) -> Listener {
        self.wakes.listen(at)
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::bytes(64 << 20)
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("entries", &self.entries.len())
            .field("bytes", &self.entries.weight())
            .field("capacity", &self.entries.capacity())
            .field("leases", &self.leases.each().map(|shelf| shelf.table.len()).sum::<usize>())
            .finish()
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Address, Entry> for Weight {
    fn weight(&self, at: &Address, entry: &Entry) -> u64 {
        entry.weight(at)
    }
}

/// More than there are cores on most machines.
const SHELVES: usize = 32;
