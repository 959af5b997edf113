//! `put` and `expire` over real Redis: both stores, near caches, and connections that break.

use crate::{
    Down, MS, SECOND, never,
    support::{Origin, RedisServer, Relay, eventually},
};
use stampede_guard::{ErrorKind, NearCacheConfig, Policy, StampedeGuard, redis};
use std::time::Duration;
use tokio::time::sleep;

fn guard(client: redis::Client) -> StampedeGuard {
    StampedeGuard::new(client).policy(Policy::fresh_for(3600 * SECOND)).store_timeout(30 * SECOND)
}

/// Small values, and large ones, which are staged.
fn value(n: usize) -> Vec<u8> {
    let mut value = vec![n as u8; if n.is_multiple_of(2) { 10 } else { 40_000 }];
    value[..8].copy_from_slice(&(n as u64).to_le_bytes());
    value
}

#[tokio::test]
async fn put_reaches_other_processes_and_their_near_copies() {
    let server = RedisServer::start();
    let near = NearCacheConfig::max_bytes(1 << 20).max_age(3600 * SECOND);
    let [here, there, copies] = [(); 3].map(|()| guard(server.client()));
    let copies = copies.near_cache(near);
    let [here, there, near] = [&here, &there, &copies].map(|guard| guard.cache::<Vec<u8>>("v"));
    for n in 1..20 {
        here.put(1, value(n)).await.expect("acknowledged");
        assert_eq!(there.get(1).await.expect("an answer"), Some(value(n)));
        eventually("the near copy has ended", async || near.fetch(1, never).await.expect("a hit") == value(n)).await;
        assert_eq!(here.get(1).await.expect("an answer"), Some(value(n)));
    }
    assert!(copies.stats().near_hits > 0 || copies.stats().hits > 0);
}

#[tokio::test]
async fn put_refuses_the_fill_of_another_process() {
    let server = RedisServer::start();
    let (here, there, origin) = (guard(server.client()), guard(server.client()), Origin::gated());
    let (putting, fetching) = (here.cache::<usize>("v"), there.cache::<usize>("v"));
    let fetch = tokio::spawn({
        let origin = origin.clone();
        async move { fetching.fetch(1, async move || Ok::<_, Down>(origin.call().await)).await }
    });
    origin.arrived(1).await;
    putting.put(1, 70).await.expect("acknowledged");
    origin.open();
    assert_eq!(fetch.await.expect("no panic").expect("a value"), 1, "its caller asked before the put");
    there.drain().await;
    assert_eq!(putting.get(1).await.expect("an answer"), Some(70));
}

/// A put over connections that break at any time: before, between and after its two scripts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn put_over_breaking_connections_keeps_its_word() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let (here, there) = (guard(relay.client()).lease_ttl(300 * MS), guard(server.client()));
    let (process, here, there) = (here.clone(), here.cache::<Vec<u8>>("v"), there.cache::<Vec<u8>>("v"));
    let (mut stored, mut failed) = (0, 0);
    for n in 1..50 {
        let put = tokio::spawn({
            let here = here.clone();
            async move { here.put(1, value(n)).await }
        });
        sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
        match n % 3 {
            0 => relay.cut(),
            1 => relay.lose_replies(fastrand::usize(1..4)),
            _ => {}
        }
        let own = match put.await.expect("no panic") {
            Ok(()) => {
                let found = there.get(1).await.expect("an answer");
                // A late copy of the first script drops the value again.
                assert!(found.is_none() || found == Some(value(n)), "put {n}");
                stored += usize::from(found.is_some());
                here.get(1).await.expect("an answer")
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Store);
                failed += 1;
                here.get(1).await.expect("an answer")
            }
        };
        assert!(own.is_none() || own == Some(value(n)), "after put {n}");
        relay.lose_replies(0);
        // What has failed is sent again over the next connection.
        eventually("nothing is pending", async || process.health().pending_invalidations == 0).await;
    }
    assert!(stored > 15, "{stored} stored, {failed} failed");
    eventually("the last put", async || here.put(1, value(50)).await.is_ok()).await;
    assert_eq!(there.get(1).await.expect("an answer"), Some(value(50)));
}

/// Seen by a near copy of another process, too, which learns of it by a message.
#[tokio::test]
async fn expiry_reaches_other_processes_and_their_near_copies() {
    let server = RedisServer::start();
    let near = NearCacheConfig::max_bytes(1 << 20).max_age(3600 * SECOND);
    let windows = Policy::fresh_for(3600 * SECOND).stale_if_error(3600 * SECOND);
    let [here, copies] = [(); 2].map(|()| guard(server.client()));
    let copies = copies.near_cache(near);
    let [here, near] = [&here, &copies].map(|guard| guard.cache::<Vec<u8>>("v").policy(windows));
    for n in 1..10 {
        here.put(1, value(n)).await.expect("acknowledged");
        let hits = copies.stats().near_hits;
        eventually("a near copy", async || {
            near.fetch(1, never).await.expect("a hit") == value(n) && copies.stats().near_hits > hits
        })
        .await;
        here.expire(1).await.expect("acknowledged");
        let failing = async || Err::<Vec<u8>, _>(Down);
        assert_eq!(here.fetch(1, failing).await.expect("stale"), value(n));
        eventually("the near copy is stale", async || near.get(1).await.expect("an answer").is_none()).await;
        assert_eq!(near.fetch(1, failing).await.expect("stale"), value(n));
    }
}

/// An invalidation is sent again over the connection that it has made: the first one may have been replaced meanwhile.
///
/// Seen to fail (no value is left) if the first connection counts as a replaced one.
#[tokio::test]
async fn expiry_as_the_first_operation_leaves_a_stale_value() {
    let server = RedisServer::start();
    let windows = Policy::fresh_for(3600 * SECOND).stale_if_error(3600 * SECOND);
    let [here, there] = [(); 2].map(|()| guard(server.client()).cache::<Vec<u8>>("v").policy(windows));
    here.put(1, value(1)).await.expect("acknowledged");
    there.expire(1).await.expect("acknowledged");
    assert_eq!(here.fetch(1, async || Err::<Vec<u8>, _>(Down)).await.expect("stale"), value(1));
}

/// Over connections that break, an expiry is executed, or an invalidation is pending. Either way the value is not fresh.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expiry_over_breaking_connections_keeps_its_word() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let (process, there) = (guard(relay.client()), guard(server.client()));
    let (here, there) = (process.cache::<Vec<u8>>("v"), there.cache::<Vec<u8>>("v"));
    let mut acknowledged = 0;
    for n in 1..50 {
        there.put(1, value(n)).await.expect("acknowledged");
        let expiry = tokio::spawn({
            let here = here.clone();
            async move { here.expire(1).await }
        });
        sleep(Duration::from_micros(fastrand::u64(0..3000))).await;
        match n % 3 {
            0 => relay.cut(),
            1 => relay.lose_replies(fastrand::usize(1..3)),
            _ => {}
        }
        if expiry.await.expect("no panic").is_ok() {
            acknowledged += 1;
            assert_eq!(there.get(1).await.expect("an answer"), None, "{n} is fresh");
        }
        assert_eq!(here.get(1).await.expect("an answer"), None, "{n} is fresh in its process");
        relay.lose_replies(0);
        eventually("nothing is pending", async || process.health().pending_invalidations == 0).await;
        assert_eq!(there.get(1).await.expect("an answer"), None, "{n} is fresh in the end");
    }
    assert!(acknowledged > 15, "{acknowledged}");
}
