//! What a question costs Redis, counted by `MONITOR`.

use crate::{
    Down, MS, SECOND, never,
    support::{Command, Monitor, Origin, RedisServer},
};
use axum::{
    body::Body,
    http::{Request, Response},
};
use stampede_guard::{CacheVerdict, ErrorKind, StampedeGuard};
use std::convert::Infallible;
use tower::{Layer, ServiceExt, service_fn};

async fn warm(server: &RedisServer) -> StampedeGuard {
    let guard = StampedeGuard::new(server.client()).op_timeout(30 * SECOND);
    guard.fetch("warm-up", async || Ok::<_, Down>(0)).await.expect("an answer");
    guard.shutdown().await;
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

#[tokio::test]
async fn hits_at_one_moment_share_their_get() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let monitor = Monitor::start(&server).await;
    let hits = (0..100).map(|_| guard.fetch("warm-up", never::<i32>));
    assert!(futures_util::future::join_all(hits).await.into_iter().all(|hit| hit.is_ok()));
    assert_eq!(names(&monitor.stop().await), ["GET"]);
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
    guard.shutdown().await;
    assert_eq!(names(&monitor.stop().await), ["GET", "EVALSHA", "ECHO", "EVALSHA"]);
}

/// It is known to be gone; if it is not any more, the question who leads says so.
#[tokio::test]
async fn after_an_invalidation_nobody_looks_for_what_is_gone() {
    let server = RedisServer::start();
    let (guard, other) = (warm(&server).await, warm(&server).await);
    guard.invalidate("warm-up").await.expect("acknowledged");
    let monitor = Monitor::start(&server).await;
    guard.fetch("warm-up", async || Ok::<_, Down>(1)).await.expect("an answer");
    guard.shutdown().await;
    assert_eq!(guard.fetch("warm-up", never::<i32>).await.expect("a hit"), 1);
    assert_eq!(names(&monitor.stop().await), ["EVALSHA", "EVALSHA", "GET"]);

    guard.invalidate("warm-up").await.expect("acknowledged");
    other.fetch("warm-up", async || Ok::<_, Down>(2)).await.expect("an answer");
    other.shutdown().await;
    let monitor = Monitor::start(&server).await;
    assert_eq!(guard.fetch("warm-up", never::<i32>).await.expect("a hit"), 2);
    assert_eq!(guard.fetch("warm-up", never::<i32>).await.expect("a hit"), 2);
    assert_eq!(names(&monitor.stop().await), ["EVALSHA", "GET"]);
}

#[tokio::test]
async fn a_failure_and_a_private_answer_cost_no_more() {
    let server = RedisServer::start();
    let guard = warm(&server).await;
    let monitor = Monitor::start(&server).await;
    let error = guard.fetch("failure", async || Err::<i32, _>(Down)).await.expect_err("down");
    assert_eq!(error.kind(), ErrorKind::Origin);
    guard.shutdown().await;
    assert_eq!(names(&monitor.stop().await), ["GET", "EVALSHA", "EVALSHA"]);
}

/// While one process computes for long, another one that waits hardly asks: it will be woken.
#[tokio::test]
async fn a_waiting_process_asks_three_times() {
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
    leader.shutdown().await;
    let commands = monitor.stop().await;
    assert_eq!(commands.len(), 3 + 3, "{commands:#?}");
}

/// How a page is answered that varies by language, and what that costs.
async fn page(server: &RedisServer, guard: &StampedeGuard, language: &str) -> (CacheVerdict, Vec<String>) {
    let monitor = Monitor::start(server).await;
    let site = service_fn(async |_: Request<Body>| {
        let response = Response::builder().header("vary", "accept-language").header("cache-control", "max-age=60");
        Ok::<_, Infallible>(response.body(Body::from("page")).expect("a response"))
    });
    let request = Request::get("http://site.example/page").header("accept-language", language);
    let request = request.body(Body::empty()).expect("a request");
    let response = guard.layer(site).oneshot(request).await.expect("it cannot fail");
    let verdict = *response.extensions().get().expect("the guard said how");
    axum::body::to_bytes(Body::new(response.into_body()), usize::MAX).await.expect("a body");
    guard.shutdown().await;
    (verdict, names(&monitor.stop().await).into_iter().map(str::to_owned).collect())
}

/// The index tells where the variant is: once a process knows it, it asks for both at once, and a miss costs what any
/// other does. Seen to fail with the index not remembered.
#[tokio::test]
async fn a_hit_of_a_variant_is_one_command_once_the_process_has_seen_its_index() {
    let server = RedisServer::start();
    let (one, two) = (warm(&server).await, warm(&server).await);
    let miss = |read| [read, "EVALSHA", "EVALSHA"].map(str::to_owned).to_vec();
    let hit = |reads: &[&str]| reads.iter().map(|read| (*read).to_owned()).collect::<Vec<_>>();
    for (guard, language, verdict, commands) in [
        (&one, "de", CacheVerdict::Filled, miss("GET")),
        (&one, "de", CacheVerdict::Hit, hit(&["MGET"])),
        (&one, "en", CacheVerdict::Filled, miss("MGET")),
        (&two, "de", CacheVerdict::Hit, hit(&["GET", "GET"])),
        (&two, "en", CacheVerdict::Hit, hit(&["MGET"])),
        (&two, "fr", CacheVerdict::Filled, miss("MGET")),
    ] {
        assert_eq!(page(&server, guard, language).await, (verdict, commands), "{language}");
    }
}
