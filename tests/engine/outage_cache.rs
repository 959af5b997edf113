//! The outage cache: how often a key is fetched while nothing can be stored, and when a kept result ends.

use crate::{Down, MS, SECOND, never, support::Origin};
use futures_util::poll;
use stampede_guard::{
    ErrorKind, FetchContext, FetchOutcome, OutageCacheConfig, Policy, StampedeGuard, StoreFailure, ToKey,
    testing::{
        FakeRedis, Fault, Node,
        Operation::{self, Fill, Get, GetOrLease, Release},
    },
};
use std::{pin::pin, time::Duration};
use tokio::{task::yield_now, time::sleep};

/// A store that refuses writes, as a full server or a replica does.
const FULL: &[(Operation, Fault)] = &[(GetOrLease, Fault::Fails), (Fill, Fault::Fails)];
/// A store that does not answer.
const SILENT: &[(Operation, Fault)] =
    &[(Get, Fault::Hangs), (GetOrLease, Fault::Hangs), (Fill, Fault::Hangs), (Release, Fault::Hangs)];

/// Returns a node with these faults, and a guard over it whose values are fresh for a second.
fn faulty(faults: &[(Operation, Fault)]) -> (Node, StampedeGuard) {
    let node = FakeRedis::new().node();
    for (operation, fault) in faults {
        node.always(*operation, fault.clone());
    }
    let guard = node.guard().policy(Policy::fresh_for(SECOND).jitter(0.0));
    (node, guard)
}

async fn ask(guard: &StampedeGuard, key: impl ToKey, origin: &Origin) -> usize {
    let origin = origin.clone();
    guard.fetch(key, async move || Ok::<_, Down>(origin.work(50 * MS).await)).await.expect("an answer")
}

/// Returns the number of calls for one key that is requested all the time for ten seconds.
async fn calls_in_ten_seconds(guard: &StampedeGuard) -> usize {
    let (origin, began) = (Origin::new(), tokio::time::Instant::now());
    while began.elapsed() < 10 * SECOND {
        ask(guard, "k", &origin).await;
        sleep(10 * MS).await;
    }
    guard.drain().await;
    origin.calls()
}

/// Without the outage cache each of these outages costs more than a hundred calls, which the test shows as well.
#[tokio::test(start_paused = true)]
async fn outage_costs_one_call_per_second() {
    let lost = &[(Get, Fault::RequestLost), (GetOrLease, Fault::RequestLost), (Fill, Fault::RequestLost)];
    let full_for_values = &[(Fill, Fault::Fails)];
    let outages: [(&str, &[(Operation, Fault)]); 4] =
        [("silent", SILENT), ("connections are cut", lost), ("full", FULL), ("full for values", full_for_values)];
    for (outage, faults) in outages {
        let calls = calls_in_ten_seconds(&faulty(faults).1).await;
        assert!((9..=11).contains(&calls), "{outage}: {calls} calls in 10 s");
        let calls =
            calls_in_ten_seconds(&faulty(faults).1.outage_cache(OutageCacheConfig::default().ttl(Duration::ZERO)))
                .await;
        assert!(calls > 100, "{outage}, without the outage cache: {calls} calls in 10 s");
    }
}

/// Seen to fail (one call in 50 ms) without the outage cache.
#[tokio::test(start_paused = true)]
async fn outage_cache_hit_is_counted_and_not_written_back() {
    for faults in [SILENT, FULL] {
        let ((node, guard), origin) = (faulty(faults), Origin::new());
        for _ in 0..5 {
            assert_eq!(ask(&guard, "k", &origin).await, 1);
        }
        guard.drain().await;
        let stats = guard.stats();
        assert_eq!((stats.failed_open, stats.hits, stats.outage_cache_hits), (1, 4, 4), "{stats:?}");
        let fills = node.asked(Fill);
        node.heal();
        sleep(5 * SECOND).await;
        assert_eq!(node.asked(Fill), fills, "a result is never stored later");
    }
}

/// Seen to fail (a value is fetched again at once) without the outage cache.
#[tokio::test(start_paused = true)]
async fn outage_cache_keeps_results_for_freshness_or_ttl() {
    for (fresh_for, ttl, expected) in
        [(60 * SECOND, 2 * SECOND, 2 * SECOND), (500 * MS, 2 * SECOND, 500 * MS), (60 * SECOND, SECOND, SECOND)]
    {
        let ((_node, guard), origin) = (faulty(SILENT), Origin::new());
        let guard = guard
            .policy(Policy::fresh_for(fresh_for).stale_while_revalidate(60 * SECOND).jitter(0.0))
            .outage_cache(OutageCacheConfig::max_bytes(1 << 20).ttl(ttl));
        ask(&guard, "k", &origin).await;
        sleep(expected - MS).await;
        assert_eq!(ask(&guard, "k", &origin).await, 1, "fresh for {fresh_for:?}, ttl {ttl:?}");
        sleep(MS).await;
        assert_eq!(ask(&guard, "k", &origin).await, 2, "fresh for {fresh_for:?}, ttl {ttl:?}");
    }
}

/// Seen to fail (the kept value is served) if the outage cache does not ask why a result was not stored.
#[tokio::test(start_paused = true)]
async fn outage_cache_is_unused_when_the_store_answers() {
    let ((node, guard), origin) = (faulty(SILENT), Origin::new());
    let guard = guard
        .policy(Policy::fresh_for(60 * SECOND).jitter(0.0))
        .outage_cache(OutageCacheConfig::default().ttl(60 * SECOND));
    assert_eq!(ask(&guard, "k", &origin).await, 1);
    assert_eq!(ask(&guard, "k", &origin).await, 1);
    node.heal();
    // The breaker closes within a window of its probes.
    for key in 0..100_u64 {
        sleep(100 * MS).await;
        ask(&guard, key, &origin).await;
        if guard.stats().misses > 0 {
            break;
        }
    }
    let calls = origin.calls();
    assert_eq!(ask(&guard, "k", &origin).await, calls + 1, "another process may have invalidated the value");
    guard.drain().await;
    assert_eq!(ask(&guard, "k", &origin).await, calls + 1);
}

/// The server is full: it still has an old entry, and cannot store the new one. Seen to fail (a call per request) if
/// only a lookup without an entry leads to the outage cache.
#[tokio::test(start_paused = true)]
async fn refused_result_is_used_instead_of_an_older_entry() {
    let ((node, guard), origin) = (faulty(&[]), Origin::new());
    let stale = Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0);
    for policy in [stale, stale.stale_while_revalidate(600 * SECOND)] {
        node.heal();
        let (guard, key) = (guard.clone().policy(policy), format!("k{}", origin.calls()));
        ask(&guard, &*key, &origin).await;
        guard.drain().await;
        sleep(2 * SECOND).await;
        node.always(Fill, Fault::Fails);
        ask(&guard, &*key, &origin).await;
        guard.drain().await;
        let calls = origin.calls();
        for _ in 0..5 {
            assert_eq!(ask(&guard, &*key, &origin).await, calls);
            guard.drain().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refused_result_is_not_used_instead_of_a_newer_entry() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    let [node, other] = [server.node(), server.node()];
    let policy = Policy::fresh_for(60 * SECOND).jitter(0.0);
    node.always(Fill, Fault::Fails);
    let [guard, other] = [node, other].map(|node| node.guard().policy(policy));
    assert_eq!(ask(&guard, "k", &origin).await, 1);
    guard.drain().await;
    assert_eq!(ask(&other, "k", &origin).await, 2);
    other.drain().await;
    assert_eq!(ask(&guard, "k", &origin).await, 2);
}

/// Seen to fail (the old value is served) if kept results do not end with an invalidation.
#[tokio::test(start_paused = true)]
async fn own_invalidation_ends_a_kept_result() {
    for faults in [SILENT, FULL] {
        let ((_node, guard), origin) = (faulty(faults), Origin::new());
        ask(&guard, "k", &origin).await;
        guard.clone().invalidate("k").await.expect("acknowledged");
        assert_eq!(ask(&guard, "k", &origin).await, 2);
        assert_eq!(ask(&guard, "k", &origin).await, 2);
    }
}

/// The invalidation fails, because the store cannot be reached. It still counts in this process.
#[tokio::test(start_paused = true)]
async fn failed_invalidation_ends_a_kept_result() {
    let ((node, guard), origin) = (faulty(SILENT), Origin::new());
    node.always(Operation::Invalidate, Fault::Hangs);
    ask(&guard, "k", &origin).await;
    guard.invalidate("k").await.expect_err("it hangs");
    assert_eq!(ask(&guard, "k", &origin).await, 2);
}

/// Seen to fail (the old value is served) if a result counts from the moment that it is kept.
#[tokio::test(start_paused = true)]
async fn result_of_an_invalidated_flight_is_not_kept() {
    for faults in [SILENT, FULL, &[(Fill, Fault::Fails)]] {
        let ((_node, guard), origin) = (faulty(faults), Origin::new());
        let invalidate = async {
            origin.arrived(1).await;
            guard.invalidate("k").await.expect("acknowledged");
        };
        let (first, ()) = tokio::join!(ask(&guard, "k", &origin), invalidate);
        guard.drain().await;
        assert_eq!((first, ask(&guard, "k", &origin).await), (1, 2));
    }
}

/// The message of another process reaches the flight, because the server refuses only writes. Seen to fail (the old
/// value is served) if only invalidations by this process count.
#[tokio::test(start_paused = true)]
async fn flight_invalidated_by_message_is_not_kept() {
    let (server, origin) = (FakeRedis::new(), Origin::new());
    let [node, other] = [server.node(), server.node()];
    node.always(Fill, Fault::Fails);
    let guard = node.guard();
    let invalidate = async {
        origin.arrived(1).await;
        other.guard().invalidate("k").await.expect("acknowledged");
    };
    let (first, ()) = tokio::join!(ask(&guard, "k", &origin), invalidate);
    guard.drain().await;
    assert_eq!((first, ask(&guard, "k", &origin).await), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn outage_cache_is_unused_by_a_guard_that_fails_closed() {
    let ((_node, guard), origin) = (faulty(SILENT), Origin::new());
    ask(&guard, "k", &origin).await;
    let closed = guard.clone().on_store_failure(StoreFailure::FailClosed);
    closed.fetch("k", never::<usize>).await.expect_err("refused");
    assert_eq!(ask(&guard, "k", &origin).await, 1);
}

/// A private result is not kept, only that it was private: for as long as that, callers do not wait for each other.
/// Seen to fail (the requests fail open one after another) without the marker.
#[tokio::test(start_paused = true)]
async fn private_results_are_not_kept_and_do_not_serialise_callers() {
    for faults in [SILENT, FULL] {
        let ((_node, guard), origin) = (faulty(faults), Origin::new());
        let ask = async || {
            let origin = origin.clone();
            let fetch = async move |_: FetchContext<usize>| {
                Ok::<_, Down>(FetchOutcome::new(origin.work(50 * MS).await).private())
            };
            guard.cache("count").entry("k").fetch_with(fetch).await.expect("an answer")
        };
        assert_eq!(ask().await, 1);
        guard.drain().await;
        let began = tokio::time::Instant::now();
        let mut answers = futures_util::future::join_all((0..20).map(|_| ask())).await;
        answers.sort_unstable();
        assert_eq!(answers, (2..=21).collect::<Vec<_>>(), "each caller has a result of its own");
        assert_eq!(began.elapsed(), 50 * MS);
        let stats = guard.stats();
        assert_eq!((stats.bypassed, stats.outage_cache_hits), (20, 0), "{stats:?}");
        sleep(SECOND).await;
        ask().await;
        assert_eq!(guard.stats().failed_open, 2, "after its time the key is tried again");
    }
}

/// A do-not-store result is for its waiters only.
#[tokio::test(start_paused = true)]
async fn results_that_must_not_be_stored_are_not_kept() {
    for faults in [SILENT, FULL] {
        let ((_node, guard), origin) = (faulty(faults), Origin::new());
        for expected in 1..=3 {
            let origin = origin.clone();
            let fetch = async move |_: FetchContext<usize>| {
                Ok::<_, Down>(FetchOutcome::new(origin.call().await).do_not_store())
            };
            assert_eq!(guard.cache("count").entry("k").fetch_with(fetch).await.expect("an answer"), expected);
            guard.drain().await;
        }
        assert_eq!(guard.stats().failed_open, 3, "each needs one of the permits for fallback fetches");
    }
}

#[tokio::test(start_paused = true)]
async fn error_of_a_fetch_is_not_kept() {
    let ((_node, guard), origin) = (faulty(SILENT), Origin::new());
    guard.fetch("k", async || Err::<usize, _>(Down)).await.expect_err("the origin is down");
    assert_eq!(ask(&guard, "k", &origin).await, 1);
}

/// The second flight has asked the store for the lease, in vain, while the first one has fetched. Seen to fail (two
/// calls) if a leader that fails open does not ask the outage cache again.
#[tokio::test(start_paused = true)]
async fn leader_that_fails_open_uses_a_result_kept_meanwhile() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    node.once(GetOrLease, Fault::Fails);
    node.always(GetOrLease, Fault::Hangs);
    let guard = node.guard();
    let late = async {
        sleep(10 * MS).await;
        ask(&guard, "k", &origin).await
    };
    assert_eq!(tokio::join!(ask(&guard, "k", &origin), late), (1, 1));
    assert_eq!(origin.calls(), 1);
}

/// Callers on other threads come at the moment when the flight of their key ends. Seen to fail (more calls than keys)
/// if a leader that begins without the store does not ask the outage cache again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn flight_that_begins_as_another_ends_uses_its_kept_result() {
    let (hour, origin) = (3600 * SECOND, Origin::new());
    let (_node, guard) = faulty(&[(Get, Fault::Fails), (GetOrLease, Fault::Fails)]);
    let guard = guard.policy(Policy::fresh_for(hour)).outage_cache(OutageCacheConfig::default().ttl(hour));
    let ask_for_all = || {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            for key in 0..KEYS {
                let origin = origin.clone();
                guard.fetch(key, async move || Ok::<_, Down>(origin.call().await)).await.expect("an answer");
            }
        }
    };
    for caller in [(); 4].map(|()| tokio::spawn(ask_for_all())) {
        caller.await.expect("no panic");
    }
    assert_eq!(origin.calls() as u64, KEYS);
}

const KEYS: u64 = 10_000;

/// The waiter is polled late, when the fetch without the store has ended already.
#[tokio::test(start_paused = true)]
async fn late_waiter_gets_the_kept_result() {
    let silent = &[(GetOrLease, Fault::Hangs), (Fill, Fault::Hangs), (Release, Fault::Hangs)];
    for faults in [silent, FULL] {
        let ((_node, guard), origin) = (faulty(faults), Origin::new());
        let opener = tokio::spawn({
            let (guard, origin) = (guard.clone(), origin.clone());
            async move { ask(&guard, "k", &origin).await }
        });
        let mut late = pin!(ask(&guard, "k", &origin));
        while guard.in_flight() == 0 {
            yield_now().await;
        }
        assert!(poll!(&mut late).is_pending());
        assert_eq!(opener.await.expect("no panic"), 1);
        guard.drain().await;
        assert_eq!(late.await, 1);
    }
}

/// Seen to fail when the fetch without the store knows of no entry.
#[tokio::test(start_paused = true)]
async fn fetch_without_the_store_gets_the_stale_value() {
    let (node, guard) = faulty(&[]);
    let guard = guard.policy(Policy::fresh_for(SECOND).stale_if_error(600 * SECOND).jitter(0.0));
    let ask = async |value| {
        let fetch =
            async move |cx: FetchContext<usize>| Ok::<_, Down>(FetchOutcome::new(cx.into_stale().unwrap_or(value)));
        guard.cache("count").entry("k").fetch_with(fetch).await.expect("an answer")
    };
    assert_eq!(ask(1).await, 1);
    guard.drain().await;
    sleep(2 * SECOND).await;
    node.always(GetOrLease, Fault::Fails);
    assert_eq!(ask(2).await, 1, "the store is full, and has answered the lookup");
}

/// Seen to fail (each of many callers that wake late calls the origin as well) when a caller joins only local flights
/// that have not ended.
#[tokio::test(start_paused = true)]
async fn late_waiter_gets_the_failure_of_the_local_flight() {
    let (_node, guard) = faulty(&[(GetOrLease, Fault::Hangs), (Release, Fault::Hangs)]);
    let origin = Origin::new();
    let ask = || {
        let (guard, origin) = (guard.clone(), origin.clone());
        let fetch = async move || {
            origin.call().await;
            Err::<usize, _>(Down)
        };
        async move { guard.fetch("k", fetch).await.expect_err("the origin is down") }
    };
    let opener = tokio::spawn(ask());
    let mut late = pin!(ask());
    while guard.in_flight() == 0 {
        yield_now().await;
    }
    assert!(poll!(&mut late).is_pending());
    opener.await.expect("no panic");
    guard.drain().await;
    late.await;
    assert_eq!(origin.calls(), 1);
}

/// Reads are answered, so that both clones wait for one leader, whose question for the lease is not.
///
/// Seen to fail (the kept value for each, and not counted) when the leader shares what its outage cache has.
#[tokio::test(start_paused = true)]
async fn clone_without_an_outage_cache_gets_no_kept_result() {
    let off: [fn(StampedeGuard) -> StampedeGuard; 2] = [
        |guard| guard.on_store_failure(StoreFailure::FailClosed),
        |guard| guard.outage_cache(OutageCacheConfig::max_bytes(0)),
    ];
    for (turned_off, is_first) in off.into_iter().flat_map(|off| [(off, false), (off, true)]) {
        let (_node, guard) = faulty(&[(GetOrLease, Fault::RequestLost)]);
        let without = turned_off(guard.clone());
        let ask = async |guard: &StampedeGuard, n: i32| guard.fetch("k", async move || Ok::<_, Down>(n)).await;
        assert_eq!(ask(&guard, 1).await.expect("its own"), 1);
        let (kept, other) = if is_first {
            let (other, kept) = tokio::join!(ask(&without, 2), ask(&guard, 3));
            (kept, other)
        } else {
            tokio::join!(ask(&guard, 3), ask(&without, 2))
        };
        assert_eq!((kept.expect("the kept result"), guard.stats().outage_cache_hits), (1, 1));
        assert!(other.as_ref().is_ok_and(|n| *n == 2) || other.is_err_and(|error| error.kind() == ErrorKind::Store));
    }
}
