//! Waiting: wait timeouts, deadlines and waiter limits, and what a caller gets when they end.

use crate::{Down, MS, SECOND, never, support::Origin};
use stampede_guard::{
    Cache, CacheStatus, Error, ErrorKind, FetchContext, FetchOutcome, MemoryStore, Policy, StampedeGuard,
    testing::{
        FakeRedis, Fault,
        Operation::{Fill, GetOrLease},
    },
};
use std::{
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep},
};

/// Spawns a caller that leads `k` until the origin is opened.
async fn leading(counts: &Cache<usize>, origin: &Origin) -> JoinHandle<Result<usize, Error>> {
    let (counts, calls, work) = (counts.clone(), origin.calls(), origin.clone());
    let leader = tokio::spawn(async move { counts.fetch("k", async move || Ok::<_, Down>(work.call().await)).await });
    origin.arrived(calls + 1).await;
    leader
}

fn soon(span: Duration) -> StdInstant {
    (Instant::now() + span).into_std()
}

/// In the process of the leader, and in another process.
#[tokio::test(start_paused = true)]
async fn caller_is_rejected_after_wait_timeout_if_configured() {
    let store = Arc::new(MemoryStore::default());
    let guards = [(); 2].map(|()| StampedeGuard::new(store.clone()).wait_timeout(SECOND));
    let origin = Origin::gated();
    let leader = leading(&guards[0].cache("count"), &origin).await;
    for guard in &guards {
        let asked = Instant::now();
        let error = guard.cache("count").fetch("k", never::<usize>).await.expect_err("refused");
        assert_eq!((error.kind(), error.retry_in()), (ErrorKind::Overloaded, Some(SECOND)));
        assert!((800 * MS..=1200 * MS).contains(&asked.elapsed()), "{:?}", asked.elapsed());
        assert_eq!((guard.stats().overloaded, guard.stats().rejected), (1, 1));
    }
    origin.open();
    assert_eq!(leader.await.expect("no panic").expect("an answer"), 1);
}

/// Settings belong to a clone and its callers. A caller of another clone must not be rejected with them.
#[tokio::test(start_paused = true)]
async fn waiter_keeps_waiting_when_the_caller_it_joined_is_rejected() {
    let store = Arc::new(MemoryStore::default());
    let origin = Origin::gated();
    let leader = leading(&StampedeGuard::new(store.clone()).cache("count"), &origin).await;
    let patient = StampedeGuard::new(store).wait_timeout(60 * SECOND);
    let impatient = patient.clone().wait_timeout(SECOND).cache("count");
    let patient = patient.cache("count");
    let refused = impatient.fetch("k", never::<usize>);
    let joined = patient.fetch("k", never::<usize>);
    let release = async {
        sleep(10 * SECOND).await;
        origin.open();
    };
    let (refused, joined, ()) = tokio::join!(refused, joined, release);
    assert_eq!(refused.expect_err("refused").kind(), ErrorKind::Overloaded);
    assert_eq!(joined.expect("an answer"), 1);
    leader.await.expect("no panic").expect("an answer");
}

/// Seen to fail (six callers are answered) without the limit.
#[tokio::test(start_paused = true)]
async fn caller_beyond_max_waiters_is_rejected_at_once() {
    let (guard, origin) = (StampedeGuard::in_memory().max_waiters(3), Origin::gated());
    let counts = guard.cache("count");
    let leader = leading(&counts, &origin).await;
    let callers = (0..5).map(|_| counts.fetch("k", never::<usize>));
    let asked = Instant::now();
    let release = async {
        sleep(SECOND).await;
        origin.open();
    };
    let (answers, ()) = tokio::join!(futures_util::future::join_all(callers), release);
    let refused: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).map(Error::kind).collect();
    assert_eq!(refused, [ErrorKind::Overloaded; 2]);
    assert!(asked.elapsed() < 2 * SECOND);
    assert_eq!(leader.await.expect("no panic").expect("an answer"), 1);
    assert_eq!((guard.stats().coalesced, guard.stats().overloaded), (3, 2));
}

/// An entry whose fetch took two seconds, and a task that fetches it again.
async fn two_seconds_of_work(guard: &StampedeGuard, policy: Policy) -> (Cache<i32>, JoinHandle<Result<i32, Error>>) {
    let values = guard.cache("value").policy(policy.jitter(0.0));
    let work = async || {
        sleep(2 * SECOND).await;
        Ok::<_, Down>(1)
    };
    values.fetch("k", work).await.expect("an answer");
    sleep(700 * MS).await;
    let leader = {
        let values = values.clone();
        tokio::spawn(async move { values.fetch("k", work).await })
    };
    sleep(100 * MS).await;
    (values, leader)
}

/// Seen to fail (the caller waits until its deadline) when the cost of the last fetch is ignored.
#[tokio::test(start_paused = true)]
async fn caller_is_rejected_if_the_fetch_ends_after_its_deadline() {
    let (values, leader) = two_seconds_of_work(&StampedeGuard::in_memory(), Policy::fresh_for(500 * MS)).await;
    let asked = Instant::now();
    let hurried = values.entry("k").deadline(soon(SECOND));
    assert_eq!(hurried.fetch(never).await.expect_err("too late").kind(), ErrorKind::Overloaded);
    assert_eq!(asked.elapsed(), Duration::ZERO);
    let patient = values.entry("k").deadline(soon(3 * SECOND));
    assert_eq!(patient.fetch(never).await.expect("in time"), 1);
    assert_eq!(leader.await.expect("no panic").expect("an answer"), 1);
}

#[tokio::test(start_paused = true)]
async fn caller_gets_a_stale_value_if_its_deadline_is_too_short() {
    let policy = Policy::fresh_for(500 * MS).stale_if_error(60 * SECOND);
    let guard = StampedeGuard::in_memory();
    let (values, leader) = two_seconds_of_work(&guard, policy).await;
    let asked = Instant::now();
    let hurried = values.entry("k").deadline(soon(SECOND));
    assert_eq!(hurried.fetch(never).await.expect("the stale one"), 1);
    assert_eq!((asked.elapsed(), guard.stats().stale_hits), (Duration::ZERO, 1));
    leader.await.expect("no panic").expect("an answer");
}

/// The cost of the fetch is unknown, so the caller waits until its deadline.
#[tokio::test(start_paused = true)]
async fn caller_waits_at_most_until_its_deadline() {
    let (counts, origin) = (StampedeGuard::in_memory().cache("count"), Origin::gated());
    let leader = leading(&counts, &origin).await;
    let asked = Instant::now();
    let hurried = counts.entry("k").deadline(soon(SECOND));
    assert_eq!(hurried.fetch(never).await.expect_err("too late").kind(), ErrorKind::Overloaded);
    assert_eq!(asked.elapsed(), SECOND);
    origin.open();
    leader.await.expect("no panic").expect("an answer");
}

#[tokio::test(start_paused = true)]
async fn fetch_continues_after_the_deadline_of_its_caller() {
    let guard = StampedeGuard::in_memory();
    let work = async || {
        sleep(2 * SECOND).await;
        Ok::<_, Down>(1)
    };
    let values = guard.cache("value");
    let hurried = values.entry("k").deadline(soon(SECOND));
    assert_eq!(hurried.fetch(work).await.expect_err("too late").kind(), ErrorKind::Overloaded);
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!(values.fetch("k", never::<i32>).await.expect("a hit"), 1);
}

/// Seen to fail (it waits until the wait timeout) when a scoped fetch waits for other processes like a fetch that
/// outlives its caller.
#[tokio::test(start_paused = true)]
async fn scoped_caller_waits_at_most_until_its_deadline() {
    let store = Arc::new(MemoryStore::default());
    let origin = Origin::gated();
    let leader = leading(&StampedeGuard::new(store.clone()).cache("count"), &origin).await;
    let asked = Instant::now();
    let counts = StampedeGuard::new(store).cache::<usize>("count");
    let hurried = counts.entry("k").deadline(soon(SECOND));
    let error = hurried.fetch_scoped(never).await.expect_err("too late");
    assert_eq!((error.kind(), asked.elapsed()), (ErrorKind::Overloaded, SECOND));
    origin.open();
    leader.await.expect("no panic").expect("an answer");
}

/// Seen to fail (the only waiter is rejected) when a leader with a deadline counts as a waiter.
#[tokio::test(start_paused = true)]
async fn leader_with_a_deadline_does_not_count_as_a_waiter() {
    let values = StampedeGuard::in_memory().max_waiters(1).cache("value");
    let led = values.entry("k").deadline(soon(10 * SECOND)).fetch(async || {
        sleep(SECOND).await;
        Ok::<_, Down>(1)
    });
    let waited = async {
        sleep(MS).await;
        values.fetch("k", never::<i32>).await
    };
    let (led, waited) = tokio::join!(led, waited);
    assert_eq!((led.expect("an answer"), waited.expect("an answer")), (1, 1));
}

/// Seen to fail (the caller gets the stale entry) when only the cost of the last fetch is considered.
#[tokio::test(start_paused = true)]
async fn caller_with_a_deadline_takes_a_response_being_filled() {
    let node = FakeRedis::new().node();
    let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
    let values = node.guard().cache("value").policy(policy);
    let slow = async || {
        sleep(10 * SECOND).await;
        Ok::<_, Down>(1)
    };
    values.fetch("k", slow).await.expect("an answer");
    sleep(2 * SECOND).await;
    node.always(Fill, Fault::ReplyDelayed(100 * MS));
    values.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer");
    let hurried = values.entry("k").deadline(soon(SECOND));
    assert_eq!(hurried.fetch(never::<i32>).await.expect("it is there"), 2);
}

/// The wait timeout bounds the wait for another leader, not the fetch that the caller begins afterwards.
///
/// Seen to fail (the caller is rejected after a second, while its fetch runs) when the limit is not checked against the
/// fetch once more.
#[tokio::test(start_paused = true)]
async fn wait_timeout_does_not_end_the_fetch_of_the_caller() {
    let store = Arc::new(MemoryStore::default());
    let values = [(); 2].map(|()| StampedeGuard::new(store.clone()).wait_timeout(SECOND).cache("value"));
    let abandoned = async {
        let stuck = values[0].entry("k").fetch_scoped(std::future::pending::<Result<i32, Down>>);
        assert!(tokio::time::timeout(500 * MS, stuck).await.is_err());
    };
    let takes_over = async {
        sleep(MS).await;
        let slow = async || {
            sleep(2 * SECOND).await;
            Ok::<_, Down>(2)
        };
        values[1].fetch("k", slow).await
    };
    let ((), answer) = tokio::join!(abandoned, takes_over);
    assert_eq!(answer.expect("its own answer"), 2);
}

/// A cache whose value `k` is stale, and may replace a failed fetch.
async fn with_stale_value(guard: &StampedeGuard) -> Cache<i32> {
    let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
    let values = guard.cache("value").policy(policy);
    values.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    sleep(2 * SECOND).await;
    values
}

/// Fetches the value 2 in ten seconds.
async fn slow(_: FetchContext<i32>) -> Result<FetchOutcome<i32>, Down> {
    sleep(10 * SECOND).await;
    Ok(2.into())
}

/// The caller that fetches, and callers that wait in its process and in a second process. Seen to fail (each
/// waits for ten seconds) without the soft timeout.
#[tokio::test(start_paused = true)]
async fn caller_gets_a_stale_value_after_its_soft_timeout() {
    let store = Arc::new(MemoryStore::default());
    let guards = [(); 2].map(|()| StampedeGuard::new(store.clone()));
    let here = with_stale_value(&guards[0]).await;
    let policy = Policy::fresh_for(SECOND).soft_timeout(SECOND);
    let there = guards[1].cache::<i32>("value").policy(policy);
    let asked = Instant::now();
    let answers = tokio::join!(
        here.entry("k").soft_timeout(SECOND).answer(slow),
        here.entry("k").soft_timeout(SECOND).answer(slow),
        here.entry("k").policy(policy).answer(slow),
        there.entry("k").answer(slow),
    );
    for answer in <[_; 4]>::from(answers) {
        let answer = answer.expect("the stale value");
        assert_eq!((*answer, answer.status(), answer.age()), (1, CacheStatus::Stale, 3 * SECOND));
    }
    assert_eq!(asked.elapsed(), SECOND);
    assert_eq!(guards[0].drain_within(60 * SECOND).await, 0);
    assert_eq!(here.fetch("k", never::<i32>).await.expect("the fetch went on"), 2);
    assert_eq!(guards.each_ref().map(|guard| (guard.stats().misses, guard.stats().stale_hits)), [(1, 3), (0, 1)]);
}

/// There is no value, the policy does not permit a stale one, or the fetch would end with its caller. Seen to fail (the
/// scoped call gets the stale value) when the soft timeout ends scoped fetches, too.
#[tokio::test(start_paused = true)]
async fn caller_waits_beyond_its_soft_timeout_without_a_stale_value() {
    let guard = StampedeGuard::in_memory();
    let values = with_stale_value(&guard).await;
    let hasty = |key| values.entry(key).soft_timeout(SECOND);
    let asked = Instant::now();
    assert_eq!(hasty("other").fetch_with(slow).await.expect("an answer"), 2);
    let kept = Policy::fresh_for(SECOND).jitter(0.0).keep_for_validation(60 * SECOND);
    values.entry("kept").policy(kept).fetch(async || Ok::<_, Down>(1)).await.expect("an answer");
    sleep(2 * SECOND).await;
    assert_eq!(hasty("kept").fetch_with(slow).await.expect("an answer"), 2);
    let scoped = || async {
        sleep(10 * SECOND).await;
        Ok::<_, Down>(2)
    };
    assert_eq!(hasty("k").fetch_scoped(scoped).await.expect("an answer"), 2);
    assert_eq!(asked.elapsed(), 32 * SECOND);
}

/// By this process and by a second process, before and after the soft timeout of a waiter. Seen to fail (the old value is
/// served) when the numbers of the invalidations are not compared.
#[tokio::test(start_paused = true)]
async fn soft_timeout_does_not_serve_an_invalidated_value() {
    for by in 0..2 {
        let store = Arc::new(MemoryStore::default());
        let guards = [(); 2].map(|()| StampedeGuard::new(store.clone()));
        let values = with_stale_value(&guards[0]).await;
        let invalidate = async {
            sleep(SECOND).await;
            guards[by].cache::<i32>("value").invalidate("k").await.expect("acknowledged");
        };
        let (led, waited, ()) = tokio::join!(
            values.entry("k").soft_timeout(2 * SECOND).answer(slow),
            values.entry("k").soft_timeout(3 * SECOND).answer(slow),
            invalidate,
        );
        assert_eq!((*led.expect("an answer"), *waited.expect("an answer")), (2, 2), "invalidated by {by}");
    }
}

/// Seen to fail (the caller waits for the fetch) when a caller that has no confirmed value at its soft timeout looks no
/// more.
#[tokio::test(start_paused = true)]
async fn soft_timeout_waits_until_the_store_has_confirmed_the_value() {
    let node = FakeRedis::new().node();
    let values = with_stale_value(&node.guard()).await;
    node.always(GetOrLease, Fault::ReplyDelayed(100 * MS));
    let asked = Instant::now();
    let answer = values.entry("k").soft_timeout(Duration::ZERO).answer(slow).await.expect("the stale value");
    assert_eq!((*answer, answer.status(), asked.elapsed()), (1, CacheStatus::Stale, 100 * MS));
}
