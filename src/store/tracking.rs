//! Tracked reads: the store sends a message when an entry that was read changes, so that a local copy can be dropped.

use super::{entry::Entry, error::Answer};
use crate::{clock::Timestamp, key::CacheKey};
use std::{
    fmt,
    hash::{BuildHasher, Hash, RandomState},
    sync::{
        Arc,
        atomic::{
            AtomicI64, AtomicU32,
            Ordering::{AcqRel, Acquire, Release},
        },
    },
};

/// A reader of entries that learns when they change. See [`Store::track`](super::Store::track).
pub trait TrackedReader: Send + Sync + 'static {
    /// Reads entries as [`Store::get_all`](super::Store::get_all) does, and returns a version for each cache key.
    ///
    /// It fails at once while it cannot track reads, for instance because a connection is being made. After an error
    /// the entries are read from the store, and no copies are kept.
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead>;
}

/// The result of a tracked read.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TrackedRead {
    /// The entries, in the order of the cache keys.
    pub entries: Vec<Option<Entry>>,
    /// The versions, in the order of the cache keys. Empty if no changes of these entries will be reported.
    pub versions: Vec<Version>,
}

impl TrackedRead {
    /// Creates the result of a read whose `versions` are as many as its `entries`, or none.
    #[must_use]
    pub const fn new(entries: Vec<Option<Entry>>, versions: Vec<Version>) -> Self {
        Self { entries, versions }
    }
}

/// The changes reported over one connection, of the entries that were read over it.
///
/// When the connection breaks, a new feed takes its place. Messages are lost from then on, so the versions of the old
/// feed are not confirmed any more.
pub struct InvalidationFeed {
    hasher: RandomState,
    /// Number of changes per shard. Names that share a shard share its changes, which costs an unnecessary read.
    shards: Box<[AtomicU32]>,
    confirmed: AtomicI64,
}

/// The version of a name: shows whether the name has changed since. Cheap to clone.
#[derive(Clone)]
pub struct Version {
    feed: Arc<InvalidationFeed>,
    shard: u32,
    changes: u32,
}

impl InvalidationFeed {
    /// Creates a feed without any changes yet.
    #[must_use]
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| AtomicU32::new(0)).collect();
        Self { hasher: RandomState::new(), shards, confirmed: AtomicI64::new(i64::MIN) }
    }

    /// Returns the current version of `name`. Call it before the read is sent, so that the version covers every change
    /// that the read may have missed.
    #[must_use]
    pub fn version(self: &Arc<Self>, name: impl Hash) -> Version {
        let shard = self.shard(name);
        let changes = self.shards[shard as usize].load(Acquire);
        Version { feed: self.clone(), shard, changes }
    }

    /// Records a change of `name`.
    pub fn changed(&self, name: impl Hash) {
        self.shards[self.shard(name) as usize].fetch_add(1, AcqRel);
    }

    /// Records a possible change of every name.
    pub fn all_changed(&self) {
        for shard in &self.shards {
            shard.fetch_add(1, AcqRel);
        }
    }

    /// Confirms that every change which the store acknowledged before `by`, to any client, has been reported to this
    /// feed.
    pub fn confirm_up_to(&self, by: Timestamp) {
        self.confirmed.fetch_max(by.as_micros(), Release);
    }

    fn shard(&self, name: impl Hash) -> u32 {
        // Less than SHARDS, so the cast does not truncate.
        (self.hasher.hash_one(name) % u64::from(SHARDS)) as u32
    }
}

impl Default for InvalidationFeed {
    fn default() -> Self {
        Self::new()
    }
}

impl Version {
    /// Returns the time up to which the name is known to be unchanged, or `None` if it has changed.
    #[must_use]
    pub fn valid_until(&self) -> Option<Timestamp> {
        // The order matters: a reader that sees a confirmation also sees every change that was recorded before it.
        let confirmed = Timestamp::from_micros(self.feed.confirmed.load(Acquire));
        let changes = self.feed.shards[self.shard as usize].load(Acquire);
        (changes == self.changes).then_some(confirmed)
    }
}

impl fmt::Debug for InvalidationFeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InvalidationFeed").field("confirmed", &self.confirmed).finish_non_exhaustive()
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Version").field("valid_until", &self.valid_until()).finish()
    }
}

/// Number of shards: 256 KiB per feed. With 50,000 copies, one change costs one other copy on average.
const SHARDS: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracking_version_is_valid_until_its_name_changes() {
        let feed = Arc::new(InvalidationFeed::new());
        let (a, b) = (feed.version("a"), feed.version("b"));
        feed.changed("a");
        assert_eq!(a.valid_until(), None);
        assert!(b.valid_until().is_some());
        assert!(feed.version("a").valid_until().is_some(), "a later read sees the change");
        feed.all_changed();
        assert_eq!(b.valid_until(), None);
    }

    #[test]
    fn tracking_version_is_valid_up_to_the_last_confirmation() {
        let (feed, at) = (Arc::new(InvalidationFeed::new()), Timestamp::from_micros);
        let version = feed.version("a");
        assert_eq!(version.valid_until(), Some(at(i64::MIN)), "nothing was confirmed yet");
        feed.confirm_up_to(at(7));
        feed.confirm_up_to(at(5));
        assert_eq!(version.valid_until(), Some(at(7)), "confirmations may overtake each other");
    }
}
