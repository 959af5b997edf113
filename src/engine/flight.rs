//! Who computes what in this process: one flight per address, joined by everybody who asks meanwhile.

#[cfg(test)]
mod schedules;

use super::{
    right::Made,
    seam::{Class, Failure},
    shared::{Shared, WeakShared},
};
use crate::{
    clock::Timestamp,
    entry::{Entry, Live},
    error::Error,
    key::Address,
    policy::{Freshness, freshness},
    store::StoreError,
    sync::{Mutex, MutexGuard},
    watch,
};
use std::{
    collections::{HashMap, hash_map},
    future::Future,
    sync::{Arc, PoisonError},
    time::Duration,
};

/// What has become of a flight. Everybody who joined sees the last state.
#[derive(Clone)]
pub(crate) enum State {
    Running,
    /// Waits for a place in the bulkhead. Whoever asks within another computation does not wait with it: that one may
    /// hold the place.
    Queued,
    /// An entry was there: each one judges it.
    Found(Entry),
    /// An entry that was made while they waited: for them it counts, however short its lifetime.
    Filled(Arc<Made>),
    /// Stale, but nothing newer came in time.
    Stale(Entry),
    /// The answer will be there at the end, but not for everybody who joined.
    AtHead(Live),
    /// A value of which no entry is made, or not yet.
    Shared(Live),
    /// The answer is for nobody else: each one of this class makes a call of its own, the others try again.
    NotShared(Class),
    /// It failed. The entry at hand still stands, for those who forgive.
    Failed(Failure, Option<Entry>),
    /// Given up: the next one may try.
    Vacant,
    /// Under the settings of whoever began it there is no answer, but perhaps the entry at hand, which still stands. Those
    /// who joined ask again, under theirs.
    Declined(Error, Option<Entry>),
}

impl State {
    fn is_under_way(&self) -> bool {
        matches!(self, Self::Running | Self::Queued | Self::AtHead(_))
    }
}

/// Which computation is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The one that is coordinated through the store.
    Fleet,
    /// The one of this process alone, when the store or another leader does not answer in time.
    Local,
}

/// Which flights are good enough to be joined.
#[derive(Clone, Copy, Default)]
pub(crate) struct Wanted {
    /// Begun at that time or later.
    pub(crate) since: Option<Timestamp>,
    /// By somebody who asks within another computation.
    pub(crate) nested: bool,
    /// Not answered yet.
    pub(crate) under_way: bool,
}

/// The flights of one engine. Nothing stays in it beyond its flight.
#[derive(Default)]
pub(crate) struct Flights {
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    fleet: HashMap<Address, Arc<Course>>,
    local: HashMap<Address, Arc<Course>>,
    /// By the first address that they read.
    lookups: HashMap<Address, Listings>,
    last_lookup: u64,
}

/// Entry by entry, as far as there are any.
type Found = Result<Vec<Option<Entry>>, StoreError>;
pub(crate) type Lookup = Shared<Found>;

/// Lookups that begin at the same address, by the last one that they read. One at a time, as it is with most, takes no
/// table.
#[derive(Default)]
struct Listings {
    one: Option<Listing>,
    more: HashMap<Address, Listing>,
}

/// A read of the store that may be joined.
struct Listing {
    number: u64,
    began: Timestamp,
    chain: Arc<[Address]>,
    lookup: WeakShared<Found>,
}

/// What a flight and those who joined it have in common.
struct Course {
    state: watch::Sender<State>,
    began: Timestamp,
    seen: Option<Entry>,
    /// The entry at hand, once and for as long as the store says that it still stands.
    stands: Mutex<Option<Entry>>,
}

/// A place in a flight of somebody else.
pub(crate) struct Join {
    state: watch::Receiver<State>,
    course: Arc<Course>,
    nested: bool,
}

/// A flight, seen by the caller that opened it: not one of those who wait.
pub(crate) struct Watch(Arc<Course>);

impl Watch {
    /// The entry at hand, if the store has said since that it still stands.
    pub(crate) fn stands(&self) -> Option<Entry> {
        lock(&self.0.stands).clone()
    }
}

impl Join {
    /// What was at hand when the flight began. It may be gone by now.
    pub(crate) fn seen(&self) -> Option<&Entry> {
        self.course.seen.as_ref()
    }

    /// The entry at hand, if the store has said since that it still stands.
    pub(crate) fn stands(&self) -> Option<Entry> {
        lock(&self.course.stands).clone()
    }

    /// How many wait for it, this one included.
    pub(crate) fn crowd(&self) -> usize {
        self.course.state.receiver_count()
    }

    /// Whether it waits for a place in the bulkhead.
    pub(crate) fn is_queued(&self) -> bool {
        self.course.is_queued()
    }

    /// Whether there is an answer already.
    pub(crate) fn has_landed(&self) -> bool {
        !self.course.state.is(State::is_under_way)
    }

    /// When it ends, if it takes as long as the last time.
    pub(crate) fn expected(&self) -> Option<Timestamp> {
        self.seen().map(|entry| self.course.began.after(entry.meta().cost))
    }

    /// The first state that is an answer, or a reason not to wait. `is_elsewhere`: whether a head says that the answer of
    /// whoever waits is elsewhere.
    pub(crate) async fn landed(&self, is_elsewhere: impl Fn(&Live) -> bool) -> State {
        let nested = self.nested;
        let is_over = |state: &State| match state {
            State::Running => false,
            State::AtHead(live) => is_elsewhere(live),
            State::Queued => nested,
            _ => true,
        };
        self.state.wait_for(is_over).await
    }
}

impl Flights {
    /// Joins the flight if it is good enough, or begins one in its place.
    pub(crate) fn enter(
        self: &Arc<Self>,
        at: &Address,
        scope: Scope,
        seen: Option<Entry>,
        wanted: Wanted,
    ) -> Result<Join, Flight> {
        let mut tables = self.lock();
        let place = match tables.of(scope).entry(at.clone()) {
            hash_map::Entry::Occupied(flown) if flown.get().suits(wanted) => return Ok(flown.get().join(wanted)),
            place => place,
        };
        let (state, began, stands) = (watch::Sender::new(State::Running), Timestamp::now(), Mutex::default());
        let course = Arc::new(Course { state, began, seen, stands });
        place.insert_entry(course.clone());
        Err(Flight { flights: self.clone(), at: at.clone(), course })
    }

    /// Joins the flight if there is one.
    pub(crate) fn join(&self, at: &Address, wanted: Wanted) -> Option<Join> {
        self.lock().fleet.get(at).filter(|course| course.suits(wanted)).map(|course| course.join(wanted))
    }

    /// Shares one read of the store, of an entry and what is likely to be found beneath it, among those who ask while it
    /// is under way. It belongs to those who await it, and ends with the last of them. One that has taken `limit` is not
    /// joined any more: its answer may never come, and as long as somebody waits for it, nobody would ask again.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        chain: &Arc<[Address]>,
        limit: Duration,
        read: impl Future<Output = Found> + Send + 'static,
    ) -> Lookup {
        let (Some(first), Some(last)) = (chain.first(), chain.last()) else { return Shared::new(read) };
        let began = Timestamp::now();
        let mut tables = self.lock();
        tables.last_lookup += 1;
        let number = tables.last_lookup;
        let listings = tables.lookups.entry(first.clone()).or_default();
        let suits = |listing: &&mut Listing| listing.chain == *chain && began.since(listing.began) < limit;
        if let Some(lookup) = listings.get_mut(last).filter(suits).and_then(|listing| listing.lookup.upgrade()) {
            return lookup;
        }
        // Made here and not in the future, which may be dropped before it is polled.
        let listed = Listed { flights: self.clone(), chain: chain.clone(), number };
        let lookup = Shared::new(async move {
            let found = read.await;
            drop(listed); // before anybody sees the answer: whoever asks later reads again
            found
        });
        listings.insert(last, Listing { number, began, chain: chain.clone(), lookup: lookup.downgrade() });
        lookup
    }

    /// Nobody joins any more what began before now. What the store is not asked about is found by memory, so nor what is
    /// beneath.
    pub(crate) fn forget(&self, at: &Address) {
        let mut tables = self.lock();
        tables.fleet.remove(at);
        tables.local.retain(|local, _| !at.covers(local));
        tables.lookups.remove(at);
    }

    /// How many flights there are.
    pub(crate) fn len(&self) -> usize {
        let tables = self.lock();
        tables.fleet.len() + tables.local.len() + tables.lookups.values().map(Listings::len).sum::<usize>()
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        lock(&self.tables)
    }
}

/// Nothing in here panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Tables {
    fn of(&mut self, scope: Scope) -> &mut HashMap<Address, Arc<Course>> {
        match scope {
            Scope::Fleet => &mut self.fleet,
            Scope::Local => &mut self.local,
        }
    }
}

impl Course {
    fn join(self: &Arc<Self>, wanted: Wanted) -> Join {
        Join { state: self.state.subscribe(), course: self.clone(), nested: wanted.nested }
    }

    fn suits(&self, wanted: Wanted) -> bool {
        let too_early = wanted.since.is_some_and(|since| self.began < since);
        let holds_up = wanted.nested && self.is_queued();
        let too_late = wanted.under_way && !self.state.is(State::is_under_way);
        !(too_early || holds_up || too_late || self.is_outlived())
    }

    /// Whether its entry has ended while it is still being filled: of no use to those who come now.
    fn is_outlived(&self) -> bool {
        let now = Timestamp::now();
        self.state.is(|state| matches!(state, State::Filled(made) if freshness(&made.entry, now) != Freshness::Fresh))
    }

    fn is_queued(&self) -> bool {
        self.state.is(|state| matches!(state, State::Queued))
    }
}

/// A flight, held by whoever drives it. Dropped at any await it leaves the map and lets the next one try.
pub(crate) struct Flight {
    flights: Arc<Flights>,
    at: Address,
    course: Arc<Course>,
}

impl Flight {
    /// Tells those who joined; later ones join as well and are told the same.
    pub(crate) fn announce(&self, state: State) {
        self.course.state.send_replace(state);
    }

    /// Leaves the map and tells those who joined.
    pub(crate) fn land(&self, state: State) {
        self.detach();
        self.announce(state);
    }

    /// Leaves the map: those who joined stay, nobody new does.
    pub(crate) fn detach(&self) {
        let mut tables = self.flights.lock();
        for scope in [Scope::Fleet, Scope::Local] {
            let table = tables.of(scope);
            if table.get(&self.at).is_some_and(|course| Arc::ptr_eq(course, &self.course)) {
                table.remove(&self.at);
            }
        }
    }

    /// What the store said of the entry at hand.
    pub(crate) fn stands(&self, entry: Option<Entry>) {
        *lock(&self.course.stands) = entry;
    }

    /// The entry at hand, if the store has said that it still stands.
    pub(crate) fn standing(&self) -> Option<Entry> {
        lock(&self.course.stands).clone()
    }

    /// What is seen of this very flight without a place in it.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.course.clone())
    }

    /// The key was invalidated: nobody joins any more what this process began before, lookups and other flights included.
    pub(crate) fn gone(&self) {
        self.stands(None);
        self.flights.forget(&self.at);
    }

    /// Becomes the local flight of its address, or joins the one that there is if it is good enough. Leaves the fleet:
    /// whoever asks later asks the store first.
    pub(crate) fn go_local(&self, wanted: Wanted) -> Option<Join> {
        self.detach();
        let mut tables = self.flights.lock();
        match tables.local.get(&self.at) {
            Some(course) if course.suits(wanted) => Some(course.join(wanted)),
            _ => {
                tables.local.insert(self.at.clone(), self.course.clone());
                None
            }
        }
    }

    pub(crate) fn began(&self) -> Timestamp {
        self.course.began
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.detach();
        self.course.state.send_if_modified(|state| {
            let under_way = state.is_under_way();
            if under_way {
                *state = State::Vacant;
            }
            under_way
        });
    }
}

impl Listings {
    fn get_mut(&mut self, last: &Address) -> Option<&mut Listing> {
        match self.one.as_ref().is_some_and(|one| one.chain.last() == Some(last)) {
            true => self.one.as_mut(),
            false => self.more.get_mut(last),
        }
    }

    /// In place of the one that reads the same address last.
    fn insert(&mut self, last: &Address, listing: Listing) {
        if let Some(listed) = self.get_mut(last) {
            *listed = listing;
        } else if self.one.is_none() {
            self.one = Some(listing);
        } else {
            self.more.insert(last.clone(), listing);
        }
    }

    fn remove(&mut self, last: &Address, number: u64) {
        if self.one.as_ref().is_some_and(|one| one.number == number) {
            self.one = None;
        } else if self.more.get(last).is_some_and(|listing| listing.number == number) {
            self.more.remove(last);
        }
    }

    fn len(&self) -> usize {
        usize::from(self.one.is_some()) + self.more.len()
    }
}

/// A lookup's place in the map.
struct Listed {
    flights: Arc<Flights>,
    chain: Arc<[Address]>,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let (Some(first), Some(last)) = (self.chain.first(), self.chain.last()) else { return };
        let mut tables = self.flights.lock();
        let Some((first, mut listings)) = tables.lookups.remove_entry(first) else { return };
        listings.remove(last, self.number);
        if listings.len() > 0 {
            tables.lookups.insert(first, listings);
        }
    }
}
