//! Flights under many schedules. A waiter that is never notified shows as a deadlock.

use super::{state::LookupCriteria, *};
use crate::{
    clock::{self, Timestamp},
    engine::frontend::Failure,
    error::Error,
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
use std::time::Duration;

/// A caller that has looked up the entry.
const ANY: JoinCriteria = JoinCriteria { nested: false, incomplete_only: false, lookup: None };
const NESTED: JoinCriteria = JoinCriteria { nested: true, ..ANY };
/// A caller that needs a lookup.
const LOOKUP: JoinCriteria = JoinCriteria { lookup: Some(LookupCriteria { timeout: HOUR, remembered: 0 }), ..ANY };
const HOUR: Duration = Duration::from_secs(3600);

const SCOPES: [Scope; 3] = [Scope::Fleet, Scope::Local, Scope::Lookup];

fn key() -> CacheKey {
    CacheKey::new("sg", 0, Key::from("k"))
}

fn variant_key(variant: &'static str) -> CacheKey {
    key().to_variant(variant.into())
}

fn open(flights: &Arc<Flights>, scope: Scope) -> Flight {
    leads(flights.enter(&key(), scope, ANY, None))
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
    tables.fleet.get(&key()).filter(|listed| listed.matches(criteria)).map(|listed| Waiter::join(listed, criteria))
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
        match flights.enter(&key(), Scope::Fleet, ANY, None) {
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
        let (waiter, flight) = match flights.enter(&key(), scope, ANY, None) {
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
        let variants = SCOPES.map(|scope| leads(flights.enter(&variant_key("a"), scope, LOOKUP, None)));
        let invalidated = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (flights, invalidated) = (flights.clone(), invalidated.clone());
            let variants = variants.iter().map(|flight| (variant_key("a"), flight.0.scope, flight.0.clone()));
            let primary = [&fleet, &local].map(|flight| (key(), flight.0.scope, flight.0.clone()));
            let old: Vec<_> = variants.chain(primary).collect();
            move || {
                let afterwards = invalidated.load(SeqCst);
                for (key, scope, old) in old {
                    let entered = flights.enter(&key, scope, LOOKUP, None);
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
        match flights.enter(&key(), Scope::Fleet, LOOKUP, None) {
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

/// Seen to fail when each caller reads for itself, and when `end_lookup` counts the waiters before the flight has left
/// the table.
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

/// Seen to fail when `begin_leading` asks no table, and when a caller that has looked up the entry joins a lookup.
#[test]
fn one_of_the_callers_that_have_looked_up_the_entry_leads() {
    explore(|| {
        let (flights, leading) = (Arc::new(Flights::default()), Arc::new(AtomicUsize::new(0)));
        let lead = |entered: Entered, leading: &AtomicUsize| match entered {
            Entered::Lead(flight) => {
                assert_eq!(leading.fetch_add(1, SeqCst), 0, "two leaders at the same time");
                Some(flight)
            }
            Entered::Wait(waiter) => {
                assert!(!waiter.joined_lookup());
                None
            }
        };
        let opener = leads(flights.enter(&key(), Scope::Fleet, LOOKUP, None));
        let others = [(); 2].map(|()| {
            let (flights, leading) = (flights.clone(), leading.clone());
            thread::spawn(move || lead(flights.enter(&key(), Scope::Fleet, ANY, None), &leading))
        });
        let flight = match opener.begin_leading(None) {
            true => lead(Entered::Lead(opener), &leading),
            false => lead(flights.enter(&key(), Scope::Fleet, ANY, None), &leading),
        };
        let flights_of_others = others.map(|other| other.join().unwrap());
        assert_eq!(leading.load(SeqCst), 1);
        drop((flight, flights_of_others));
        assert_eq!(flights.len(), 0);
    });
}

/// Whatever the leader has done before the waiter is polled. Seen to fail when `seen` is asked for in one state only.
#[tokio::test(start_paused = true)]
async fn waiter_of_a_lookup_uses_its_entry_in_every_state() {
    let states: [fn() -> Progress; 4] = [
        || Progress::Queued,
        || Progress::Uncacheable(Audience::Everyone),
        || Progress::Failed(Failure::Error(Error::wait_timed_out()), None),
        || Progress::Abandoned,
    ];
    for state in states {
        let flights = Arc::new(Flights::default());
        let flight = leads(flights.enter(&key(), Scope::Fleet, LOOKUP, None));
        let Entered::Wait(waiter) = flights.enter(&key(), Scope::Fleet, LOOKUP, None) else { panic!("it is joined") };
        assert!(flight.begin_leading(Some(&entry())));
        flight.publish(state());
        let until = clock::deadline_after(HOUR);
        let found = waiter.lookup_until(HOUR, until, |_| true).await;
        assert!(matches!(found, Some(Progress::LookedUp(Ok(Some(_))))));
        assert!(waiter.lookup_until(HOUR, until, |_| false).await.is_none());
    }
}

/// Its reply may be old, and may say nothing about remembered redirects. Seen to fail when the age of a lookup, its
/// timeout, or the redirects that it reads are ignored.
#[tokio::test(start_paused = true)]
async fn lookup_is_joined_only_by_callers_that_it_suits() {
    let flights = Arc::new(Flights::default());
    let criteria = |timeout, remembered| JoinCriteria { lookup: Some(LookupCriteria { timeout, remembered }), ..ANY };
    let is_joined = |timeout, remembered| {
        let listed = flights.tables.lock().fleet.get(&key()).cloned();
        listed.is_some_and(|listed| listed.matches(criteria(timeout, remembered)))
    };
    let _flight = leads(flights.enter(&key(), Scope::Fleet, criteria(HOUR, 1), None));
    assert_eq!([HOUR, HOUR * 2, HOUR / 2].map(|timeout| is_joined(timeout, 1)), [true, false, false]);
    assert_eq!([0, 1, 2].map(|remembered| is_joined(HOUR, remembered)), [true, true, false]);
    tokio::time::advance(HOUR).await;
    assert!(!is_joined(HOUR, 1));
}

/// Seen to deadlock when `begin_leading` wakes no waiter.
#[test]
fn waiters_learn_what_the_lookup_found_before_the_fetch_ends() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let flight = leads(flights.enter(&key(), Scope::Fleet, LOOKUP, None));
        let Entered::Wait(waiter) = flights.enter(&key(), Scope::Fleet, LOOKUP, None) else { panic!("it is joined") };
        let learns = spawn(async move {
            let is_over = |progress: &Progress| !matches!(progress, Progress::LookingUp);
            waiter.flight_state.progress.wait_for(|progress| is_over(progress) && waiter.seen().is_some()).await;
        });
        assert!(flight.begin_leading(Some(&entry())));
        block_on(learns).unwrap();
        let Entered::Wait(late) = flights.enter(&key(), Scope::Fleet, LOOKUP, None) else { panic!("it is joined") };
        assert!(!late.joined_lookup() && late.seen().is_some());
    });
}

/// Seen to fail when a pause gives way to a lookup, whose caller then leads although the flight has been told to wait.
#[test]
fn leader_that_pauses_takes_its_place_from_a_lookup() {
    let flights = Arc::new(Flights::default());
    let flight = open(&flights, Scope::Fleet);
    flights.forget(&[key()]);
    let lookup = leads(flights.enter(&key(), Scope::Fleet, LOOKUP, None));
    assert!(flight.begin_pause() && is_joined(&flights, &flight.0));
    assert!(!lookup.begin_leading(None));
    flights.forget(&[key()]);
    assert!(is_joined(&flights, &flight.0), "it stays while it has no question under way");
    flight.end_pause();
    flights.forget(&[key()]);
    let newer = open(&flights, Scope::Fleet);
    assert!(!flight.begin_pause() && is_joined(&flights, &newer.0), "another leader stays");
}

/// Seen to fail when the flight is abandoned without a look at its state under the lock of the tables.
#[test]
fn lookup_that_has_begun_to_lead_is_not_abandoned() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let flight = leads(flights.enter(&key(), Scope::Fleet, LOOKUP, None));
        let abandoning = thread::spawn({
            let flight_state = flight.0.clone();
            move || flight_state.abandon_lookup()
        });
        let leads = flight.begin_leading(None);
        assert_ne!(leads, abandoning.join().unwrap());
        assert_eq!(leads, is_joined(&flights, &flight.0));
    });
}
