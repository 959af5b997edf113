//! `expire`: the stale windows go on, and nothing that began before makes a value fresh again.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, eventually},
};
use futures_util::future::join_all;
use stampede_guard::{
    Cache, ErrorKind, FetchContext, FetchOutcome, MemoryStore, NearCacheConfig, Policy, StampedeGuard,
    testing::{FakeRedis, Fault, Operation::Invalidate},
};
use std::sync::Arc;

fn users(guard: &StampedeGuard) -> Cache<usize> {
    guard.cache("user")
}

/// A cache with stale windows of a minute.
fn with_windows(guard: &StampedeGuard) -> Cache<usize> {
    let policy = Policy::fresh_for(60 * SECOND).jitter(0.0);
    users(guard).policy(policy.stale_while_revalidate(60 * SECOND).stale_if_error(60 * SECOND))
}

#[tokio::test(start_paused = true)]
async fn expired_value_is_served_while_one_caller_refreshes_it() {
    let server = FakeRedis::new();
    let embedded = StampedeGuard::new(Arc::new(MemoryStore::default()));
    for guards in [[server.node().guard(), server.node().guard()], [embedded.clone(), embedded]] {
        let (origin, caches) = (Origin::gated(), guards.each_ref().map(with_windows));
        caches[0].put(7, 100).await.expect("stored");
        tokio::time::sleep(SECOND).await;
        caches[0].expire(7).await.expect("acknowledged");
        for cache in caches.iter().chain(&caches) {
            let load = origin.clone();
            let value = cache.fetch(7, async move || Ok::<_, Down>(load.call().await)).await;
            assert_eq!(value.expect("stale"), 100);
        }
        origin.arrived(1).await;
        origin.open();
        join_all(guards.each_ref().map(StampedeGuard::drain)).await;
        assert_eq!((caches[1].get(7).await.expect("an answer"), origin.calls()), (Some(1), 1));
    }
}

#[tokio::test(start_paused = true)]
async fn expired_value_is_served_on_errors_until_its_windows_end() {
    let guard = FakeRedis::new().node().guard();
    let policy = Policy::fresh_for(600 * SECOND).jitter(0.0).stale_if_error(60 * SECOND);
    let cache = users(&guard).policy(policy);
    cache.put(7, 1).await.expect("stored");
    tokio::time::sleep(10 * SECOND).await;
    cache.expire(7).await.expect("acknowledged");
    let failing = || cache.fetch(7, async || Err::<usize, _>(Down));
    tokio::time::sleep(50 * SECOND).await;
    assert_eq!(failing().await.expect("stale"), 1);
    cache.expire(7).await.expect("acknowledged");
    tokio::time::sleep(15 * SECOND).await; // 65 s after the first expiry
    assert_eq!(failing().await.expect_err("too old").kind(), ErrorKind::Origin);
}

/// Without windows after its freshness an expired value is not served.
#[tokio::test]
async fn expired_value_without_windows_is_a_miss() {
    let guard = FakeRedis::new().node().guard();
    users(&guard).put(7, 1).await.expect("stored");
    users(&guard).expire(7).await.expect("acknowledged");
    assert_eq!(users(&guard).fetch(7, async || Ok::<_, Down>(2)).await.expect("a value"), 2);
}

#[tokio::test]
async fn fetch_begun_before_an_expiry_makes_nothing_fresh() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let nodes = [server.node(), server.node()];
    nodes[1].lose_wakes();
    let caches = nodes.each_ref().map(|node| with_windows(&node.guard()));
    let load = origin.clone();
    let fetch = caches[1].fetch(7, async move || Ok::<_, Down>(load.call().await));
    let expire = async {
        origin.arrived(1).await;
        caches[0].expire(7).await.expect("acknowledged");
        origin.open();
    };
    assert_eq!(tokio::join!(async { fetch.await.expect("its own") }, expire).0, 1);
    let next = caches[0].fetch(7, async || Ok::<_, Down>(2)).await;
    assert_eq!(next.expect("a value"), 2);
}

/// A leader waits for the fetch of another process. Its value expires before the leader has asked again.
///
/// Seen to fail (1, the value from before) if an awaited entry counts although it has expired.
#[tokio::test(start_paused = true)]
async fn awaited_value_that_has_expired_is_fetched_again() {
    let server = FakeRedis::new();
    let (first, second) = (server.node(), server.node());
    second.lose_wakes();
    let policy = Policy::fresh_for(60 * SECOND).stale_if_error(60 * SECOND);
    let [leading, waiting] = [&first, &second].map(|node| users(&node.guard()).policy(policy));
    let lead = leading.fetch(7, async || {
        tokio::time::sleep(20 * MS).await;
        Ok::<_, Down>(1)
    });
    let wait = async {
        tokio::time::sleep(5 * MS).await;
        waiting.fetch(7, async || Ok::<_, Down>(2)).await.expect("a value")
    };
    let expire = async {
        eventually("the value is stored", async || server.holds(("user", 7))).await;
        leading.expire(7).await.expect("acknowledged");
    };
    assert_eq!(tokio::join!(async { lead.await.expect("its own") }, wait, expire), (1, 2, ()));
}

#[tokio::test(start_paused = true)]
async fn concurrent_expiries_keep_the_value() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let cache = with_windows(&guard);
    cache.put(7, 1).await.expect("stored");
    node.always(Invalidate, Fault::RequestDelayed(20 * MS));
    let expired = join_all((0..10).map(|_| cache.expire(7))).await;
    assert!(expired.iter().all(Result::is_ok));
    node.heal();
    assert_eq!(cache.fetch(7, async || Err::<usize, _>(Down)).await.expect("stale"), 1);
    guard.drain().await;
}

/// Seen to fail (the value is there) if each expiry is sent as one.
#[tokio::test(start_paused = true)]
async fn expiry_beside_a_pending_invalidation_invalidates() {
    let server = FakeRedis::new();
    let node = server.node();
    let cache = with_windows(&node.guard());
    cache.put(7, 1).await.expect("stored");
    node.once(Invalidate, Fault::Fails);
    assert!(cache.invalidate(7).await.is_err());
    cache.expire(7).await.expect("acknowledged");
    assert!(!server.holds(("user", 7)));
    assert_eq!(cache.fetch(7, async || Ok::<_, Down>(2)).await.expect("a value"), 2);
}

/// Seen to fail (`None`) if the store is not read again after the expiry.
#[tokio::test(start_paused = true)]
async fn get_beside_an_expiry_returns_the_expired_value() {
    let server = FakeRedis::new();
    let (plain, near) = (server.node(), server.node());
    let near_cache = NearCacheConfig::max_bytes(1 << 20);
    for (node, guard) in [(&plain, plain.guard()), (&near, near.guard().near_cache(near_cache))] {
        let cache = with_windows(&guard);
        cache.put(7, 1).await.expect("stored");
        node.once(Invalidate, Fault::ReplyDelayed(50 * MS));
        let (expired, found) = tokio::join!(cache.expire(7), cache.get(7));
        expired.expect("acknowledged");
        assert_eq!(found.expect("an answer"), Some(1));
    }
}

/// An expiry that the store may have executed or not is pending, and drops the value in the end.
#[tokio::test(start_paused = true)]
async fn expiry_that_is_not_acknowledged_is_a_pending_invalidation() {
    let server = FakeRedis::new();
    let node = server.node();
    let guard = node.guard();
    let cache = with_windows(&guard);
    cache.put(7, 1).await.expect("stored");
    node.always(Invalidate, Fault::RequestLost);
    assert_eq!(cache.expire(7).await.expect_err("not acknowledged").kind(), ErrorKind::Store);
    assert_eq!(cache.fetch(7, async || Ok::<_, Down>(2)).await.expect("a value"), 2, "1 is not served as fresh");
    node.heal();
    eventually("it is sent", async || guard.health().pending_invalidations == 0).await;
    assert!(!server.holds(("user", 7)));
}

/// A fetch sees the expired value, and its validator.
#[tokio::test]
async fn expired_value_can_be_validated() {
    let guard = StampedeGuard::in_memory();
    let policy = Policy::fresh_for(60 * SECOND).keep_for_validation(60 * SECOND);
    let cache = users(&guard).policy(policy);
    cache.put(7, FetchOutcome::new(1).validator("v1")).await.expect("stored");
    cache.expire(7).await.expect("acknowledged");
    let validated = cache.entry(7).fetch_with(async |cx: FetchContext<usize>| {
        assert_eq!(cx.validator(), Some(&b"v1"[..]));
        cx.unchanged().ok_or(Down)
    });
    assert_eq!(validated.await.expect("a value"), 1);
    guard.drain().await;
    assert_eq!(cache.fetch(7, never).await.expect("fresh again"), 1);
}

/// An invalidation was acknowledged by a connection that is gone, whose server may have lost it.
///
/// Seen to fail (the value is there) if the connection is not compared.
#[tokio::test(start_paused = true)]
async fn expiry_after_a_lost_invalidation_invalidates() {
    let server = FakeRedis::new();
    let (node, elsewhere) = (server.node(), with_windows(&server.node().guard()));
    let cache = with_windows(&node.guard());
    cache.invalidate(7).await.expect("acknowledged");
    elsewhere.put(7, 1).await.expect("stored"); // as the server that takes over still has it
    node.kill();
    node.revive();
    cache.expire(7).await.expect("acknowledged");
    assert!(!server.holds(("user", 7)));
    elsewhere.put(7, 1).await.expect("stored");
    cache.expire(7).await.expect("acknowledged");
    assert!(server.holds(("user", 7)), "the invalidation was acknowledged by this connection");
}
