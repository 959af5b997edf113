//! Flights under many schedules. A waiter that is never notified shows as a deadlock.

use super::*;
use crate::{
    key::Key,
    store::{
        entry::{Audience, Kind, Meta},
        token::{Inbox, Token},
    },
    sync::schedules::{any, explore},
};
use futures_util::FutureExt as _;
use shuttle::{
    future::{block_on, spawn, yield_now},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
};
use std::{
    pin::pin,
    task::{Context, Wake},
    time::Duration,
};

const ANY: JoinCriteria = JoinCriteria { nested: false, incomplete_only: false, deadline: None, since: 0 };
const NESTED: JoinCriteria = JoinCriteria { nested: true, ..ANY };

const SCOPES: [Scope; 2] = [Scope::Fleet, Scope::Local];

fn key() -> CacheKey {
    CacheKey::new("sg", 0, Key::from("k"))
}

fn variant_key(variant: &'static str) -> CacheKey {
    key().to_variant(variant.into())
}

fn open(flights: &Arc<Flights>, scope: Scope) -> Flight {
    leads(flights.enter(&key(), scope, ANY, None))
}

fn leads(entered: Result<Flight, Waiter>) -> Flight {
    entered.ok().expect("no flight is there yet")
}

fn is_private(state: &Progress) -> bool {
    matches!(state, Progress::Unshared(Unshared::Private(Audience::Everyone)))
}

fn private() -> Progress {
    Progress::Unshared(Unshared::Private(Audience::Everyone))
}

fn join(flights: &Flights, criteria: JoinCriteria) -> Option<Waiter> {
    flights.join(&key(), criteria)
}

fn is_joined(flights: &Flights, flight: &Arc<FlightState>) -> bool {
    join(flights, ANY).is_some_and(|waiter| Arc::ptr_eq(&waiter.flight, flight))
}

fn entry() -> Entry {
    let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
    Entry::new(meta, Bytes::new())
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

/// Waits for the outcome, or for the flight if this waiter is to lead next.
async fn next(waiter: &Waiter) -> Result<Flight, Progress> {
    tokio::select! {
        biased;
        state = waiter.outcome(|_| false) => Err(state),
        flight = waiter.chosen() => Ok(flight),
    }
}

/// Asks until there is an answer, and leads if there is no leader.
async fn ask(flights: Arc<Flights>, scope: Scope, criteria: JoinCriteria, computing: Computing) {
    loop {
        let entered = flights.enter(&key(), scope, criteria, None);
        let flight = match &entered {
            Ok(_) => entered.ok().expect("it leads"),
            Err(waiter) => match next(waiter).await {
                Ok(flight) => flight,
                Err(state) if is_private(&state) => return,
                Err(_) => continue,
            },
        };
        computing.once().await;
        return flight.complete(private());
    }
}

/// Returns the criteria of `N` callers, each with a later deadline than the one before.
fn deadlines<const N: usize>() -> [JoinCriteria; N] {
    let now = clock::now();
    std::array::from_fn(|n| JoinCriteria { deadline: Some(now + Duration::from_secs(n as u64)), ..ANY })
}

/// Seen to fail when `enter` looks and inserts in two steps. Seen to deadlock when a dropped flight publishes no state,
/// and when a chosen waiter that leaves chooses no other. Seen to run for ever when a dropped flight stays in the
/// table.
#[test]
fn flight_has_one_leader_and_the_next_caller_takes_over() {
    explore(|| {
        let (flights, computing, scope) = (Arc::new(Flights::default()), Computing::default(), any(&SCOPES));
        let callers = deadlines::<4>().map(|until| spawn(ask(flights.clone(), scope, until, computing.clone())));
        callers[0].abort();
        callers[2].abort();
        for caller in callers {
            let _ = block_on(caller);
        }
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when a dropped flight releases its waiters, when the earliest deadline counts, when a chosen waiter
/// that leaves chooses no other, and when a flight that was handed over counts as one between two questions.
#[test]
fn dropped_flight_goes_to_the_waiter_with_the_latest_deadline() {
    let flights = Arc::new(Flights::default());
    let (flight, [first, second, third]) = (open(&flights, Scope::Fleet), deadlines());
    let mut waits: Vec<_> = [second, first, third, first]
        .map(|criteria| {
            let waiter = join(&flights, criteria).expect("it is listed");
            Box::pin(async move { next(&waiter).await })
        })
        .into();
    assert!(waits.iter_mut().all(|waits| waits.now_or_never().is_none()));
    assert!(flight.begin_pause());
    flight.publish_head(None);
    drop(flight);
    let handed_over = waits.iter_mut().map(|waits| waits.now_or_never().and_then(Result::ok)).collect::<Vec<_>>();
    let [None, None, Some(flight), None] = <[_; 4]>::try_from(handed_over).ok().expect("four waiters") else {
        panic!("the others wait");
    };
    assert!(flight.0.progress.is(|progress| matches!(progress, Progress::Running)));
    flights.forget(&[key()]);
    assert!(!is_joined(&flights, &flight.0), "its question may be older");
    flight.begin_pause();
    drop(flight);
    drop(waits.remove(0)); // the next one leaves before it leads
    assert_eq!(flights.len(), 1);
    drop(waits);
    assert_eq!(flights.len(), 0);
}

/// Seen to deadlock when a dropped flight publishes no state, and to fail when a flight publishes its result before it
/// leaves the table.
#[test]
fn waiters_learn_how_their_flight_ended() {
    let ends: [fn(Flight); 6] = [
        |flight| flight.complete(private()),
        |flight| drop(flight),
        |flight| {
            flight.state().unlist();
            flight.publish(private());
        },
        |flight| {
            flight.invalidated();
            drop(flight);
        },
        |flight| {
            flight.publish(Progress::Queued);
            flight.publish(Progress::Running);
            flight.complete(private());
        },
        |flight| {
            flight.publish(Progress::Queued);
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
                assert!(!matches!(state, Progress::Running));
                match state {
                    Progress::Queued => assert!(criteria.nested),
                    _ => assert!(!is_joined(&flights, &waiter.flight), "a flight that has ended is not joined"),
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

/// Seen to fail when `forget` leaves out one of the scopes, or the variants.
#[test]
fn flight_begun_before_an_invalidation_is_not_joined() {
    let invalidations: [fn(&Flights, &Flight); 2] =
        [|flights, _| flights.forget(&[key()]), |_, flight| flight.invalidated()];
    explore(move || {
        let invalidate = any(&invalidations);
        let flights = Arc::new(Flights::default());
        let keys = [key(), variant_key("a")];
        let places: Vec<_> = keys.iter().flat_map(|key| SCOPES.map(|scope| (key.clone(), scope))).collect();
        let old: Vec<_> = places.iter().map(|(key, scope)| leads(flights.enter(key, *scope, ANY, None))).collect();
        let invalidated = Arc::new(AtomicBool::new(false));
        let caller = thread::spawn({
            let (flights, invalidated) = (flights.clone(), invalidated.clone());
            let old: Vec<_> = places.into_iter().zip(old.iter().map(|flight| flight.0.clone())).collect();
            move || {
                let afterwards = invalidated.load(SeqCst);
                for ((key, scope), old) in old {
                    let entered = flights.enter(&key, scope, ANY, None);
                    let joins_old = matches!(entered, Err(waiter) if Arc::ptr_eq(&waiter.flight, &old));
                    assert!(!(afterwards && joins_old));
                }
            }
        });
        invalidate(&flights, &old[0]);
        invalidated.store(true, SeqCst);
        caller.join().unwrap();
        drop(old);
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when a flight removes its successor from the table.
#[test]
fn flight_that_was_unlisted_removes_no_newer_flight() {
    let ends: [fn(Flight); 3] =
        [|flight| flight.complete(private()), |flight| drop(flight), |flight| flight.state().unlist()];
    explore(move || {
        let end = any(&ends);
        let flights = Arc::new(Flights::default());
        let old = open(&flights, Scope::Fleet);
        flights.forget(&[key()]);
        let leaving = thread::spawn(move || end(old));
        let new = open(&flights, Scope::Fleet);
        let waiter = join(&flights, ANY).expect("the new flight is listed");
        assert!(Arc::ptr_eq(&waiter.flight, &new.0));
        leaving.join().unwrap();
        assert!(join(&flights, ANY).is_some());
        drop(new);
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when an invalidation outdates a leader that has no question under way.
#[test]
fn leader_that_pauses_is_joined_unless_a_newer_one_leads() {
    let flights = Arc::new(Flights::default());
    let flight = open(&flights, Scope::Fleet);
    flights.forget(&[key()]);
    assert!(!is_joined(&flights, &flight.0), "its question may be older");
    assert!(flight.begin_pause() && is_joined(&flights, &flight.0));
    flights.forget(&[key()]);
    assert!(is_joined(&flights, &flight.0), "it stays while it has no question under way");
    flight.end_pause();
    flights.forget(&[key()]);
    let newer = open(&flights, Scope::Fleet);
    assert!(!flight.begin_pause() && is_joined(&flights, &newer.0), "another leader stays");
}

/// Seen to fail (the leader is woken) when a caller that opens no flight joins the listed one and leaves it.
#[test]
fn caller_that_may_open_a_flight_does_not_disturb_a_listed_one() {
    #[derive(Default)]
    struct Woken(std::sync::atomic::AtomicBool);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.store(true, SeqCst);
        }
    }
    let (flights, woken) = (Arc::new(Flights::default()), Arc::<Woken>::default());
    let flight = open(&flights, Scope::Fleet);
    let waker = woken.clone().into();
    let mut joined = pin!(flight.joined());
    assert!(joined.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(flights.open(&key(), Scope::Fleet, ANY, None).is_none());
    assert!(!woken.0.load(SeqCst), "no caller wants its result");
    let _waiter = join(&flights, ANY).expect("it is listed");
    assert!(woken.0.load(SeqCst));
}

/// Seen to fail (each caller joins it and tries again at once, until it has no attempt left) when any listed flight may
/// be joined, and when a leader that was abandoned may pause.
#[test]
fn leader_that_goes_on_after_it_was_abandoned_is_not_joined() {
    explore(|| {
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        flights.forget(&[key()]);
        let state = flight.0.clone();
        let waiter = thread::spawn(move || state.abandon());
        flight.begin_pause();
        waiter.join().unwrap();
        assert!(!flight.begin_pause());
        let newer = leads(flights.enter(&key(), Scope::Fleet, ANY, None));
        assert!(is_joined(&flights, &newer.0));
        drop(flight);
        assert_eq!(flights.len(), 1, "the newer one stays");
        drop(newer);
        assert_eq!(flights.len(), 0);
    });
}

/// Seen to fail when the candidate is compared by nothing.
#[test]
fn stale_candidate_is_served_until_its_resource_is_invalidated() {
    let flights = Arc::new(Flights::default());
    let flight = open(&flights, Scope::Fleet);
    let waiter = flight.waiter();
    let ask = || flights.versions.now();
    flight.set_stale_candidate(Some(entry()), ask());
    assert!(waiter.stale_candidate().is_some());
    let asked = ask();
    flight.invalidated();
    assert!(waiter.stale_candidate().is_none());
    flight.set_stale_candidate(Some(entry()), asked);
    assert!(waiter.stale_candidate().is_none(), "the answer may be older than the invalidation");
    flight.set_stale_candidate(Some(entry()), ask());
    assert!(waiter.stale_candidate().is_some());
}

/// Seen to fail (no answer within an hour) if no look abandons the flight.
#[tokio::test(start_paused = true)]
async fn each_waiter_looks_whether_the_leader_is_polled() {
    let flights = Arc::new(Flights::default());
    let flight = open(&flights, Scope::Fleet);
    let waiters: Vec<_> = (0..100).map(|_| join(&flights, ANY).expect("it is listed")).collect();
    let until = clock::deadline_after(Duration::from_secs(3600));
    let mut waits = waiters.into_iter().map(|waiter| {
        tokio::spawn(async move { waiter.outcome_until(until, Duration::from_millis(1_500), |_| false).await })
    });
    let (first, others) = (waits.by_ref().take(99).collect::<Vec<_>>(), waits.collect::<Vec<_>>());
    tokio::task::yield_now().await;
    first.iter().for_each(|wait| wait.abort());
    for other in others {
        assert!(matches!(other.await.expect("no panic"), Some(Err(Progress::Abandoned))), "the leader is never polled");
    }
    assert_eq!(flights.len(), 0);
    drop(flight);
}

/// Seen to fail when no waiter looks.
#[tokio::test(start_paused = true)]
async fn waiters_of_a_herd_look_in_turn() {
    let flights = Arc::new(Flights::default());
    let [polls, wakes] = [(); 2].map(|()| Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let flight = open(&flights, Scope::Fleet);
    let leader = tokio::spawn({
        let polls = polls.clone();
        flight.0.with_pulse(poll_fn(move |_| {
            polls.fetch_add(1, SeqCst);
            Poll::<()>::Pending
        }))
    });
    let (until, half_lease) = (clock::deadline_after(Duration::from_secs(3600)), Duration::from_millis(1_500));
    let waits = (0..1000).map(|_| {
        let (flights, wakes) = (flights.clone(), wakes.clone());
        tokio::spawn(async move {
            let waiter = join(&flights, ANY).expect("it is listed");
            let mut waits = pin!(waiter.outcome_until(until, half_lease, |_| false));
            poll_fn(|cx| {
                wakes.fetch_add(1, SeqCst);
                waits.as_mut().poll(cx)
            })
            .await
        })
    });
    let waits: Vec<_> = waits.collect();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (polls, wakes) = (polls.load(SeqCst), wakes.load(SeqCst) - waits.len());
    assert!((35..=45).contains(&polls) && (35..=50).contains(&wakes), "{polls} of the leader, {wakes} of waiters");
    leader.abort();
    let stopped = clock::now();
    for wait in waits {
        assert!(matches!(wait.await.expect("no panic"), Some(Err(Progress::Abandoned))));
    }
    assert!(stopped.elapsed() <= Duration::from_millis(4_510), "{:?}", stopped.elapsed());
}

/// Each caller leaves before its first look is due. Seen to fail when no caller looks on arrival.
#[tokio::test(start_paused = true)]
async fn leader_is_abandoned_although_no_waiter_stays() {
    let flights = Arc::new(Flights::default());
    let flight = open(&flights, Scope::Fleet);
    let began = clock::now();
    while let Some(waiter) = join(&flights, ANY) {
        assert!(clock::now() - began <= Duration::from_secs(10), "the leader is never polled");
        let until = clock::deadline_after(Duration::from_secs(1));
        waiter.outcome_until(until, Duration::from_millis(1_500), |_| false).await;
    }
    drop(flight);
}

/// Seen to fail when tables only grow.
#[test]
fn table_shrinks_when_its_flights_have_ended() {
    let flights = Arc::new(Flights::default());
    let key = |n: u64| CacheKey::new("sg", 0, Key::new(n));
    let open: Vec<_> = (0..10_000).map(|n| leads(flights.enter(&key(n), Scope::Fleet, ANY, None))).collect();
    drop(open);
    assert!(flights.table.lock().capacity() <= 2 * MIN_CAPACITY);
}

/// Seen to fail when the last rank alone decided: in half of the draws a request leads that is like the failed one.
#[tokio::test]
async fn repeat_goes_to_a_request_of_another_kind() {
    for _ in 0..100 {
        let flights = Arc::new(Flights::default());
        let flight = open(&flights, Scope::Fleet);
        let mut waiters: Vec<_> = (0..20).map(|_| join(&flights, ANY).expect("it is listed")).collect();
        waiters.iter_mut().zip([1, 2].into_iter().cycle()).for_each(|(waiter, kind)| waiter.request_hash = kind);
        let mut chosen: Vec<_> = waiters.iter().map(|waiter| Box::pin(waiter.chosen())).collect();
        assert!(chosen.iter_mut().all(|chosen| chosen.as_mut().now_or_never().is_none()));
        flight.set_failed(1);
        drop(flight);
        let leaders: Vec<_> = chosen.iter_mut().map(|chosen| chosen.as_mut().now_or_never().is_some()).collect();
        assert_eq!(leaders.iter().filter(|leads| **leads).count(), 1);
        assert_eq!(leaders.iter().position(|leads| *leads).map(|place| place % 2), Some(1));
    }
}
