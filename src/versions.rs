//! Shows whether a resource was invalidated since a read or a fetch began: numbers that only grow.
//!
//! Each read and each fetch takes a number before it is sent. An invalidation takes a higher number, after the store
//! has answered and before its caller hears of it; also if the store has not answered. So the result of a read counts
//! only if no invalidation of its resource has a higher number.
//!
//! Resources that share a shard share its number. A shared shard costs a lookup and never hides an invalidation.
//!
//! All engines of a process count with one counter, because they may share the reads of one store. Which resources were
//! invalidated is a matter of each engine.

use crate::{clock, key::CacheKey};
use std::{
    fmt,
    sync::{
        OnceLock,
        atomic::{
            AtomicU64,
            Ordering::{AcqRel, Acquire},
        },
    },
    time::Duration,
};
use tokio::time::Instant;
use xxhash_rust::xxh3::xxh3_64;

/// The numbers of one engine.
pub(crate) struct Versions {
    /// The counter that all engines of this process share.
    now: &'static AtomicU64,
    /// The number of the last invalidation of everything.
    floor: AtomicU64,
    /// The number of the last invalidation in each shard. A page is made with its first invalidation, because most
    /// processes invalidate little.
    pages: [OnceLock<Box<Page>>; PAGES],
}

/// The numbers of some shards: 4 KiB.
type Page = [AtomicU64; PAGE];

/// A part of all resources. All variants, layouts and qualifiers of a resource are in one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard(u16);

impl Versions {
    /// Returns the number at which something begins. Call it before the read or the fetch is sent.
    pub(crate) fn now(&self) -> u64 {
        self.now.load(Acquire)
    }

    /// Records that the resource has changed: what began before does not count any more. Call it after the store has
    /// answered, or has failed to answer.
    pub(crate) fn bump(&self, resource: impl Into<Shard>) {
        self.record(resource.into(), self.next());
    }

    /// Records that every resource may have changed. Returns the number from which on results count again.
    pub(crate) fn bump_all(&self) -> u64 {
        let floor = self.next();
        self.floor.fetch_max(floor, AcqRel);
        floor
    }

    /// Reports whether what began at this number counts: the resource was not invalidated since.
    pub(crate) fn counts(&self, resource: impl Into<Shard>, begun: u64) -> bool {
        self.last(resource.into()) <= begun && self.floor.load(Acquire) <= begun
    }

    /// Takes the number of an event. What begins afterwards has this number at least.
    pub(crate) fn next(&self) -> u64 {
        self.now.fetch_add(1, AcqRel) + 1
    }

    /// Records the number of an invalidation. Two invalidations may come here in another order than their numbers.
    fn record(&self, Shard(shard): Shard, number: u64) {
        let (page, at) = position(shard);
        let page = self.pages[page].get_or_init(|| Box::new([const { AtomicU64::new(0) }; PAGE]));
        page[at].fetch_max(number, AcqRel);
    }

    /// Returns the number of the last invalidation in the shard.
    fn last(&self, Shard(shard): Shard) -> u64 {
        let (page, at) = position(shard);
        self.pages[page].get().map_or(0, |page| page[at].load(Acquire))
    }
}

impl Default for Versions {
    fn default() -> Self {
        Self { now: &NOW, floor: AtomicU64::new(0), pages: [const { OnceLock::new() }; PAGES] }
    }
}

impl fmt::Debug for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Versions").field("now", &self.now).field("floor", &self.floor).finish_non_exhaustive()
    }
}

impl Shard {
    /// Returns the shard of a resource by its [name](CacheKey::write_resource), which the names of its entries and of
    /// its lease have between braces.
    pub(crate) fn of_resource(name: &[u8]) -> Self {
        // The highest bits of the hash, so the cast does not truncate.
        Self((xxh3_64(name) >> (u64::BITS - u16::BITS)) as u16)
    }
}

impl From<&CacheKey> for Shard {
    fn from(key: &CacheKey) -> Self {
        let mut name = String::new();
        key.write_resource(&mut name);
        Self::of_resource(name.as_bytes())
    }
}

/// The terms on which a caller joins a read that was sent already: the resource was not invalidated since the read
/// began, and the read is younger than the caller's `store_timeout`.
#[derive(Clone, Copy, Debug)]
pub struct ReadTerms<'a> {
    versions: &'a Versions,
    max_age: Duration,
}

impl<'a> ReadTerms<'a> {
    pub(crate) fn new(versions: &'a Versions, max_age: Duration) -> Self {
        Self { versions, max_age }
    }

    /// Returns the number at which a read begins.
    pub(crate) fn now(self) -> u64 {
        self.versions.now()
    }

    /// Reports whether the caller may join the read that began at this number and was sent at this time.
    pub(crate) fn allow(self, resource: Shard, begun: u64, sent_at: Instant) -> bool {
        self.versions.counts(resource, begun) && clock::now().saturating_duration_since(sent_at) < self.max_age
    }
}

/// Returns the page of a shard, and its place there.
fn position(shard: u16) -> (usize, usize) {
    (usize::from(shard) / PAGE, usize::from(shard) % PAGE)
}

/// The number of the last event of any engine of this process. Not 0, which is the number of what has not begun.
static NOW: AtomicU64 = AtomicU64::new(1);
/// Number of shards in a page.
const PAGE: usize = 512;
/// Number of pages, for 65,536 shards: 512 KiB at most. With 50,000 names, one change ends one other on average.
const PAGES: usize = (1 << u16::BITS) / PAGE;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        key::Key,
        sync::schedules::{self, explore},
    };
    use proptest::prelude::*;
    use shuttle::thread;
    use std::sync::Arc;

    fn key(n: usize) -> CacheKey {
        CacheKey::new("n", 0, format!("k{n}"))
    }

    #[test]
    fn versions_count_until_the_resource_changes() {
        let versions = Versions::default();
        let begun = versions.now();
        versions.bump(&key(1));
        assert!(versions.counts(&key(0), begun) && !versions.counts(&key(1), begun));
        assert!(versions.counts(&key(1), versions.now()), "what begins after the change counts");
        versions.bump_all();
        assert!(!versions.counts(&key(0), begun), "all resources have changed");
        assert!(versions.counts(&key(0), versions.now()) && versions.counts(&key(1), versions.now()));
    }

    /// Seen to fail with `store` in the place of `fetch_max`.
    #[test]
    fn versions_only_grow_if_invalidations_overtake_each_other() {
        let versions = Versions::default();
        let (first, second) = (versions.next(), versions.next());
        versions.record(Shard::from(&key(0)), second);
        versions.record(Shard::from(&key(0)), first);
        assert!(!versions.counts(&key(0), first) && versions.counts(&key(0), second));
    }

    #[test]
    fn shard_is_shared_by_variants_layouts_and_qualifiers() {
        let shard = Shard::from(&key(0));
        assert_eq!(Shard::from(&CacheKey::new("n", 3, Key::from("k0").variant("en"))), shard);
        #[cfg(feature = "http")]
        assert_eq!(Shard::from(&CacheKey::new("n", 0, Key::qualified("k0", crate::key::Qualifier::Any))), shard);
        assert_ne!(Shard::from(&CacheKey::new("m", 0, "k0")), shard);
    }

    #[test]
    fn shards_take_even_parts_of_the_resources() {
        let mut pages = [0; PAGES];
        (0..100 * PAGES).for_each(|n| pages[position(Shard::from(&key(n)).0).0] += 1);
        assert!(pages.iter().all(|names| (50..200).contains(names)), "{pages:?}");
    }

    /// Something that began for a resource, and whether it was invalidated since.
    type Begun = (usize, u64, bool);

    proptest! {
        /// Seen to fail if `bump` or `bump_all` does nothing, and with `<` in the place of `<=`.
        #[test]
        fn versions_hide_no_invalidation(steps in proptest::collection::vec((0..3_u8, 0..4_usize), 0..64)) {
            let (versions, mut begun) = (Versions::default(), Vec::<Begun>::new());
            for (step, resource) in steps {
                match step {
                    0 => begun.push((resource, versions.now(), false)),
                    1 => {
                        versions.bump(&key(resource));
                        begun.iter_mut().for_each(|(of, _, is_over)| *is_over |= *of == resource);
                    }
                    _ => {
                        versions.bump_all();
                        begun.iter_mut().for_each(|(_, _, is_over)| *is_over = true);
                    }
                }
                for (resource, begun, is_over) in &begun {
                    prop_assert_eq!(versions.counts(&key(*resource), *begun), !is_over);
                }
            }
        }
    }

    /// Reads a store and keeps what it has found, beside an invalidation.
    ///
    /// Seen to fail if the number is taken after the read, and if the bump comes before the store has answered.
    #[test]
    fn read_that_an_invalidation_has_overtaken_does_not_count() {
        explore(|| {
            let (versions, store) = (Arc::new(Versions::default()), Arc::new(schedules::Mutex::new("old")));
            let reads = [(); 2].map(|()| {
                let (versions, store) = (versions.clone(), store.clone());
                thread::spawn(move || {
                    let begun = versions.now();
                    let found = *store.lock().unwrap();
                    (begun, found)
                })
            });
            *store.lock().unwrap() = "new";
            versions.bump(&key(0));
            for (begun, found) in reads.map(|read| read.join().unwrap()) {
                assert!(found == "new" || !versions.counts(&key(0), begun));
            }
        });
    }
}
