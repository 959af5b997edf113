//! `refresh`: a value from after the call, and readers keep the old one until it is stored.

use crate::{Down, MS, SECOND, never, support::Origin};
use stampede_guard::{
    Cache, CacheStatus, ErrorKind, FetchContext, FetchOutcome, NearCacheConfig, Policy, StampedeGuard,
    testing::{
        FakeRedis, Fault, Gate,
        Operation::{Fill, Get, GetOrLease, Invalidate},
    },
};
use tokio::{
    task::JoinHandle,
    time::{sleep, timeout},
};

type Refreshed = JoinHandle<Result<usize, stampede_guard::Error>>;

/// Returns guards over a store in this process, and over one of a fleet.
fn guards() -> [StampedeGuard; 2] {
    [StampedeGuard::in_memory(), FakeRedis::new().node().guard()]
}

/// A cache with a value that is fresh for an hour, and may replace a failed fetch for another.
fn rates(guard: &StampedeGuard) -> Cache<usize> {
    guard.cache("rate").policy(Policy::fresh_for(3600 * SECOND).jitter(0.0).stale_if_error(3600 * SECOND))
}

/// Refreshes with the number of its call of the origin.
fn refresh(cache: &Cache<usize>, origin: &Origin) -> Refreshed {
    let (cache, origin) = (cache.clone(), origin.clone());
    tokio::spawn(async move { cache.refresh(7, async move || Ok::<_, Down>(origin.call().await)).await })
}

fn fetch(cache: &Cache<usize>, origin: &Origin) -> Refreshed {
    let (cache, origin) = (cache.clone(), origin.clone());
    tokio::spawn(async move { cache.fetch(7, async move || Ok::<_, Down>(origin.call().await)).await })
}

async fn value(call: Refreshed) -> usize {
    call.await.expect("no panic").expect("a value")
}

async fn get(cache: &Cache<usize>) -> Option<usize> {
    cache.get(7).await.expect("an answer")
}

/// Waits until the node has been asked more than `before` times for the lease.
async fn asks_again(node: &stampede_guard::testing::Node, before: usize) {
    while node.asked(GetOrLease) <= before {
        sleep(MS).await;
    }
}

#[tokio::test(start_paused = true)]
async fn readers_keep_the_value_until_a_refresh_is_stored() {
    for guard in guards() {
        let (cache, origin) = (rates(&guard), Origin::gated());
        cache.put(7, 70).await.expect("acknowledged");
        let refreshed = refresh(&cache, &origin);
        origin.arrived(1).await;
        for _ in 0..3 {
            assert_eq!((get(&cache).await, cache.fetch(7, never).await.expect("a hit")), (Some(70), 70));
        }
        origin.open();
        assert_eq!(value(refreshed).await, 1);
        guard.drain().await;
        assert_eq!((get(&cache).await, cache.fetch(7, never).await.expect("a hit")), (Some(1), 1));
        assert_eq!(cache.refresh("", never).await.expect_err("refused").kind(), ErrorKind::InvalidKey);
    }
}

/// Seen to fail (the value of the fetch) if an entry of the first holder counts.
#[tokio::test(start_paused = true)]
async fn refresh_takes_no_value_of_a_fetch_that_is_running() {
    let server = FakeRedis::new();
    let pairs = guards().map(|guard| [guard.clone(), guard]);
    for [fetching, refreshing] in pairs.into_iter().chain([[(); 2].map(|()| server.node().guard())]) {
        let (origin, cache) = (Origin::gated(), rates(&refreshing));
        let fetched = fetch(&rates(&fetching), &origin);
        origin.arrived(1).await;
        let refreshed: Vec<_> = (0..3).map(|_| refresh(&cache, &origin)).collect();
        sleep(SECOND).await;
        origin.open();
        assert_eq!(value(fetched).await, 1);
        for refreshed in refreshed {
            assert_eq!(value(refreshed).await, 2);
        }
        refreshing.drain().await;
        assert_eq!((get(&cache).await, origin.calls()), (Some(2), 2));
    }
}

/// Seen to fail (a value of a later call) if each process takes only the value of its own fetch.
#[tokio::test(start_paused = true)]
async fn refreshes_share_the_next_fetch_in_the_fleet() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let caches = [(); 3].map(|()| rates(&server.node().guard()));
    let first = refresh(&caches[0], &origin);
    origin.arrived(1).await;
    let calls: Vec<_> = (0..60).map(|n| refresh(&caches[n % 3], &origin)).collect();
    sleep(SECOND).await;
    origin.open();
    assert_eq!(value(first).await, 1);
    for call in calls {
        assert_eq!(value(call).await, 2);
    }
    assert_eq!(origin.calls(), 2);
}

/// Seen to fail (the reader waits for the second call) if readers join the flights of refreshes.
#[tokio::test(start_paused = true)]
async fn reader_does_not_wait_for_the_fetch_of_a_refresh() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let caches = [(); 2].map(|()| rates(&server.node().guard()));
    let fetched = fetch(&caches[0], &origin);
    origin.arrived(1).await;
    let refreshed = refresh(&caches[1], &origin);
    sleep(MS).await;
    let read = fetch(&caches[1], &origin);
    sleep(MS).await;
    origin.release(1);
    assert_eq!(value(fetched).await, 1);
    assert_eq!(timeout(SECOND, value(read)).await.expect("the first fetch answers it"), 1);
    origin.open();
    assert_eq!((value(refreshed).await, origin.calls()), (2, 2));
}

/// The entry is of a fetch that had begun before the call, and the refresh has heard of no lease.
///
/// Seen to fail if any entry counts that differs from the one that the refresh has read.
#[tokio::test(start_paused = true)]
async fn refresh_asks_for_a_holder_before_it_takes_an_entry() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let nodes = [server.node(), server.node()];
    let caches = nodes.each_ref().map(|node| rates(&node.guard()));
    let fetched = fetch(&caches[0], &origin);
    origin.arrived(1).await;
    nodes[1].once(GetOrLease, Fault::RequestDelayed(10 * MS));
    let refreshed = refresh(&caches[1], &origin);
    asks_again(&nodes[1], 0).await;
    origin.open();
    assert_eq!((value(fetched).await, value(refreshed).await), (1, 2));
}

/// A second refresh joins one that waits. The fetch of a third process is later than the first call only.
///
/// Seen to fail (both get it) if all callers of a flight take what its opener may take.
#[tokio::test(start_paused = true)]
async fn later_refresh_does_not_take_the_entry_of_an_earlier_one() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let nodes = [server.node(), server.node(), server.node()];
    let caches = nodes.each_ref().map(|node| rates(&node.guard().lease_ttl(60 * SECOND)));
    let fetched = fetch(&caches[0], &origin);
    origin.arrived(1).await;
    nodes[1].lose_wakes();
    let first = refresh(&caches[1], &origin);
    asks_again(&nodes[1], 0).await;
    sleep(MS).await;
    origin.release(1);
    assert_eq!(value(fetched).await, 1);
    let elsewhere = refresh(&caches[2], &origin);
    origin.arrived(2).await;
    let second = refresh(&caches[1], &origin);
    sleep(MS).await;
    assert_eq!(nodes[1].asked(GetOrLease), 1, "it has joined the first one, which has missed its wake-up");
    origin.open();
    assert_eq!(value(elsewhere).await, 2);
    assert_eq!((value(first).await, value(second).await, origin.calls()), (2, 3, 3));
}

#[tokio::test(start_paused = true)]
async fn refresh_that_fails_is_an_error_and_readers_keep_the_value() {
    for guard in guards() {
        let brief = Policy::fresh_for(SECOND).jitter(0.0).stale_if_error(3600 * SECOND).soft_timeout(MS);
        for (cache, is_stale) in [(rates(&guard), false), (rates(&guard).policy(brief), true)] {
            cache.put(7, 70).await.expect("acknowledged");
            sleep(10 * SECOND).await;
            let failing = || cache.refresh(7, async || Err::<usize, _>(Down));
            assert_eq!(failing().await.expect_err("the origin is down").kind(), ErrorKind::Origin);
            guard.drain().await;
            let blocked = cache.refresh(7, never).await.expect_err("the failure blocks the key");
            assert_eq!(blocked.kind(), ErrorKind::Origin);
            assert_eq!(get(&cache).await, (!is_stale).then_some(70));
            assert_eq!(cache.fetch(7, never).await.expect("fresh, or stale"), 70);
            sleep(2 * SECOND).await;
            assert_eq!(cache.refresh(7, async || Ok::<_, Down>(71)).await.expect("a value"), 71);
        }
    }
}

/// Seen to fail (no second call) if a refresh joins any local flight, and (the earlier value) if it takes a result that is
/// kept.
#[tokio::test(start_paused = true)]
async fn refresh_without_the_store_takes_no_earlier_result() {
    let (node, origin) = (FakeRedis::new().node(), Origin::gated());
    let cache = rates(&node.guard());
    cache.put(7, 70).await.expect("acknowledged");
    [Get, GetOrLease, Fill, Invalidate].iter().for_each(|operation| node.always(*operation, Fault::Fails));
    let fetched = fetch(&cache, &origin);
    origin.arrived(1).await;
    let refreshed = refresh(&cache, &origin);
    origin.arrived(2).await;
    origin.open();
    assert_eq!((value(fetched).await, value(refreshed).await), (1, 2));
    let kept = cache.fetch(7, never).await.expect("from the outage cache");
    assert_eq!(value(refresh(&cache, &origin)).await, 3, "and not {kept}");
    node.heal();
    sleep(10 * SECOND).await;
    assert_eq!(get(&cache).await, Some(70), "what was fetched meanwhile is not stored");
    let closed = node.guard().on_store_failure(stampede_guard::StoreFailure::FailClosed);
    [Get, GetOrLease].iter().for_each(|operation| node.always(*operation, Fault::Fails));
    assert_eq!(rates(&closed).refresh(7, never).await.expect_err("closed").kind(), ErrorKind::Store);
}

#[tokio::test(start_paused = true)]
async fn refresh_that_is_overtaken_is_not_stored() {
    for guard in guards() {
        for verb in ["invalidate", "put", "expire"] {
            let (cache, origin) = (rates(&guard), Origin::gated());
            cache.put(7, 70).await.expect("acknowledged");
            sleep(MS).await;
            let refreshed = refresh(&cache, &origin);
            origin.arrived(1).await;
            let (overtaken, left) = match verb {
                "invalidate" => (cache.invalidate(7).await, None),
                "put" => (cache.put(7, 80).await, Some(80)),
                _ => (cache.expire(7).await, None),
            };
            overtaken.expect("acknowledged");
            let second = refresh(&cache, &origin);
            sleep(MS).await;
            origin.release(1);
            assert_eq!(value(refreshed).await, 1, "its caller asked before");
            sleep(MS).await;
            assert_eq!(get(&cache).await, left, "{verb}");
            origin.open();
            assert_eq!(value(second).await, 2, "{verb}");
            guard.drain().await;
            assert_eq!(get(&cache).await, Some(2), "{verb}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_under_a_marker_makes_a_call_of_its_own() {
    for guard in guards() {
        let cache = rates(&guard);
        let private = async |_: FetchContext<_>| Ok::<_, Down>(FetchOutcome::new(1).private());
        assert_eq!(cache.entry(7).refresh_with(private).await.expect("a value"), 1);
        guard.drain().await;
        assert_eq!(cache.entry(7).refresh_with(private).await.expect("a value"), 1);
        assert_eq!(get(&cache).await, None);
        assert_eq!(cache.refresh(7, async || Ok::<_, Down>(2)).await.expect("a value"), 2);
        guard.drain().await;
        assert_eq!(get(&cache).await, Some(2), "it has replaced the marker");
        let unstored = async |_: FetchContext<_>| Ok::<_, Down>(FetchOutcome::new(3).do_not_store());
        for _ in 0..2 {
            cache.invalidate(7).await.expect("acknowledged");
            assert_eq!(cache.entry(7).refresh_with(unstored).await.expect("a value"), 3);
            guard.drain().await;
            assert_eq!(cache.refresh(7, async || Ok::<_, Down>(4)).await.expect("a value"), 4);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_goes_on_when_its_caller_is_dropped() {
    for guard in guards() {
        let (cache, origin) = (rates(&guard), Origin::gated());
        cache.put(7, 70).await.expect("acknowledged");
        let refreshed = refresh(&cache, &origin);
        origin.arrived(1).await;
        refreshed.abort();
        origin.open();
        guard.drain().await;
        assert_eq!((get(&cache).await, origin.calls()), (Some(1), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_ends_at_its_deadline_without_a_stale_value() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let caches = [(); 2].map(|()| rates(&server.node().guard()));
    caches[0].put(7, 70).await.expect("acknowledged");
    let held = refresh(&caches[0], &origin);
    origin.arrived(1).await;
    for cache in &caches {
        let refresh = cache.entry(7).timeout(SECOND).soft_timeout(MS).refresh(never);
        assert_eq!(refresh.await.expect_err("too late").kind(), ErrorKind::Overloaded);
    }
    origin.open();
    assert_eq!(value(held).await, 1);
}

#[tokio::test]
async fn refresh_calls_each_time_with_a_bypass() {
    for guard in guards() {
        let (cache, origin) = (rates(&guard.bypass(true)), Origin::new());
        for n in 1..4 {
            assert_eq!(value(refresh(&cache, &origin)).await, n);
        }
        assert_eq!(get(&cache).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_confirms_an_unchanged_value() {
    for guard in guards() {
        let cache = rates(&guard);
        cache.put(7, FetchOutcome::new(70).validator("v1")).await.expect("acknowledged");
        sleep(60 * SECOND).await;
        let unchanged = async |cx: FetchContext<usize>| {
            assert_eq!((cx.stale(), cx.validator()), (Some(&70), Some(&b"v1"[..])));
            Ok::<_, Down>(cx.unchanged().expect("a value is stored"))
        };
        assert_eq!(cache.entry(7).refresh_with(unchanged).await.expect("a value"), 70);
        guard.drain().await;
        let hit = cache.entry(7).answer(async |_| Err(Down)).await.expect("a hit");
        assert_eq!((*hit, hit.status(), hit.age()), (70, CacheStatus::Hit, std::time::Duration::ZERO));
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_ends_the_copies_of_its_process() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let guard = node.guard().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(3600 * SECOND));
    let cache = rates(&guard);
    cache.put(7, 70).await.expect("acknowledged");
    for n in 1..4 {
        let before = cache.fetch(7, never).await.expect("a hit");
        assert_eq!(cache.fetch(7, never).await.expect("a copy"), before);
        assert_eq!(value(refresh(&cache, &origin)).await, n);
        guard.drain().await;
        assert_eq!(cache.fetch(7, never).await.expect("a hit"), n);
    }
}

/// A refresh within the fetch of its own key would wait for itself.
#[tokio::test(start_paused = true)]
async fn refresh_within_a_fetch_of_its_key_makes_its_own_call() {
    for guard in guards() {
        let (cache, inner) = (rates(&guard), rates(&guard));
        let nested = async move || inner.refresh(7, async || Ok::<_, Down>(1)).await;
        assert_eq!(cache.refresh(7, nested).await.expect("a value"), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn refresh_waits_for_a_put_and_fetches_then() {
    let (node, gate, origin) = (FakeRedis::new().node(), Gate::closed(), Origin::new());
    let cache = rates(&node.guard());
    node.once(Fill, Fault::Held(gate.clone()));
    let put = tokio::spawn({
        let cache = cache.clone();
        async move { cache.put(7, 70).await }
    });
    while node.asked(Fill) == 0 {
        sleep(MS).await;
    }
    let refreshed = refresh(&cache, &origin);
    asks_again(&node, 0).await;
    gate.open();
    put.await.expect("no panic").expect("acknowledged");
    assert_eq!(value(refreshed).await, 1);
}

/// The put had its value before the call, and takes the lease from the fetch that the refresh waits for.
///
/// Seen to fail (the value of the put) if a put has the stamp of its lease.
#[tokio::test(start_paused = true)]
async fn refresh_takes_no_value_of_a_put_from_before_its_call() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let nodes = [server.node(), server.node(), server.node()];
    let caches = nodes.each_ref().map(|node| rates(&node.guard()));
    let fetched = fetch(&caches[0], &origin);
    origin.arrived(1).await;
    nodes[2].once(Invalidate, Fault::RequestDelayed(10 * MS));
    let put = tokio::spawn({
        let cache = caches[2].clone();
        async move { cache.put(7, 70).await }
    });
    while nodes[2].asked(Invalidate) == 0 {
        sleep(MS).await;
    }
    let refreshed = refresh(&caches[1], &origin);
    asks_again(&nodes[1], 0).await;
    put.await.expect("no panic").expect("acknowledged");
    assert_eq!(get(&caches[1]).await, Some(70));
    origin.open();
    assert_eq!((value(fetched).await, value(refreshed).await), (1, 2));
}
