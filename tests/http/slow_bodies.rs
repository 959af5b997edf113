//! Bodies that outlast the fetch timeout, and bodies that may never end.

use crate::{
    bodies::{breaks_off, chunk, head, streaming},
    kit::{Answer, Tap, ask, at_rest, get, is_pending, site, taps},
    support::{Origin, eventually},
};
use axum::{
    Router,
    body::{Body, Bytes},
    http::{Response, StatusCode},
};
use http_body_util::BodyExt;
use stampede_guard::{CacheStatus, StampedeGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A response with a body of 8 bytes, of which `some` was sent before the fetch timeout and nothing since.
struct Slow {
    guard: StampedeGuard,
    app: Router,
    origin: Origin,
    taps: Vec<Tap>,
    leader: Response<Body>,
    joined: Response<Body>,
}

impl Slow {
    async fn new() -> Self {
        Self::with_status(StatusCode::OK).await
    }

    async fn with_status(status: StatusCode) -> Self {
        let ((taps, bodies), origin) = (taps(2, Some(8)), Origin::new());
        let guard = StampedeGuard::in_memory().fetch_timeout(FETCH).max_payload(1 << 10);
        let respond = move |_: &_, _| (status, [("cache-control", "max-age=60")], bodies());
        let app = site(&origin, respond).layer(guard.clone());
        let (mut leader, mut joined) = tokio::join!(head(&app, "/page"), head(&app, "/page"));
        taps[0].send("some");
        assert_eq!((chunk(&mut leader).await, chunk(&mut joined).await), ("some".into(), "some".into()));
        sleep(FETCH + Duration::from_millis(10)).await;
        Self { guard, app, origin, taps, leader, joined }
    }

    /// Sends the rest of the body and ends it.
    fn complete(&mut self) {
        self.taps.remove(0).send("more");
    }
}

async fn rest(response: Response<Body>) -> Bytes {
    response.into_body().collect().await.expect("a whole body").to_bytes()
}

/// Seen to fail: the joined reader got 4 of 8 bytes, and an error.
#[tokio::test(start_paused = true)]
async fn joined_reader_is_served_after_the_fetch_timeout() {
    let mut slow = Slow::new().await;
    slow.taps.remove(1).send("complete");
    let newer = ask(&slow.app, get("/page")).await;
    assert_eq!((newer.text(), newer.cache_status()), ("complete", CacheStatus::Miss), "the lease has ended");

    slow.complete();
    assert_eq!((rest(slow.leader).await, rest(slow.joined).await), ("more".into(), "more".into()));
    at_rest(&slow.guard).await;
    let hit = ask(&slow.app, get("/page")).await;
    assert_eq!((hit.text(), slow.origin.calls()), ("complete", 2), "the late body is not stored");
}

/// Seen to fail like [`joined_reader_is_served_after_the_fetch_timeout`]: such a body is not collected for the store.
#[tokio::test(start_paused = true)]
async fn joined_reader_of_a_server_error_is_served_as_well() {
    let mut slow = Slow::with_status(StatusCode::SERVICE_UNAVAILABLE).await;
    slow.complete();
    assert_eq!((rest(slow.leader).await, rest(slow.joined).await), ("more".into(), "more".into()));
    at_rest(&slow.guard).await;
}

#[tokio::test(start_paused = true)]
async fn joined_reader_is_served_without_the_leaders_client() {
    let mut slow = Slow::new().await;
    drop(slow.leader);
    assert!(slow.taps[0].is_read());
    slow.taps.remove(0).send("more");
    assert_eq!(rest(slow.joined).await, "more");
    at_rest(&slow.guard).await;
}

/// Fails if the collector goes on until the end of the body: its task is then still running.
#[tokio::test(start_paused = true)]
async fn rest_of_a_slow_body_is_handed_to_its_last_reader() {
    let mut slow = Slow::new().await;
    assert_eq!(slow.guard.drain().await, 1, "the task that serves the joined reader");
    drop(slow.joined);
    at_rest(&slow.guard).await;
    assert!(slow.taps[0].is_read());
    slow.taps.remove(0).send("more");
    assert_eq!(rest(slow.leader).await, "more");
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_dropped_with_its_last_reader() {
    for leader_leaves_first in [true, false] {
        let slow = Slow::new().await;
        let (first, last) = if leader_leaves_first { (slow.leader, slow.joined) } else { (slow.joined, slow.leader) };
        drop(first);
        assert!(slow.taps[0].is_read());
        drop(last);
        eventually("the origin sees that", async || !slow.taps[0].is_read()).await;
        at_rest(&slow.guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn slow_body_is_served_for_ten_fetch_timeouts() {
    let mut slow = Slow::new().await;
    sleep(FETCH * 9 - Duration::from_secs(1)).await;
    assert_eq!(slow.guard.drain().await, 1);
    sleep(Duration::from_secs(1)).await;
    assert!(breaks_off(slow.joined).await);
    at_rest(&slow.guard).await;
    slow.taps.remove(0).send("more");
    assert_eq!(rest(slow.leader).await, "more", "its client gets the rest from the origin");
}

/// The origin sends more than it has declared.
#[tokio::test(start_paused = true)]
async fn slow_body_over_the_cap_ends_for_joined_readers() {
    let mut slow = Slow::new().await;
    let large = Bytes::from(vec![b'x'; 2 << 10]);
    slow.taps[0].send(large.clone());
    slow.complete();
    assert_eq!(rest(slow.leader).await.len(), large.len() + 4);
    assert!(breaks_off(slow.joined).await);
    at_rest(&slow.guard).await;
}

#[test]
fn readers_of_a_slow_body_outlive_the_runtime() {
    let runtime = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().expect("a runtime")
    };
    let first = runtime();
    let mut slow = first.block_on(Slow::new());
    drop(first);
    runtime().block_on(async {
        assert!(breaks_off(slow.joined).await);
        slow.taps.remove(0).send("more");
        assert_eq!(rest(slow.leader).await, "more");
    });
}

/// A followed log or a long poll. Seen to fail: each further client waited for 5 s. A request that came before the head
/// still waits, because it is part of the herd.
#[tokio::test(start_paused = true)]
async fn request_after_the_head_of_an_endless_body_is_sent_alone() {
    for field in [("x-none", "-"), ("vary", "accept")] {
        let ((taps, bodies), origin) = (taps(2, None), Origin::new());
        let guard = StampedeGuard::in_memory();
        let respond = move |_: &_, _| ([("cache-control", "max-age=60"), field], bodies());
        let app = site(&origin, respond).layer(guard.clone());
        let (mut leader, mut early) = (head(&app, "/page"), head(&app, "/page"));
        assert!(is_pending(&mut leader).await && is_pending(&mut early).await);
        let leader = leader.await;

        let began = Instant::now();
        let mut late = head(&app, "/page").await;
        assert!(began.elapsed() <= Duration::from_millis(260), "{:?}", began.elapsed());
        assert_eq!((late.extensions().get(), origin.calls()), (Some(&CacheStatus::Bypass), 2));
        taps[1].send("line");
        assert_eq!(chunk(&mut late).await, "line");

        assert!(is_pending(&mut early).await);
        taps[0].send("page");
        drop(taps);
        let early = Answer::of(early.await).await;
        assert_eq!((early.text(), early.cache_status()), ("page", CacheStatus::Coalesced));
        assert_eq!(rest(leader).await, "page");
        at_rest(&guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn request_after_the_head_shares_a_body_that_ends_soon() {
    let guard = StampedeGuard::in_memory();
    let (app, origin, mut taps) = streaming(&guard, 1, None, "max-age=60");
    let leader = head(&app, "/page").await;
    let mut late = head(&app, "/page");
    assert!(is_pending(&mut late).await);
    taps.remove(0).send("page");
    let late = Answer::of(late.await).await;
    assert_eq!((late.text(), late.cache_status(), origin.calls()), ("page", CacheStatus::Coalesced, 1));
    assert_eq!(rest(leader).await, "page");
    at_rest(&guard).await;
}

const FETCH: Duration = Duration::from_secs(2);
