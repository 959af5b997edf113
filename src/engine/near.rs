//! The near cache: copies of entries that this process has read.
//!
//! A copy is served while it is fresh, nothing was heard to have changed since its read was sent, and it was known to be
//! current less than `max_age` ago: since it was read, or since the store has last confirmed that nothing went unheard.
//! Time alone bounds it where the store tells nothing.

use crate::{
    clock::Timestamp,
    entry::{Entry, expected_within},
    key::Address,
    near::NearCache,
    store::{Line, Mark, Store, StoreError, Track, Tracked},
};
use quick_cache::{Weighter, sync::Cache};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

pub(crate) struct Near {
    copies: Cache<Address, Arc<Copied>, Weight>,
    max_age: Duration,
    /// What this process itself changes; the store's messages of it come later.
    own: Arc<Line>,
    track: Option<Arc<dyn Track>>,
}

struct Copied {
    entry: Entry,
    asked: Timestamp,
    own: Mark,
    told: Option<Mark>,
}

impl Copied {
    fn is_good(&self, now: Timestamp, max_age: Duration) -> bool {
        let confirmed = match &self.told {
            Some(mark) => mark.stands(),
            None => Some(self.asked),
        };
        let is_recent = |confirmed: Timestamp| now.since(confirmed.max(self.asked)) < max_age;
        confirmed.is_some_and(is_recent) && self.own.stands().is_some()
    }
}

impl Near {
    /// `None` for a store that lives in this process: its entries are here already.
    pub(crate) fn before(store: &dyn Store, settings: NearCache) -> Option<Self> {
        let NearCache { capacity, max_age } = settings;
        store.is_shared().then(|| Self {
            copies: Cache::with_weighter(expected_within(capacity), capacity, Weight),
            max_age,
            own: Arc::new(Line::new()),
            track: store.track(max_age / 3),
        })
    }

    pub(super) fn get(&self, at: &Address, now: Timestamp) -> Option<Entry> {
        let copy = self.copies.get(at)?;
        copy.is_good(now, self.max_age).then(|| copy.entry.clone())
    }

    /// Reads from the store, and keeps copies.
    ///
    /// Dropped while it reads, it keeps none.
    pub(super) async fn get_all(&self, store: &dyn Store, chain: &[Address]) -> Result<Vec<Option<Entry>>, StoreError> {
        let asked = Timestamp::now();
        let own: Vec<_> = chain.iter().map(|at| self.own.mark(at)).collect();
        let tracked = match &self.track {
            Some(track) => track.get_all(chain).await.ok(),
            None => None,
        };
        let Tracked { entries, marks } = match tracked {
            Some(tracked) => tracked,
            None => Tracked { entries: store.get_all(chain).await?, marks: Vec::new() },
        };
        let mut marks = marks.into_iter();
        for ((at, entry), own) in chain.iter().zip(&entries).zip(own) {
            self.keep(at, entry.as_ref(), asked, own, marks.next());
        }
        Ok(entries)
    }

    /// The copy is dropped, and what is being read now becomes none.
    pub(super) fn forget(&self, at: &Address) {
        self.own.changed(at);
        self.copies.remove(at);
    }

    fn keep(&self, at: &Address, entry: Option<&Entry>, asked: Timestamp, own: Mark, told: Option<Mark>) {
        let Some(entry) = entry else {
            self.copies.remove(at);
            return;
        };
        let copy = Copied { entry: entry.clone(), asked, own, told };
        if copy.is_good(Timestamp::now(), self.max_age) {
            self.copies.insert(at.clone(), Arc::new(copy));
        }
    }
}

/// The near caches of one engine: what one clone changes, the others must not serve.
#[derive(Default)]
pub(super) struct Nears(Mutex<Vec<Weak<Near>>>);

impl Nears {
    pub(super) fn add(&self, near: &Arc<Near>) {
        let mut nears = self.lock();
        nears.retain(|near| near.strong_count() > 0);
        nears.push(Arc::downgrade(near));
    }

    pub(super) fn forget(&self, at: &Address) {
        for near in self.lock().iter().filter_map(Weak::upgrade) {
            near.forget(at);
        }
    }

    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<Near>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Near {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Near")
            .field("copies", &self.copies.len())
            .field("bytes", &self.copies.weight())
            .field("capacity", &self.copies.capacity())
            .field("max_age", &self.max_age)
            .field("told", &self.track.is_some())
            .finish()
    }
}

#[derive(Clone)]
struct Weight;

impl Weighter<Address, Arc<Copied>> for Weight {
    fn weight(&self, at: &Address, copy: &Arc<Copied>) -> u64 {
        copy.entry.weight(at)
    }
}
