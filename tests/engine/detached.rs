//! Fetches that no caller of the process waits for any more: `max_detached`.

use crate::{
    Down, SECOND, never,
    support::{Origin, eventually},
};
use futures_util::future::join_all;
use stampede_guard::{Error, Policy, StampedeGuard, testing::FakeRedis};
use std::time::Duration;
use tokio::{task::JoinHandle, time::Instant};

type Caller = JoinHandle<Result<usize, Error>>;

/// Starts a caller whose fetch calls the origin, and returns once that call has arrived.
async fn leading(guard: &StampedeGuard, key: &'static str, origin: &Origin) -> Caller {
    let (calls, call) = (origin.calls(), origin.clone());
    let caller = joining(guard, key, async move || Ok::<_, Down>(call.call().await)).await;
    origin.arrived(calls + 1).await;
    caller
}

/// Starts a caller, and returns once it has led, joined or ended.
async fn joining<F>(guard: &StampedeGuard, key: &'static str, fetch: impl FnOnce() -> F + Send + 'static) -> Caller
where
    F: Future<Output = Result<usize, Down>> + Send + 'static,
{
    let guard = guard.clone();
    let caller = tokio::spawn(async move { guard.fetch(key, fetch).await });
    settled().await;
    caller
}

/// Drops a caller, and returns once its fetch has noticed.
async fn leave(caller: Caller) {
    caller.abort();
    assert!(caller.await.expect_err("it waits for the origin").is_cancelled());
    settled().await;
}

/// Waits until each task has done what it can do now. The paused clock advances only when no task can run.
async fn settled() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

/// Seen to fail with 500 calls at once when nothing limits detached fetches.
#[tokio::test(start_paused = true)]
async fn detached_fetches_run_64_at_once_by_default() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    for key in 0..500_u64 {
        let call = origin.clone();
        let fetch = guard.fetch(key, async move || Ok::<_, Down>(call.call().await));
        tokio::time::timeout(Duration::from_millis(1), fetch).await.expect_err("the gate is closed");
    }
    settled().await;
    assert_eq!((origin.peak(), origin.running(), guard.in_flight()), (65, 64, 64));
    assert_eq!(guard.stats().fetches_dropped, 500 - 64);
    origin.open();
    guard.drain().await;
    let values = join_all((0..64_u64).map(|key| guard.fetch(key, never::<usize>))).await;
    assert!(values.into_iter().all(|value| value.is_ok()), "the detached fetches were stored");
}

/// The wait for the lease would take 1000 s. Seen to fail when the lease of a dropped fetch is not released.
#[tokio::test(start_paused = true)]
async fn dropped_fetch_makes_waiters_elsewhere_lead_at_once() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let [here, elsewhere] = [(); 2].map(|()| server.node().guard().max_detached(0).lease_ttl(1000 * SECOND));
    let caller = leading(&here, "k", &origin).await;
    let waiter = joining(&elsewhere, "k", async || Ok::<_, Down>(7)).await;
    let began = Instant::now();
    caller.abort();
    assert_eq!((waiter.await.expect("no panic").expect("an answer"), began.elapsed()), (7, Duration::ZERO));
    elsewhere.drain().await;
    assert_eq!((origin.running(), server.leases(), here.in_flight()), (0, 0, 0));
    assert_eq!((here.stats().fetches_dropped, here.drain().await), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn dropped_fetch_leaves_the_key_to_the_next_caller() {
    let (guard, origin) = (FakeRedis::new().node().guard().max_detached(0).lease_ttl(1000 * SECOND), Origin::gated());
    leave(leading(&guard, "k", &origin).await).await;
    let began = Instant::now();
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
    assert_eq!((began.elapsed(), origin.running()), (Duration::ZERO, 0));
}

#[tokio::test(start_paused = true)]
async fn fetch_is_not_detached_while_a_caller_is_left() {
    let (guard, origin) = (StampedeGuard::in_memory().max_detached(0), Origin::gated());
    let first = leading(&guard, "k", &origin).await;
    let second = joining(&guard, "k", never).await;
    leave(first).await;
    assert_eq!((origin.running(), guard.stats().fetches_dropped), (1, 0));
    origin.open();
    assert_eq!(second.await.expect("no panic").expect("an answer"), 1);
}

/// Seen to fail when a fetch keeps its permit after a caller has joined it, and when it takes none afterwards.
#[tokio::test(start_paused = true)]
async fn detached_fetch_that_is_joined_returns_its_permit() {
    let (guard, origin) = (StampedeGuard::in_memory().max_detached(1), Origin::gated());
    leave(leading(&guard, "a", &origin).await).await;
    let joined = joining(&guard, "a", never).await;
    leave(leading(&guard, "b", &origin).await).await;
    assert_eq!(origin.running(), 2, "the fetch of `b` has the permit");
    leave(joined).await;
    assert_eq!((origin.running(), guard.in_flight()), (1, 1), "the fetch of `a` has no permit any more");
    origin.open();
    assert_eq!(guard.drain().await, 0);
    assert_eq!(guard.fetch("b", never::<usize>).await.expect("stored"), 2);
}

/// Seen to fail when a refresh counts as detached.
#[tokio::test(start_paused = true)]
async fn refresh_in_the_background_is_not_detached() {
    let policy = Policy::fresh_for(SECOND).stale_while_revalidate(60 * SECOND).jitter(0.0);
    let (guard, origin) = (StampedeGuard::in_memory().max_detached(0).policy(policy), Origin::gated());
    assert_eq!(guard.fetch("k", async || Ok::<_, Down>(0_usize)).await.expect("an answer"), 0);
    tokio::time::sleep(2 * SECOND).await;
    let call = origin.clone();
    let stale = guard.fetch("k", async move || Ok::<_, Down>(call.call().await)).await;
    assert_eq!(stale.expect("the stale value"), 0);
    origin.arrived(1).await;
    settled().await;
    origin.open();
    assert_eq!(guard.drain().await, 0);
    assert_eq!(guard.fetch("k", never::<usize>).await.expect("refreshed"), 1);
}

/// A request that was rejected at its deadline waits for nothing.
#[tokio::test(start_paused = true)]
async fn fetch_is_detached_after_the_deadline_of_its_caller() {
    let (guard, origin) = (StampedeGuard::in_memory().max_detached(0), Origin::gated());
    let (counts, call) = (guard.cache::<usize>("count"), origin.clone());
    let hurried = counts.entry("k").timeout(SECOND).fetch(async move || Ok::<_, Down>(call.call().await));
    hurried.await.expect_err("rejected at its deadline");
    settled().await;
    assert_eq!((origin.calls(), origin.running(), guard.stats().fetches_dropped), (1, 0, 1));
}

/// Callers join and leave a few keys at random, on several threads. Each caller that stays gets an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn callers_that_stay_get_an_answer_when_others_leave() {
    for seed in 0..20 {
        let server = FakeRedis::new();
        let node = server.node();
        let guard = node.guard().max_detached(2).policy(Policy::fresh_for(Duration::ZERO)).lease_ttl(1000 * SECOND);
        let callers = (0..200_u64).map(|i| {
            let (guard, mut dice) = (guard.clone(), fastrand::Rng::with_seed(seed * 1000 + i));
            tokio::spawn(async move {
                let takes = Duration::from_micros(dice.u64(0..2000));
                let caller = guard.fetch(dice.u64(0..6), async move || {
                    tokio::time::sleep(takes).await;
                    Ok::<_, Down>(1)
                });
                match dice.bool() {
                    true => caller.await.map(drop).expect("an answer"),
                    false => _ = tokio::time::timeout(Duration::from_micros(dice.u64(0..2000)), caller).await,
                }
            })
        });
        let callers: Vec<_> = callers.collect();
        tokio::time::timeout(30 * SECOND, join_all(callers))
            .await
            .expect("each caller ends")
            .into_iter()
            .for_each(|ended| ended.expect("no panic"));
        guard.drain().await;
        eventually("every flight has ended", async || guard.in_flight() == 0).await;
        eventually("every lease is released", async || server.leases() == 0).await;
    }
}
