//! Tracked reads: the store sends a message when an entry that was read changes, so that a local copy can be dropped.

use super::{entry::Entry, error::Answer};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    versions::{Shard, Versions},
};
use std::sync::{
    Arc,
    atomic::{
        AtomicI64,
        Ordering::{Acquire, Release},
    },
};

/// A reader of entries that learns when they change. See [`Store::track`](super::Store::track).
pub trait TrackedReader: Send + Sync + 'static {
    /// Reads entries as [`Store::get_all`](super::Store::get_all) does.
    ///
    /// It fails at once while it cannot track reads, for instance because a connection is being made. After an error
    /// the entries are read from the store, and no copies are kept.
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead>;
}

/// The result of a tracked read.
#[derive(Clone, Debug, Default)]
pub struct TrackedRead {
    /// The entries, in the order of the cache keys.
    pub entries: Vec<Option<Entry>>,
    /// Whether changes of these entries will be reported to the feed.
    pub is_tracked: bool,
}

/// The changes that a store reports to one near cache, of the entries that were read through its
/// [reader](TrackedReader).
///
/// Messages are lost when a connection ends. Then the store reports that [all have changed](Self::all_changed), before
/// it confirms anything over the next one.
#[derive(Debug)]
pub struct InvalidationFeed {
    versions: Arc<Versions>,
    confirmed: AtomicI64,
}

impl InvalidationFeed {
    pub(crate) fn new(versions: Arc<Versions>) -> Self {
        Self { versions, confirmed: AtomicI64::new(i64::MIN) }
    }

    /// Records a change of an entry: copies of its resource that were read before are not served any more.
    pub fn changed(&self, key: &CacheKey) {
        self.shard_changed(key.into());
    }

    pub(crate) fn shard_changed(&self, shard: Shard) {
        self.versions.bump(shard);
    }

    /// Records a possible change of every entry. Returns a number that no other call returns, to tell apart what is read
    /// before the next call and after.
    pub fn all_changed(&self) -> u64 {
        self.versions.bump_all()
    }

    /// Confirms that every change which the store acknowledged before `by`, to any client, has been reported to this
    /// feed, if its entry was read since [all have changed](Self::all_changed) last.
    pub fn confirm_up_to(&self, by: Timestamp) {
        self.confirmed.fetch_max(by.as_micros(), Release);
    }

    /// Returns the time of the last confirmation. Call it before [`Versions::counts`]: a reader that sees a confirmation
    /// also sees every change that was recorded before it.
    pub(crate) fn confirmed(&self) -> Timestamp {
        Timestamp::from_micros(self.confirmed.load(Acquire))
    }
}
