//! Indexes that were followed lately: whoever remembers them reads index and entry at once.

use super::{DEPTH, Hop, Judge, Place};
use crate::{entry::Entry, key::Address};
use quick_cache::sync::Cache;
use std::sync::Arc;
use std::{
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The last index seen at an address. Only a guess at what is there now: the store is asked for it all the same.
pub(super) struct Known(Cache<Address, Entry>);

impl Default for Known {
    fn default() -> Self {
        Self(Cache::new(MOST))
    }
}

impl Known {
    pub(super) fn remember(&self, at: &Address, index: &Entry) {
        let same = self.0.get(at).is_some_and(|known| known.meta().id == index.meta().id);
        if !same && at.primary().len() <= LONGEST {
            self.0.insert(at.clone(), index.clone());
        }
    }

    /// Its entries are not looked for any more without asking what is there.
    pub(super) fn forget(&self, at: &Address) {
        self.0.remove(at);
    }

    fn hop<R>(&self, at: &Address, judge: &impl Judge<R>) -> Option<Hop> {
        judge.beneath(&self.0.get(at)?)
    }
}

/// What this process has dropped from the store lately, and nobody has asked for since: the next one need not look, the
/// question who leads tells if somebody has stored it meanwhile. A guess as well.
pub(super) struct Dropped {
    hasher: RandomState,
    /// Hashes of addresses; 0 for none.
    slots: Box<[AtomicU64]>,
}

impl Default for Dropped {
    fn default() -> Self {
        Self { hasher: RandomState::new(), slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Dropped {
    pub(super) fn remember(&self, at: &Address) {
        let (slot, hash) = self.slot(at);
        slot.store(hash, Relaxed);
    }

    /// Once.
    pub(super) fn take(&self, at: &Address) -> bool {
        let (slot, hash) = self.slot(at);
        slot.load(Relaxed) == hash && slot.compare_exchange(hash, 0, Relaxed, Relaxed).is_ok()
    }

    fn slot(&self, at: &Address) -> (&AtomicU64, u64) {
        let hash = self.hasher.hash_one(at).max(1);
        (&self.slots[hash as usize % SLOTS], hash)
    }
}

impl Place {
    /// The address, and those at which the entry of this caller is if the indexes are as they were.
    pub(super) fn likely<R>(&self, judge: &impl Judge<R>) -> Arc<[Address]> {
        let Some(hop) = self.remembered(judge) else { return Arc::new([self.at.clone()]) };
        let mut chain = vec![self.at.clone(), hop.from(&self.at)];
        while chain.len() <= DEPTH
            && let Some(at) = chain.last()
            && let Some(hop) = self.engine.known.hop(at, judge)
        {
            chain.push(hop.from(at));
        }
        chain.into()
    }

    /// Where the caller is sent from this address, if it is as it was.
    pub(super) fn remembered<R>(&self, judge: &impl Judge<R>) -> Option<Hop> {
        self.engine.known.hop(&self.at, judge)
    }
}

/// So many addresses are remembered, most with a few hundred bytes.
const MOST: usize = 8192;
/// 8 KiB.
const SLOTS: usize = 1024;
/// Whose keys are longer costs himself a second lookup: a client chooses URLs, and 8192 of 64 KiB are half a gigabyte.
const LONGEST: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::Timestamp,
        entry::{Kind, Lifetimes, Meta},
        store::{Inbox, Token},
    };
    use bytes::Bytes;
    use std::time::Duration;

    fn index() -> Entry {
        let (id, lifetimes, answered) =
            (Token::unique(Inbox::unique()), Lifetimes::default(), Timestamp::from_micros(0));
        Entry::new(Meta { kind: Kind::Value, id, answered, cost: Duration::ZERO, lifetimes, codec: 0 }, Bytes::new())
    }

    #[test]
    fn long_keys_are_not_remembered() {
        let known = Known::default();
        for (length, expected) in [(LONGEST, true), (LONGEST + 1, false)] {
            let at = Address::new("n", 0, vec![b'a'; length]);
            known.remember(&at, &index());
            assert_eq!(known.0.get(&at).is_some(), expected, "{length}");
        }
    }
}
