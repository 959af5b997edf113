//! Redis commands per request, counted by `MONITOR`.

use crate::{
    Down, MS, SECOND, never,
    support::{Command, Monitor, Origin, RedisServer},
};
use axum::{
    body::Body,
    http::{Request, Response},
};
use stampede_guard::{CacheStatus, ErrorKind, StampedeGuard};
use std::convert::Infallible;
use tower::{Layer, ServiceExt, service_fn};

async fn warm(server: &RedisServer) -> StampedeGuard {
    let guard = StampedeGuard::new(server.client()).store_timeout(30 * SECOND);
    guard.fetch("warm-up", async || Ok::<_, Down>(0)).await.expect("an answer");
    guard.drain().await;
    guard
}

/// Returns a guard whose store has the keys 0 to 19.
async fn warm_with_keys(server: &RedisServer) -> StampedeGuard {
    let guard = warm(server).await;
    for key in 0..20_u64 {
        guard.fetch(key, async move || Ok::<_, Down>(key)).await.expect("an answer");
    }
    guard.drain().await;
    guard
}

fn names(commands: &[Command]) -> Vec<&str> {
    commands.iter().map(|command| command.name.as_str()).collect()
}

#[tokio::test]
async fn a_hit_is_one_get() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let monitor = Monitor::start(&server).await;
    guard.fetch("warm-up", never::<i32>).await.expect("a hit");
    assert_eq!(names(&monitor.stop().await), ["GET"]);
}

/// The first read is sent at once, for one caller. All other callers share the next one.
#[tokio::test]
async fn concurrent_hits_share_two_gets() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let monitor = Monitor::start(&server).await;
    let hits = (0..100).map(|_| guard.fetch("warm-up", never::<i32>));
    assert!(futures_util::future::join_all(hits).await.into_iter().all(|hit| hit.is_ok()));
    assert_eq!(names(&monitor.stop().await), ["GET", "GET"]);
}

/// The first read is sent at once, the other reads together.
#[tokio::test]
async fn concurrent_hits_of_different_keys_are_two_commands() {
    let server = RedisServer::start();
    let guard = warm_with_keys(&server).await;
    let monitor = Monitor::start(&server).await;
    let hits = (0..20_u64).map(|key| guard.fetch(key, never::<u64>));
    let hits = futures_util::future::join_all(hits).await;
    assert!(hits.into_iter().zip(0..).all(|(hit, key)| hit.is_ok_and(|hit| hit == key)));
    assert_eq!(names(&monitor.stop().await), ["GET", "MGET"]);
}

/// A stream of fetches may hold fetches without polling them.
///
/// Seen to fail (no answer) when the first reader of a batch sends it.
#[tokio::test]
async fn fetch_that_is_held_delays_no_other_hit() {
    let server = RedisServer::start();
    let guard = warm_with_keys(&server).await;
    let mut held = [0, 1].map(|key: u64| Box::pin(guard.fetch(key, never::<u64>)));
    for fetch in &mut held {
        assert!(futures_util::poll!(fetch).is_pending());
    }
    let hit = tokio::time::timeout(10 * SECOND, guard.fetch(2_u64, never::<u64>)).await.expect("an answer");
    assert_eq!(hit.expect("a hit"), 2);
}

#[tokio::test]
async fn a_miss_is_three_commands_and_two_of_them_before_the_answer() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let monitor = Monitor::start(&server).await;
    let mut marker = server.connection().await;
    let fetch = async move || {
        redis::cmd("ECHO").arg("fetched").exec_async(&mut marker).await.expect("an answer");
        Ok::<_, Down>(1)
    };
    guard.fetch("miss", fetch).await.expect("an answer");
    guard.drain().await;
    assert_eq!(names(&monitor.stop().await), ["GET", "EVALSHA", "ECHO", "EVALSHA"]);
}

#[tokio::test]
async fn a_failure_costs_no_more_commands_than_a_miss() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let monitor = Monitor::start(&server).await;
    let error = guard.fetch("failure", async || Err::<i32, _>(Down)).await.expect_err("down");
    assert_eq!(error.kind(), ErrorKind::Origin);
    guard.drain().await;
    assert_eq!(names(&monitor.stop().await), ["GET", "EVALSHA", "EVALSHA"]);
}

/// Two reads and two questions for the lease. A waiting process rarely polls, because a message wakes it when the fetch
/// ends.
#[tokio::test]
async fn a_waiting_process_sends_four_commands() {
    let server = RedisServer::start();
    let (leader, waiter) = (warm(&server).await, warm(&server).await);
    let (origin, call) = (Origin::gated(), Origin::new());
    let monitor = Monitor::start(&server).await;
    let lead = leader.fetch("k", {
        let origin = origin.clone();
        async move || Ok::<_, Down>(origin.call().await)
    });
    let wait = async {
        origin.arrived(1).await;
        let waiters = (0..100).map(|_| waiter.fetch("k", never::<usize>));
        let (answers, _) = tokio::join!(futures_util::future::join_all(waiters), async {
            call.work(100 * MS).await;
            origin.open();
        });
        assert!(answers.into_iter().all(|answer| answer.is_ok_and(|value| value == 1)));
    };
    tokio::join!(async { lead.await.expect("an answer") }, wait);
    leader.drain().await;
    let commands = monitor.stop().await;
    assert_eq!(commands.len(), 3 + 4, "{commands:#?}");
}

/// Requests a page that varies by language, and returns its cache status and the commands.
async fn page(server: &RedisServer, guard: &StampedeGuard, language: &str) -> (CacheStatus, Vec<String>) {
    let monitor = Monitor::start(server).await;
    let site = service_fn(async |_: Request<Body>| {
        let response = Response::builder().header("vary", "accept-language").header("cache-control", "max-age=60");
        Ok::<_, Infallible>(response.body(Body::from("page")).expect("a response"))
    });
    let request = Request::get("http://site.example/page").header("accept-language", language);
    let request = request.body(Body::empty()).expect("a request");
    let response = guard.layer(site).oneshot(request).await.expect("it cannot fail");
    let status = *response.extensions().get().expect("set by the guard");
    axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.expect("a body");
    guard.drain().await;
    (status, names(&monitor.stop().await).into_iter().map(str::to_owned).collect())
}

/// The index names the variant. Once a process knows the index, it reads both entries at once, and a miss
/// costs no more than any other. Seen to fail when the index was not remembered.
#[tokio::test]
async fn a_variant_hit_is_one_command_once_its_index_is_known() {
    let server = RedisServer::start();
    let (one, two) = (warm(&server).await, warm(&server).await);
    let miss = |read| [read, "EVALSHA", "EVALSHA"].map(str::to_owned).to_vec();
    let hit = |reads: &[&str]| reads.iter().map(|read| (*read).to_owned()).collect::<Vec<_>>();
    for (guard, language, status, commands) in [
        (&one, "de", CacheStatus::Miss, miss("GET")),
        (&one, "de", CacheStatus::Hit, hit(&["MGET"])),
        (&one, "en", CacheStatus::Miss, miss("MGET")),
        (&two, "de", CacheStatus::Hit, hit(&["GET", "GET"])),
        (&two, "en", CacheStatus::Hit, hit(&["MGET"])),
        (&two, "fr", CacheStatus::Miss, miss("MGET")),
    ] {
        assert_eq!(page(&server, guard, language).await, (status, commands), "{language}");
    }
}

/// Seen to fail if entries of all sizes are arguments of the script.
#[tokio::test]
async fn large_body_is_set_beside_the_script_and_renamed() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let site = service_fn(async |_: Request<Body>| {
        let response = Response::builder().header("cache-control", "max-age=60");
        Ok::<_, Infallible>(response.body(Body::from("x".repeat(64 << 10))).expect("a response"))
    });
    let layered = guard.layer(site);
    for (status, commands) in
        [(CacheStatus::Miss, &["GET", "EVALSHA", "SET", "EVALSHA"][..]), (CacheStatus::Hit, &["GET"])]
    {
        let monitor = Monitor::start(&server).await;
        let request = Request::get("http://site.example/large").body(Body::empty()).expect("a request");
        let response = layered.clone().oneshot(request).await.expect("it cannot fail");
        assert_eq!(response.extensions().get(), Some(&status));
        let body = axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.expect("a body");
        assert_eq!(body.len(), 64 << 10);
        guard.drain().await;
        assert_eq!(names(&monitor.stop().await), commands);
    }
    let stats = redis::cmd("INFO").arg("commandstats").query_async::<String>(&mut server.connection().await).await;
    assert!(stats.expect("an answer").contains("cmdstat_rename:calls=1,"), "the script renames it");
}

/// All methods and schemes of a URL share one slot. Seen to fail with two scripts when a `Location` that repeats the URL is
/// invalidated by itself.
#[tokio::test]
async fn an_unsafe_request_sends_one_script() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    guard.invalidate("warm-up").await.expect("acknowledged"); // the script is loaded
    let site = service_fn(async |_: Request<Body>| {
        let response = Response::builder().status(201).header("location", "/page?page=1");
        Ok::<_, Infallible>(response.body(Body::from("created")).expect("a response"))
    });
    let monitor = Monitor::start(&server).await;
    let post = Request::post("http://site.example/page?page=1").body(Body::empty()).expect("a request");
    let response = guard.layer(site).oneshot(post).await.expect("it cannot fail");
    assert_eq!(response.status(), 201);
    guard.drain().await;
    assert_eq!(names(&monitor.stop().await), ["EVALSHA"]);
}
