//! Flights under many schedules. A waiter that is never notified shows as a deadlock.

use super::*;
use crate::{
    key::Key,
    store::{
        entry::{Audience, Kind, Meta},
        token::{Inbox, Token},
    },
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
    leads(flights.enter(&key(), scope, ANY))
}

fn leads(entered: Entered) -> Flight {
    match entered {
        Entered::Lead(flight) => flight,
        Entered::Wait(_) => panic!("no flight is there yet"),
    }
}

/// Joins the flight in the table of the fleet, if there is one that meets the criteria.
fn join(flights: &Flights, criteria: JoinCriteria) -> Option<Waiter> {
    let tables = flights.tables.lock();
    tables.fleet.get(&key()).filter(|listed| listed.matches(criteria)).map(|listed| listed.join(criteria))
}

fn is_joined(flights: &Flights, flight_state: &Arc<FlightState>) -> bool {
    join(flights, ANY).is_some_and(|waiter| Arc::ptr_eq(&waiter.flight_state, flight_state))
}

fn entry() -> Entry {
    let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
    Entry::new(meta, bytes::Bytes::new())
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
        match flights.enter(&key(), Scope::Fleet, ANY) {
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

/// Seen to deadlock when a dropped flight publishes no state, and to fail when a flight publishes its result before it
/// leaves the table.
#[test]
fn waiters_learn_how_their_flight_ended() {
    let ends: [fn(Flight); 5] = [
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
    ];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        let joined = [ANY, NESTED].map(|criteria| {
            let flights = flights.clone();
            spawn(async move {
                let Some(waiter) = join(&flights, criteria) else { return };
                let state = waiter.outcome(|_| false).await;
                assert!(!matches!(state, Progress::LookingUp | Progress::Running));
                match state {
                    Progress::Queued => assert!(criteria.nested),
                    _ => assert!(!is_joined(&flights, &waiter.flight_state), "a flight that has ended is not joined"),
                }
            })
        });
        let invalidation = thread::spawn({
            let flights = flights.clone();
            move || flights.forget(&[key()])
        });
        end(flight);
        invalidation.join().unwrap();
        for caller in joined {
            block_on(caller).unwrap();
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when `forget` or `invalidated` omits one of the tables, or the variants in one of them.
#[test]
fn flight_begun_before_an_invalidation_is_not_joined() {
    let invalidations: [fn(&Flights, &Flight); 2] =
        [|flights, _| flights.forget(&[key()]), |_, flight| flight.invalidated()];
    explore(move || {
        let invalidate = any(&invalidations);
        let flights = Arc::new(Flights::default());
        let (fleet, local) = (open(&flights, Scope::Fleet), open(&flights, Scope::Local));
        let variants = [Scope::Fleet, Scope::Local].map(|scope| leads(flights.enter(&variant_key("a"), scope, ANY)));
        let invalidated = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (flights, invalidated) = (flights.clone(), invalidated.clone());
            let [in_fleet, locally] = [&variants[0], &variants[1]].map(|flight| flight.0.clone());
            let old = [
                (key(), Scope::Fleet, fleet.0.clone()),
                (key(), Scope::Local, local.0.clone()),
                (variant_key("a"), Scope::Fleet, in_fleet),
                (variant_key("a"), Scope::Local, locally),
            ];
            move || {
                let afterwards = invalidated.load(SeqCst);
                for (key, scope, old) in old {
                    let entered = flights.enter(&key, scope, ANY);
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
        drop((fleet, local, variants));
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when a flight removes its successor from the table.
#[test]
fn flight_that_was_unlisted_removes_no_newer_flight() {
    let ends: [fn(Flight); 3] = [
        |flight| flight.complete(Progress::Uncacheable(Audience::Everyone)),
        |flight| drop(flight),
        |flight| flight.unlist(),
    ];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let old = open(&flights, Scope::Fleet);
        flights.forget(&[key()]);
        let leaving = thread::spawn(move || end(old));
        let new = open(&flights, Scope::Fleet);
        let waiter = join(&flights, ANY).expect("the new flight is listed");
        assert!(Arc::ptr_eq(&waiter.flight_state, &new.0));
        leaving.join().unwrap();
        assert!(join(&flights, ANY).is_some());
        drop(new);
        assert_eq!(flights.len(), 0);
    });
}

/// Asks until a lookup has answered, and looks up the entry if no other caller does.
async fn look_up(flights: Arc<Flights>, reading: Computing, may_be_dropped: bool) {
    loop {
        match flights.enter(&key(), Scope::Fleet, ANY) {
            Entered::Wait(waiter) => match waiter.outcome(|_| false).await {
                Progress::LookedUp(Ok(None)) => return,
                state => assert!(may_be_dropped && matches!(state, Progress::Abandoned)),
            },
            Entered::Lead(flight) => {
                reading.once().await;
                return flight.end_lookup(&Ok(None));
            }
        }
    }
}

/// Seen to fail when each caller reads for itself, and when `end_lookup` counts the waiters before the flight has left the
/// table.
#[test]
fn concurrent_callers_share_one_lookup_and_survive_its_caller() {
    explore(|| {
        let is_dropped = any(&[false, true]);
        let (flights, reading) = (Arc::new(Flights::default()), Computing::default());
        let callers = [(); 3].map(|()| spawn(look_up(flights.clone(), reading.clone(), is_dropped)));
        if is_dropped {
            callers[0].abort();
        }
        for caller in callers {
            let _ = block_on(caller).inspect_err(|error| assert!(is_dropped, "{error}"));
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to deadlock when `begin_leading` wakes no waiter, and to fail when the waiter's own condition is not asked.
#[test]
fn lookup_that_leads_wakes_only_waiters_that_its_entry_settles() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        let waiters = [true, false].map(|settles| {
            let waiter = join(&flights, ANY).expect("the flight is listed");
            assert!(waiter.joined_lookup());
            spawn(async move {
                let state = waiter.outcome(|interim| settles && matches!(interim, Interim::Seen(_))).await;
                match settles {
                    true => assert!(matches!(state, Progress::LookedUp(Ok(Some(_))))),
                    false => assert!(matches!(state, Progress::Uncacheable(Audience::Everyone))),
                }
            })
        });
        flight.begin_leading(Some(&entry()));
        let late = join(&flights, ANY).expect("the flight is listed");
        assert!(!late.joined_lookup() && late.seen().is_some());
        let [settled, waiting] = waiters;
        block_on(settled).unwrap();
        flight.complete(Progress::Uncacheable(Audience::Everyone));
        block_on(waiting).unwrap();
    });
}
