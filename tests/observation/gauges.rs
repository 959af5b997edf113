//! Gauges fall again, whatever ends what they count.

use crate::{
    recorder::Metrics,
    support::{Down, MS, Origin, SECOND, eventually},
};
use futures_util::future::join_all;
use stampede_guard::{
    NearCacheConfig, StampedeGuard,
    testing::{FakeRedis, Fault, Operation},
};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// Returns the gauges of calls and of waiters.
fn busy(metrics: &Metrics) -> (f64, f64) {
    (metrics.get("in_flight", &[]), metrics.get("waiters", &[]))
}

#[tokio::test(start_paused = true)]
async fn gauges_count_the_call_and_its_waiters() {
    let metrics = Metrics::record();
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let ask = |_| {
        let origin = origin.clone();
        guard.fetch("k", async move || Ok::<_, Down>(origin.call().await))
    };
    let observed = async {
        origin.arrived(1).await;
        sleep(MS).await;
        let busy = busy(&metrics);
        origin.open();
        busy
    };
    let (answers, seen) = tokio::join!(join_all((0..10).map(ask)), observed);
    assert!(answers.iter().all(Result::is_ok));
    guard.drain().await;
    assert_eq!((seen, busy(&metrics)), ((1.0, 9.0), (0.0, 0.0)));
}

/// Seen to fail (nine waiters stay) when the drop of a waiter did not lower the gauge.
#[tokio::test(start_paused = true)]
async fn gauges_fall_when_callers_are_dropped() {
    let metrics = Metrics::record();
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let counts = guard.cache("count");
    let ask = |_| counts.entry("k").fetch_scoped(|| async { Ok::<_, Down>(origin.call().await) });
    let all = join_all((0..10).map(ask));
    let dropped = timeout(SECOND, async {
        tokio::join!(all, async {
            origin.arrived(1).await;
            sleep(MS).await;
            assert_eq!(busy(&metrics), (1.0, 9.0));
        })
    });
    assert!(dropped.await.is_err(), "the gate is closed");
    assert_eq!(busy(&metrics), (0.0, 0.0));
}

#[tokio::test(start_paused = true)]
async fn request_that_waits_for_another_process_is_a_waiter() {
    let metrics = Metrics::record();
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let [leader, other] = [server.node().guard().named("leader"), server.node().guard().named("other")];
    let ask = |guard: StampedeGuard| {
        let origin = origin.clone();
        async move { guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await }
    };
    let waiters = || metrics.get("waiters", &[("name", "other")]);
    let observed = async {
        origin.arrived(1).await;
        let joined = ask(other.clone());
        let release = async {
            eventually("the other process waits", async || waiters() == 1.0).await;
            origin.open();
        };
        tokio::join!(joined, release).0
    };
    let (first, second) = tokio::join!(ask(leader.clone()), observed);
    assert_eq!((first.expect("an answer"), second.expect("an answer")), (1, 1));
    other.drain().await;
    assert_eq!((waiters(), metrics.get("wait_seconds_count", &[("name", "other")])), (0.0, 1.0), "{}", metrics.text());
}

/// Seen to fail (one breaker stays open) when the gauge fell only with a reply, and not with the guard.
#[tokio::test(start_paused = true)]
async fn breaker_gauge_falls_at_the_reply_and_with_the_guard() {
    let metrics = Metrics::record();
    let open = || metrics.get("breaker_open", &[]);
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let ask = async || guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    node.always(Operation::Get, Fault::Hangs);
    ask().await;
    assert_eq!(open(), 1.0);
    sleep(2 * SECOND).await;
    node.heal();
    ask().await; // sends the probe
    guard.drain().await;
    assert_eq!(open(), 0.0);

    node.always(Operation::Get, Fault::Hangs);
    let other = node.guard();
    other.fetch("other", async || Ok::<_, Down>(1)).await.expect("an answer");
    other.drain().await;
    assert_eq!(open(), 1.0);
    drop(other);
    assert_eq!(open(), 0.0);
}

#[tokio::test(start_paused = true)]
async fn near_cache_gauge_falls_with_copies_and_with_the_guard() {
    let metrics = Metrics::record();
    let bytes = || metrics.get("near_cache_bytes", &[]);
    let near =
        |guard: StampedeGuard| guard.near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(Duration::from_secs(60)));
    let server = FakeRedis::new();
    let [a, b] = [near(server.node().guard()), near(server.node().guard())];
    let ask = async |guard: &StampedeGuard, key: &'static str| {
        for _ in 0..2 {
            guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer");
            guard.drain().await;
        }
    };
    ask(&a, "k").await;
    let of_one = bytes();
    assert!(of_one > 100.0, "{}", metrics.text());
    ask(&b, "k").await;
    assert_eq!(bytes(), 2.0 * of_one, "each cache adds its bytes");
    b.invalidate("k").await.expect("acknowledged");
    b.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"); // reads that there is no entry
    assert!(bytes() <= of_one, "{} of {of_one}", bytes());
    drop((a, b));
    assert_eq!(bytes(), 0.0);
}
