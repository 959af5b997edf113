//! Who computes what in this process: one flight per address, joined by everybody who asks meanwhile.

use super::seam::Failure;
use crate::{
    entry::{Entry, Live},
    key::Address,
    store::{BoxFuture, StoreError},
};
use futures_util::{
    FutureExt,
    future::{Shared, WeakShared},
};
use std::{
    collections::HashMap,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::watch;

/// What has become of a flight. Everybody who joined sees the last state.
#[derive(Clone)]
pub(crate) enum State {
    Running,
    /// An entry was there: each one judges it.
    Found(Entry),
    /// An entry that was made while they waited: for them it counts, however short its lifetime.
    Filled(Entry),
    /// Stale, but nothing newer came in time.
    Stale(Entry),
    /// A value of which no entry is made, or not yet.
    Shared(Live),
    /// The answer is for nobody else: each one makes a call of its own.
    NotShared,
    /// It failed. The entry at hand still stands, for those who forgive.
    Failed(Failure, Option<Entry>),
    /// Given up: the next one may try.
    Vacant,
}

/// Which computation is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The one that is coordinated through the store.
    Fleet,
    /// The one of this process alone, when the store or another leader does not answer in time.
    Local,
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
    lookups: HashMap<Address, (u64, WeakLookup)>,
    last_lookup: u64,
}

type Found = Result<Option<Entry>, StoreError>;
pub(crate) type Lookup = Shared<BoxFuture<'static, Found>>;
type WeakLookup = WeakShared<BoxFuture<'static, Found>>;

/// What a flight and those who joined it have in common.
struct Course {
    state: watch::Sender<State>,
    seen: Option<Entry>,
}

/// A place in a flight of somebody else.
pub(crate) struct Join {
    state: watch::Receiver<State>,
    /// What was at hand when the flight began.
    pub(crate) seen: Option<Entry>,
}

impl Join {
    /// The first state that is an answer. `Vacant` if there is none.
    pub(crate) async fn landed(mut self) -> State {
        match self.state.wait_for(|state| !matches!(state, State::Running)).await {
            Ok(state) => state.clone(),
            Err(_) => State::Vacant,
        }
    }
}

impl Flights {
    /// Joins the flight, or begins it.
    pub(crate) fn enter(self: &Arc<Self>, at: &Address, scope: Scope, seen: Option<Entry>) -> Result<Join, Flight> {
        let mut tables = self.lock();
        let table = tables.of(scope);
        if let Some(course) = table.get(at) {
            return Ok(course.join());
        }
        let course = Arc::new(Course { state: watch::Sender::new(State::Running), seen });
        table.insert(at.clone(), course.clone());
        Err(Flight { flights: self.clone(), at: at.clone(), course })
    }

    /// Joins the flight if there is one.
    pub(crate) fn join(&self, at: &Address) -> Option<Join> {
        self.lock().fleet.get(at).map(|course| course.join())
    }

    /// Shares one read of the store among those who ask while it is under way. It belongs to those who await it, and
    /// ends with the last of them.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        at: &Address,
        read: impl Future<Output = Found> + Send + 'static,
    ) -> Lookup {
        let mut tables = self.lock();
        if let Some(lookup) = tables.lookups.get(at).and_then(|(_, lookup)| lookup.upgrade()) {
            return lookup;
        }
        tables.last_lookup += 1;
        let number = tables.last_lookup;
        // Made here and not in the future, which may be dropped before it is polled.
        let listed = Listed { flights: self.clone(), at: at.clone(), number };
        let lookup = async move {
            let found = read.await;
            drop(listed); // before anybody sees the answer: whoever asks later reads again
            found
        };
        let lookup = lookup.boxed().shared();
        if let Some(weak) = lookup.downgrade() {
            tables.lookups.insert(at.clone(), (number, weak));
        }
        lookup
    }

    /// Nobody joins any more what began before now.
    pub(crate) fn forget(&self, at: &Address) {
        let mut tables = self.lock();
        tables.fleet.remove(at);
        tables.local.remove(at);
        tables.lookups.remove(at);
    }

    /// How many flights there are.
    pub(crate) fn len(&self) -> usize {
        let tables = self.lock();
        tables.fleet.len() + tables.local.len() + tables.lookups.len()
    }

    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
    fn join(&self) -> Join {
        Join { state: self.state.subscribe(), seen: self.seen.clone() }
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

    /// Becomes the local flight of its address, or joins the one that there is.
    pub(crate) fn go_local(&self) -> Option<Join> {
        let mut tables = self.flights.lock();
        match tables.local.get(&self.at) {
            Some(course) if !Arc::ptr_eq(course, &self.course) => Some(course.join()),
            _ => {
                tables.local.insert(self.at.clone(), self.course.clone());
                None
            }
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.detach();
        self.course.state.send_if_modified(|state| {
            let running = matches!(state, State::Running);
            if running {
                *state = State::Vacant;
            }
            running
        });
    }
}

/// A lookup's place in the map.
struct Listed {
    flights: Arc<Flights>,
    at: Address,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        let mut tables = self.flights.lock();
        if tables.lookups.get(&self.at).is_some_and(|(number, _)| *number == self.number) {
            tables.lookups.remove(&self.at);
        }
    }
}
