//! Flights and lookups under every kind of schedule. Whoever is told nothing waits for ever, which is a deadlock.

mod lookups;

use super::{super::seam::EVERYBODY, *};
use crate::{
    key::Key,
    sync::{any, explore},
};
use shuttle::{
    future::{block_on, spawn, yield_now},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
};

const ANY: Wanted = Wanted { since: None, nested: false, under_way: false };
const NESTED: Wanted = Wanted { since: None, nested: true, under_way: false };

fn at() -> Address {
    Address::new("sg", 0, Key::from("k"))
}

fn beneath(variant: &'static str) -> Address {
    at().to_variant(variant.into())
}

fn open(flights: &Arc<Flights>, scope: Scope) -> Flight {
    flights.enter(&at(), scope, None, ANY).err().expect("nobody else is there")
}

fn is_joined(flights: &Flights, course: &Arc<Course>) -> bool {
    flights.join(&at(), ANY).is_some_and(|join| Arc::ptr_eq(&join.course, course))
}

/// Who computes now: one at a time.
#[derive(Clone, Default)]
struct Computing(Arc<AtomicUsize>);

impl Computing {
    /// Dropped at its await or not.
    async fn once(&self) {
        assert_eq!(self.0.fetch_add(1, SeqCst), 0, "two compute at the same time");
        let done = Done(self);
        yield_now().await;
        drop(done);
    }
}

struct Done<'a>(&'a Computing);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

/// Asks until there is an answer, and computes it if nobody else does.
async fn ask(flights: Arc<Flights>, computing: Computing) {
    loop {
        match flights.enter(&at(), Scope::Fleet, None, ANY) {
            Ok(join) => match join.landed(|_| false).await {
                State::NotShared(EVERYBODY) => return,
                _ => continue,
            },
            Err(flight) => {
                computing.once().await;
                return flight.land(State::NotShared(EVERYBODY));
            }
        }
    }
}

/// As [`ask`], for a store that does not answer: by way of the fleet, or directly.
async fn ask_locally(flights: Arc<Flights>, computing: Computing, directly: bool) {
    loop {
        let scope = if directly { Scope::Local } else { Scope::Fleet };
        let (join, flight) = match flights.enter(&at(), scope, None, ANY) {
            Ok(join) => (join, None),
            Err(flight) if directly => {
                computing.once().await;
                return flight.land(State::NotShared(EVERYBODY));
            }
            Err(flight) => match flight.go_local(ANY) {
                Some(join) => (join, Some(flight)),
                None => {
                    assert!(!is_joined(&flights, &flight.course), "whoever asks later asks the store first");
                    computing.once().await;
                    return flight.land(State::NotShared(EVERYBODY));
                }
            },
        };
        let state = join.landed(|_| false).await;
        if let Some(flight) = flight {
            flight.land(state.clone());
        }
        if matches!(state, State::NotShared(EVERYBODY)) {
            return;
        }
    }
}

/// Seen to fail when `enter` looks and inserts in two steps, to deadlock when a dropped flight says nothing, and to go on
/// for ever when it stays in the map.
#[test]
fn one_computes_at_a_time_and_the_next_one_takes_over() {
    explore(|| {
        let (flights, computing) = (Arc::new(Flights::default()), Computing::default());
        let callers = [(); 3].map(|()| spawn(ask(flights.clone(), computing.clone())));
        callers[0].abort();
        for caller in callers {
            let _ = block_on(caller);
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `go_local` does not look for a flight that is there, or leaves the fleet and forgets to.
#[test]
fn one_computes_at_a_time_in_a_process_on_its_own() {
    explore(|| {
        let (flights, computing) = (Arc::new(Flights::default()), Computing::default());
        let callers =
            [false, false, true].map(|directly| spawn(ask_locally(flights.clone(), computing.clone(), directly)));
        callers[0].abort();
        for caller in callers {
            let _ = block_on(caller);
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to deadlock when a flight that is dropped tells nobody, and to fail when one that lands tells them before it leaves.
#[test]
fn whoever_joined_is_told_how_it_ended() {
    let ends: [fn(Flight); 6] = [
        |flight| flight.land(State::NotShared(EVERYBODY)),
        |flight| drop(flight),
        |flight| {
            flight.detach();
            flight.announce(State::NotShared(EVERYBODY));
        },
        |flight| {
            flight.gone();
            drop(flight);
        },
        |flight| {
            flight.announce(State::Queued);
            flight.announce(State::Running);
            flight.land(State::NotShared(EVERYBODY));
        },
        |flight| {
            flight.announce(State::Queued);
            let _ = flight.go_local(ANY);
            drop(flight);
        },
    ];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        let joined = [ANY, NESTED].map(|wanted| {
            let flights = flights.clone();
            spawn(async move {
                let Some(join) = flights.join(&at(), wanted) else { return };
                let state = join.landed(|_| false).await;
                assert!(!matches!(state, State::Running));
                match state {
                    State::Queued => assert!(wanted.nested),
                    _ => assert!(!is_joined(&flights, &join.course), "it would be told the same again"),
                }
            })
        });
        let invalidation = thread::spawn({
            let flights = flights.clone();
            move || flights.forget(&at())
        });
        end(flight);
        invalidation.join().unwrap();
        for caller in joined {
            block_on(caller).unwrap();
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `forget`, or `gone`, leaves out one of the maps, or what is beneath in that of this process.
#[test]
fn nobody_joins_what_began_before_an_invalidation() {
    let invalidations: [fn(&Flights, &Flight); 2] = [|flights, _| flights.forget(&at()), |_, flight| flight.gone()];
    explore(move || {
        let invalidate = any(&invalidations);
        let flights = Arc::new(Flights::default());
        let (fleet, local) = (open(&flights, Scope::Fleet), open(&flights, Scope::Local));
        let under = flights.enter(&beneath("a"), Scope::Local, None, ANY).err().expect("nobody else is there");
        let invalidated = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (flights, invalidated) = (flights.clone(), invalidated.clone());
            let (fleet, local, under) = (fleet.course.clone(), local.course.clone(), under.course.clone());
            move || {
                let afterwards = invalidated.load(SeqCst);
                assert!(!(afterwards && is_joined(&flights, &fleet)));
                for (at, old) in [(at(), local), (beneath("a"), under)] {
                    let entered = flights.enter(&at, Scope::Local, None, ANY);
                    assert!(!(afterwards && entered.is_ok_and(|join| Arc::ptr_eq(&join.course, &old))));
                }
            }
        });
        invalidate(&flights, &fleet);
        invalidated.store(true, SeqCst);
        caller.join().unwrap();
        drop((fleet, local, under));
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when a flight takes what is in its place for itself.
#[test]
fn a_flight_that_was_forgotten_takes_no_other_out_of_the_map() {
    let ends: [fn(Flight); 4] = [
        |flight| flight.land(State::NotShared(EVERYBODY)),
        |flight| drop(flight),
        |flight| flight.detach(),
        |flight| assert!(flight.go_local(ANY).is_none()),
    ];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let old = open(&flights, Scope::Fleet);
        flights.forget(&at());
        let leaving = thread::spawn(move || end(old));
        let new = open(&flights, Scope::Fleet);
        let join = flights.join(&at(), ANY).expect("it is under way");
        assert!(Arc::ptr_eq(&join.course, &new.course));
        leaving.join().unwrap();
        assert!(flights.join(&at(), ANY).is_some());
        drop(new);
        assert_eq!(flights.len(), 0);
    });
}
