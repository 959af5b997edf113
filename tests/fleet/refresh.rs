//! `refresh` over real Redis: several processes, small and large values, and connections that break.

use crate::{
    Down, SECOND,
    support::{
        Origin, RedisServer, Relay,
        child::{self, Env},
        eventually, processes,
    },
};
use futures_util::{StreamExt, stream};
use redis::AsyncTypedCommands;
use serde::{Deserialize, Serialize};
use stampede_guard::{Cache, Error, NearCacheConfig, Policy, StampedeGuard, redis};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::{task::JoinHandle, time::sleep};

fn guard(client: redis::Client) -> StampedeGuard {
    StampedeGuard::new(client).policy(Policy::fresh_for(3600 * SECOND)).store_timeout(30 * SECOND)
}

/// Small values, and large ones, which are staged.
fn value(n: usize) -> Vec<u8> {
    let mut value = vec![n as u8; if n.is_multiple_of(2) { 10 } else { 40_000 }];
    value[..8].copy_from_slice(&(n as u64).to_le_bytes());
    value
}

fn number(value: &[u8]) -> usize {
    u64::from_le_bytes(value[..8].try_into().expect("eight bytes")) as usize
}

fn refresh(cache: &Cache<Vec<u8>>, origin: &Origin) -> JoinHandle<Result<Vec<u8>, Error>> {
    let (cache, origin) = (cache.clone(), origin.clone());
    tokio::spawn(async move { cache.refresh(1, async move || Ok::<_, Down>(value(origin.call().await))).await })
}

#[tokio::test]
async fn refreshes_of_three_processes_share_the_next_fetch() {
    let server = RedisServer::start();
    let guards = [(); 3].map(|()| guard(server.client()));
    let copies = guards[2].clone().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(3600 * SECOND));
    let caches = [&guards[0], &guards[1], &copies].map(|guard| guard.cache::<Vec<u8>>("v"));
    for guard in &guards {
        guard.fetch("warm-up", async || Ok::<_, Down>(0)).await.expect("an answer");
        eventually("messages arrive", async || guard.health().subscriber_up == Some(true)).await;
    }
    let (origin, admin) = (Origin::gated(), server.connection().await);
    for round in 1..5 {
        let first = refresh(&caches[0], &origin);
        origin.arrived(2 * round - 1).await;
        let waiting: Vec<_> = (0..30).map(|n| refresh(&caches[n % 3], &origin)).collect();
        // The lease has the inboxes of all processes that have asked: the leader's process asks for its refreshes, too.
        eventually("each process waits", async || admin.clone().strlen(LEASE).await.expect("an answer") == 42 + 3 * 8)
            .await;
        origin.release(2);
        assert_eq!(number(&first.await.expect("no panic").expect("a value")), 2 * round - 1);
        for refreshed in waiting {
            assert_eq!(number(&refreshed.await.expect("no panic").expect("a value")), 2 * round);
        }
        for cache in &caches {
            eventually("the value is stored", async || {
                cache.get(1).await.expect("an answer") == Some(value(2 * round))
            })
            .await;
        }
    }
    assert_eq!(origin.calls(), 8);
}

/// Whatever breaks, a refresh returns nothing from before its call: the origin counts its writes, and a fetch reads them
/// when it begins.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh_over_breaking_connections_returns_nothing_older() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let clients = [relay.client(), relay.client(), server.client()];
    let guards = clients.map(|client| guard(client).lease_ttl(Duration::from_millis(300)));
    let caches = guards.each_ref().map(|guard| guard.cache::<Vec<u8>>("v"));
    let writes = Arc::new(AtomicUsize::new(0));
    let (mut calls, mut shared) = (Vec::new(), 0);
    for n in 0..150 {
        let (cache, origin) = (caches[n % 3].clone(), writes.clone());
        calls.push(tokio::spawn(async move {
            let (written, fetched) = (origin.fetch_add(1, SeqCst) + 1, Arc::new(AtomicUsize::new(0)));
            let (reads, pause) = (fetched.clone(), Duration::from_micros(fastrand::u64(0..3000)));
            let fetch = async move || {
                let read = origin.load(SeqCst);
                reads.store(read, SeqCst);
                sleep(pause).await;
                Ok::<_, Down>(value(read))
            };
            let refreshed = cache.refresh(1, fetch).await.expect("a value");
            assert!(number(&refreshed) >= written, "{} after write {written}", number(&refreshed));
            number(&refreshed) != fetched.load(SeqCst)
        }));
        sleep(Duration::from_micros(fastrand::u64(0..2000))).await;
        match n % 10 {
            0 => relay.cut(),
            5 => relay.lose_replies(fastrand::usize(1..4)),
            _ => {}
        }
    }
    relay.lose_replies(0);
    for call in calls {
        shared += usize::from(call.await.expect("nothing from before its call"));
    }
    assert!(shared > 0, "none of 150 was shared");
}

#[derive(Serialize, Deserialize)]
struct Task {
    url: String,
}

/// The origin is the server itself: it counts the writes and the calls.
#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
    let client = redis::Client::open(task.url).expect("a client");
    let origin = client.get_multiplexed_async_connection().await.expect("a connection");
    let cache = guard(client).cache::<Vec<u8>>("v");
    child::ready_and_wait().await;
    let calls = (0..CALLS).map(|_| async {
        let mut origin = origin.clone();
        let written = origin.incr("writes", 1).await.expect("an answer");
        let fetch = async move || {
            let read = origin.get_int("writes").await.expect("an answer").unwrap_or_default();
            origin.incr("calls", 1).await.expect("an answer");
            Ok::<_, Down>(value(read as usize))
        };
        let refreshed = cache.refresh(1, fetch).await.expect("a value");
        usize::from(number(&refreshed) >= written as usize)
    });
    child::report(&stream::iter(calls).buffer_unordered(20).collect::<Vec<_>>().await.into_iter().sum::<usize>());
}

#[tokio::test(flavor = "multi_thread")]
async fn refreshes_of_real_processes_share_fetches() {
    let server = RedisServer::start();
    let mut children = processes::spawn(2, "refresh::child", &Task { url: server.url() });
    for child in &mut children {
        child.wait_ready().await;
    }
    for child in &mut children {
        child.go().await;
    }
    for mut child in children {
        assert_eq!(child.result::<usize>().await, CALLS, "a value from before its call");
        child.passed().await;
    }
    let calls = server.connection().await.get_int("calls").await.expect("an answer").expect("a number") as usize;
    assert!(calls < CALLS, "{calls} calls of the origin for {} refreshes", 2 * CALLS);
}

/// Number of refreshes of each process, 20 at a time.
const CALLS: usize = 500;
/// The lease of the key.
const LEASE: &str = "{sg:rv:1}:l";
