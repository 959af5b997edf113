//! The busiest keys: what the guard has saved, and what the origin took.

use crate::{Down, MS, SECOND, support::Origin};
use stampede_guard::{FetchOutcome, HotKey, Policy, StampedeGuard};
use std::time::Duration;
use tokio::time::sleep;

async fn slow(span: Duration) -> Result<u32, Down> {
    sleep(span).await;
    Ok(1)
}

fn busiest(guard: &StampedeGuard) -> HotKey {
    guard.stats().hot_keys.into_iter().next().expect("a key")
}

/// A timestamp has whole microseconds, so the time between two of them is up to one microsecond shorter.
fn is_about(measured: Duration, expected: Duration) -> bool {
    measured.abs_diff(expected) < MS
}

#[tokio::test(start_paused = true)]
async fn hot_key_shows_saved_calls_longest_wait_and_cost() {
    let guard = StampedeGuard::in_memory().track_hot_keys(10).policy(Policy::fresh_for(60 * SECOND));
    let late = async {
        sleep(100 * MS).await;
        guard.fetch("k", || slow(SECOND)).await
    };
    let herd = futures_util::future::join_all((0..50).map(|_| guard.fetch("k", || slow(300 * MS))));
    let (herd, late) = tokio::join!(herd, late);
    assert!(late.is_ok() && herd.iter().all(Result::is_ok));
    for key in ["k", "l"] {
        guard.fetch(key, || slow(SECOND)).await.expect("a value");
    }
    let key = busiest(&guard);
    assert_eq!((key.namespace.as_str(), key.key.as_str(), key.requests, key.max_uncounted), ("sg", "k", 52, 0));
    assert_eq!((key.saved_calls, key.fetches), (51, 1));
    assert!(is_about(key.longest_wait, 300 * MS) && is_about(key.fetch_time, 300 * MS), "{key:?}");
    assert_eq!(guard.stats().hot_keys.len(), 2);
}

/// Failures, private values and bypasses call the origin too.
#[tokio::test(start_paused = true)]
async fn hot_key_counts_each_call_of_the_origin() {
    let guard = StampedeGuard::in_memory().track_hot_keys(10).failure_ttl(Duration::ZERO);
    let values = guard.cache("value");
    let private = || {
        values.entry("k").fetch_with(async |_| {
            sleep(100 * MS).await;
            Ok::<_, Down>(FetchOutcome::new(1).private())
        })
    };
    private().await.expect("leads");
    guard.drain().await;
    private().await.expect("runs under the marker");
    values.invalidate("k").await.expect("acknowledged");
    let failed = async || {
        sleep(100 * MS).await;
        Err::<u32, _>(Down)
    };
    values.fetch("k", failed).await.expect_err("the origin is down");
    let nested = values.clone();
    let outer = values.fetch("k", async move || nested.fetch("k", || slow(100 * MS)).await);
    outer.await.expect("the inner call bypasses the cache");
    let key = busiest(&guard);
    assert_eq!((key.requests, key.saved_calls), (5, 0));
    assert!(key.fetches == 5 && is_about(key.fetch_time, 500 * MS), "{key:?}");
}

#[tokio::test]
async fn hot_keys_belong_to_a_clone_and_its_clones() {
    let guard = StampedeGuard::in_memory();
    let (tracked, origin) = (guard.clone().track_hot_keys(1), Origin::new());
    for guard in [&guard, &tracked, &tracked.clone().namespace("other"), &tracked.clone().track_hot_keys(0)] {
        let origin = origin.clone();
        guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await.expect("a value");
    }
    let of = |guard: &StampedeGuard| guard.stats().hot_keys.iter().map(|key| key.requests).sum::<u64>();
    assert_eq!((of(&tracked), of(&tracked.clone()), of(&guard)), (1, 1, 0));
    assert_eq!(busiest(&tracked).max_uncounted, 1, "the second namespace has replaced the first one");
}

/// At its deadline, and at its soft timeout, a caller gets the stale value although its own fetch runs. Seen to fail (one
/// saved call at the deadline) when only a soft timeout counts the fetch.
#[tokio::test(start_paused = true)]
async fn stale_answer_during_its_own_fetch_saves_no_call() {
    for soft in [true, false] {
        let policy = Policy::fresh_for(SECOND).stale_if_error(60 * SECOND).jitter(0.0);
        let guard = StampedeGuard::in_memory().track_hot_keys(10).policy(policy);
        let users = guard.cache::<u32>("user");
        users.put(7, 1).await.expect("stored");
        sleep(2 * SECOND).await;
        let call = users.entry(7);
        let call = if soft { call.soft_timeout(50 * MS) } else { call.timeout(50 * MS) };
        assert_eq!(call.fetch(async || slow(SECOND).await.map(|_| 2)).await.expect("stale"), 1);
        sleep(2 * SECOND).await;
        let key = busiest(&guard);
        assert_eq!((key.requests, key.fetches, key.saved_calls), (1, 1, 0), "soft: {soft}");
    }
}
