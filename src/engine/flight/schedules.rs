//! Flights and lookups under many schedules. A waiter that is never notified shows as a deadlock.

mod lookups;

use super::*;
use crate::{
    key::Key,
    store::entry::Audience,
    sync::explored::{any, explore},
};
use shuttle::{
    future::{block_on, spawn, yield_now},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
};

const ANY: JoinCriteria = JoinCriteria { nested: false, incomplete_only: false };
const NESTED: JoinCriteria = JoinCriteria { nested: true, incomplete_only: false };

fn key() -> CacheKey {
    CacheKey::new("sg", 0, Key::from("k"))
}

fn variant_key(variant: &'static str) -> CacheKey {
    key().to_variant(variant.into())
}

fn open(flights: &Arc<Flights>, scope: Scope) -> Flight {
    leads(flights.enter(&key(), scope, None, ANY))
}

fn leads(entered: Entered) -> Flight {
    match entered {
        Entered::Lead(flight) => flight,
        Entered::Wait(_) => panic!("no flight is there yet"),
    }
}

fn is_joined(flights: &Flights, flight_state: &Arc<FlightState>) -> bool {
    flights.join(&key(), ANY).is_some_and(|waiter| Arc::ptr_eq(&waiter.flight_state, flight_state))
}

/// A counter of running fetches, which asserts that there is at most one.
#[derive(Clone, Default)]
struct Computing(Arc<AtomicUsize>);

impl Computing {
    /// Runs one fetch, which may be dropped at its await.
    async fn once(&self) {
        assert_eq!(self.0.fetch_add(1, SeqCst), 0, "two fetches run at the same time");
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

/// Asks until there is an answer, and leads if there is no leader.
async fn ask(flights: Arc<Flights>, computing: Computing) {
    loop {
        match flights.enter(&key(), Scope::Fleet, None, ANY) {
            Entered::Wait(waiter) => match waiter.outcome(|_| false).await {
                Progress::Uncacheable(Audience::Everyone) => return,
                _ => continue,
            },
            Entered::Lead(flight) => {
                computing.once().await;
                return flight.complete(Progress::Uncacheable(Audience::Everyone));
            }
        }
    }
}

/// Like [`ask`], for a store that does not answer: through the flight of the fleet, or directly.
async fn ask_locally(flights: Arc<Flights>, computing: Computing, directly: bool) {
    loop {
        let scope = if directly { Scope::Local } else { Scope::Fleet };
        let (waiter, flight) = match flights.enter(&key(), scope, None, ANY) {
            Entered::Wait(waiter) => (waiter, None),
            Entered::Lead(flight) if directly => {
                computing.once().await;
                return flight.complete(Progress::Uncacheable(Audience::Everyone));
            }
            Entered::Lead(flight) => match flight.go_local(ANY) {
                Some(waiter) => (waiter, Some(flight)),
                None => {
                    assert!(!is_joined(&flights, &flight.0), "a later caller asks the store first");
                    computing.once().await;
                    return flight.complete(Progress::Uncacheable(Audience::Everyone));
                }
            },
        };
        let state = waiter.outcome(|_| false).await;
        if let Some(flight) = flight {
            flight.complete(state.clone());
        }
        if matches!(state, Progress::Uncacheable(Audience::Everyone)) {
            return;
        }
    }
}

/// Seen to fail when `enter` looks and inserts in two steps. Seen to deadlock when a dropped flight publishes no state,
/// and to run for ever when it stays in the table.
#[test]
fn flight_has_one_leader_and_the_next_caller_takes_over() {
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

/// Seen to fail when `go_local` ignores an existing flight, and when it leaves the table of the fleet without entering
/// the local one.
#[test]
fn local_flight_has_one_leader_at_a_time() {
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

/// Seen to deadlock when a dropped flight publishes no state, and to fail when a flight publishes its result before it
/// leaves the table.
#[test]
fn waiters_learn_how_their_flight_ended() {
    let ends: [fn(Flight); 6] = [
        |flight| flight.complete(Progress::Uncacheable(Audience::Everyone)),
        |flight| drop(flight),
        |flight| {
            flight.unlist();
            flight.publish(Progress::Uncacheable(Audience::Everyone));
        },
        |flight| {
            flight.invalidated();
            drop(flight);
        },
        |flight| {
            flight.publish(Progress::Queued);
            flight.publish(Progress::Running);
            flight.complete(Progress::Uncacheable(Audience::Everyone));
        },
        |flight| {
            flight.publish(Progress::Queued);
            let _ = flight.go_local(ANY);
            drop(flight);
        },
    ];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        let joined = [ANY, NESTED].map(|criteria| {
            let flights = flights.clone();
            spawn(async move {
                let Some(waiter) = flights.join(&key(), criteria) else { return };
                let state = waiter.outcome(|_| false).await;
                assert!(!matches!(state, Progress::Running));
                match state {
                    Progress::Queued => assert!(criteria.nested),
                    _ => assert!(!is_joined(&flights, &waiter.flight_state), "a flight that has ended is not joined"),
                }
            })
        });
        let invalidation = thread::spawn({
            let flights = flights.clone();
            move || flights.forget(&key())
        });
        end(flight);
        invalidation.join().unwrap();
        for caller in joined {
            block_on(caller).unwrap();
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `forget` or `invalidated` omits one of the tables, or the variants in the table of this process.
#[test]
fn flight_begun_before_an_invalidation_is_not_joined() {
    let invalidations: [fn(&Flights, &Flight); 2] =
        [|flights, _| flights.forget(&key()), |_, flight| flight.invalidated()];
    explore(move || {
        let invalidate = any(&invalidations);
        let flights = Arc::new(Flights::default());
        let (fleet, local) = (open(&flights, Scope::Fleet), open(&flights, Scope::Local));
        let under = leads(flights.enter(&variant_key("a"), Scope::Local, None, ANY));
        let invalidated = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (flights, invalidated) = (flights.clone(), invalidated.clone());
            let (fleet, local, under) = (fleet.0.clone(), local.0.clone(), under.0.clone());
            move || {
                let afterwards = invalidated.load(SeqCst);
                assert!(!(afterwards && is_joined(&flights, &fleet)));
                for (key, old) in [(key(), local), (variant_key("a"), under)] {
                    let entered = flights.enter(&key, Scope::Local, None, ANY);
                    assert!(
                        !(afterwards
                            && matches!(entered, Entered::Wait(waiter) if Arc::ptr_eq(&waiter.flight_state, &old)))
                    );
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

/// Seen to fail when a flight removes its successor from the table.
#[test]
fn flight_that_was_unlisted_removes_no_newer_flight() {
    let ends: [fn(Flight); 4] = [
        |flight| flight.complete(Progress::Uncacheable(Audience::Everyone)),
        |flight| drop(flight),
        |flight| flight.unlist(),
        |flight| assert!(flight.go_local(ANY).is_none()),
    ];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let old = open(&flights, Scope::Fleet);
        flights.forget(&key());
        let leaving = thread::spawn(move || end(old));
        let new = open(&flights, Scope::Fleet);
        let waiter = flights.join(&key(), ANY).expect("the new flight is listed");
        assert!(Arc::ptr_eq(&waiter.flight_state, &new.0));
        leaving.join().unwrap();
        assert!(flights.join(&key(), ANY).is_some());
        drop(new);
        assert_eq!(flights.len(), 0);
    });
}
