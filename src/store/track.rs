//! Reads whose end the store tells of: what a copy of an entry in this process needs to be as good as the entry.

use super::{Address, Answer, Entry, Timestamp};
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

/// Reads entries, and hears when they change. See [`Store::track`](super::Store::track).
pub trait Track: Send + Sync + 'static {
    /// The same as [`Store::get_all`](super::Store::get_all), with a mark for each address.
    fn get_all<'a>(&'a self, at: &'a [Address]) -> Answer<'a, Tracked>;
}

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Tracked {
    /// The entries, address by address.
    pub entries: Vec<Option<Entry>>,
    /// Their marks, address by address; or none at all, if nobody would tell.
    pub marks: Vec<Mark>,
}

/// What is heard over one connection of the changes of what was read over it. When it breaks, a new one takes its place:
/// what this one would have told is lost, so nothing confirms its marks any more.
pub struct Line {
    hasher: RandomState,
    /// How often something in there has changed. Two names may share one: whoever takes the change for his own reads once
    /// more than he has to.
    shelves: Box<[AtomicU32]>,
    confirmed: AtomicI64,
}

/// Tells whether one thing has changed since. Cheap to clone.
#[derive(Clone)]
pub struct Mark {
    line: Arc<Line>,
    shelf: u32,
    changes: u32,
}

impl Line {
    /// Nothing is heard yet.
    #[must_use]
    pub fn new() -> Self {
        let shelves = (0..SHELVES).map(|_| AtomicU32::new(0)).collect();
        Self { hasher: RandomState::new(), shelves, confirmed: AtomicI64::new(i64::MIN) }
    }

    /// A mark, to be made before the read is sent: it tells of every change that the read may not have seen.
    #[must_use]
    pub fn mark(self: &Arc<Self>, name: impl Hash) -> Mark {
        let shelf = self.shelf(name);
        let changes = self.shelves[shelf as usize].load(Acquire);
        Mark { line: self.clone(), shelf, changes }
    }

    /// It has changed.
    pub fn changed(&self, name: impl Hash) {
        self.shelves[self.shelf(name) as usize].fetch_add(1, AcqRel);
    }

    /// Perhaps all have.
    pub fn all_changed(&self) {
        for shelf in &self.shelves {
            shelf.fetch_add(1, AcqRel);
        }
    }

    /// All changes that the store had acknowledged to anybody by then have been told to this line.
    pub fn confirm(&self, by: Timestamp) {
        self.confirmed.fetch_max(by.as_micros(), Release);
    }

    fn shelf(&self, name: impl Hash) -> u32 {
        // Less than SHELVES, so that nothing is cut off.
        (self.hasher.hash_one(name) % u64::from(SHELVES)) as u32
    }
}

impl Default for Line {
    fn default() -> Self {
        Self::new()
    }
}

impl Mark {
    /// Up to when it is known that nothing has changed. `None` if something has.
    #[must_use]
    pub fn stands(&self) -> Option<Timestamp> {
        // In this order: whoever sees the confirmation sees what was told before it.
        let confirmed = Timestamp::from_micros(self.line.confirmed.load(Acquire));
        let changes = self.line.shelves[self.shelf as usize].load(Acquire);
        (changes == self.changes).then_some(confirmed)
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").field("confirmed", &self.confirmed).finish_non_exhaustive()
    }
}

impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mark").field("stands", &self.stands()).finish()
    }
}

/// 256 KiB for each line. Of 50,000 copies one change costs another one on average.
const SHELVES: u32 = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stands_until_its_name_changes() {
        let line = Arc::new(Line::new());
        let (a, b) = (line.mark("a"), line.mark("b"));
        line.changed("a");
        assert_eq!(a.stands(), None);
        assert!(b.stands().is_some());
        assert!(line.mark("a").stands().is_some(), "what is read from now on is as it was changed");
        line.all_changed();
        assert_eq!(b.stands(), None);
    }

    #[test]
    fn a_mark_is_known_to_stand_up_to_the_last_confirmation() {
        let (line, at) = (Arc::new(Line::new()), Timestamp::from_micros);
        let mark = line.mark("a");
        assert_eq!(mark.stands(), Some(at(i64::MIN)), "nothing was confirmed yet");
        line.confirm(at(7));
        line.confirm(at(5));
        assert_eq!(mark.stands(), Some(at(7)), "answers may overtake each other");
    }
}
