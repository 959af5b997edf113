//! What each request of a herd reports fills no log.

use crate::{
    collector::Collected,
    support::{Down, MS, Origin, RedisServer, SECOND},
};
use axum::{Router, body::Body, http::Request, routing::get};
use futures_util::future::join_all;
use stampede_guard::{
    StampedeGuard,
    testing::{FakeRedis, Fault, Operation::Invalidate},
};
use std::future::pending;
use tokio::time::{sleep, timeout};
use tower::ServiceExt;
use tracing::Level;

const REJECTED: &str = "the request was rejected";
const TIMED_OUT: &str = "the wait timeout passed";
const DROPPED: &str = "the fetch was dropped";
const PENDING: &str = "invalidations were not acknowledged";
const ACKNOWLEDGED: &str = "all invalidations that had failed are acknowledged";

/// Returns how many events say this, at level `WARN` and at level `DEBUG`.
fn said(events: &Collected, text: &str) -> (usize, usize) {
    (events.events(Level::WARN, text), events.events(Level::DEBUG, text))
}

fn is_about_invalidations(line: &&str) -> bool {
    line.starts_with("WARN") && (line.contains(PENDING) || line.contains(ACKNOWLEDGED))
}

/// Begins a fetch that hangs.
async fn hang(guard: &StampedeGuard) {
    let (guard, origin) = (guard.clone(), Origin::gated());
    let call = origin.clone();
    tokio::spawn(async move { guard.fetch("k", async move || Ok::<_, Down>(call.call().await)).await });
    origin.arrived(1).await;
}

async fn herd(guard: &StampedeGuard, size: usize) {
    let answers = join_all((0..size).map(|_| guard.fetch("k", pending::<Result<usize, Down>>))).await;
    assert!(answers.iter().all(Result::is_err));
}

/// Seen to fail with nine lines at level `WARN` for the first herd.
#[tokio::test(start_paused = true)]
async fn rejections_are_reported_once_a_minute_and_name() {
    let (events, guard) = (Collected::record(), StampedeGuard::in_memory().fetch_timeout(1000 * SECOND));
    hang(&guard).await;
    let guard = guard.max_waiters(1);
    for (before, reports) in [(Default::default(), 1), (30 * SECOND, 1), (31 * SECOND, 2)] {
        sleep(before).await;
        timeout(10 * MS, herd(&guard, 10)).await.expect_err("one of them waits");
        assert_eq!(said(&events, REJECTED).0, reports, "{}", events.text());
    }
    assert_eq!(said(&events, REJECTED), (2, 25));
    let other = guard.clone().named("other");
    timeout(10 * MS, herd(&other, 10)).await.expect_err("one of them waits");
    assert_eq!(said(&events, REJECTED), (3, 33));
    assert_eq!(guard.stats().overloaded, 36);
}

/// Seen to fail with 20 lines at level `WARN`: two for each request.
#[tokio::test(start_paused = true)]
async fn wait_timeouts_are_reported_once_a_minute() {
    let (events, guard) = (Collected::record(), StampedeGuard::in_memory().fetch_timeout(1000 * SECOND));
    hang(&guard).await;
    herd(&guard.wait_timeout(SECOND), 10).await;
    assert_eq!((said(&events, TIMED_OUT), said(&events, REJECTED)), ((1, 9), (0, 10)), "{}", events.text());
}

/// Seen to fail with three lines at level `WARN`.
#[tokio::test(start_paused = true)]
async fn dropped_fetches_are_reported_once_a_minute() {
    let (events, guard) = (Collected::record(), StampedeGuard::in_memory().max_detached(0));
    for key in ["a", "b", "c"] {
        timeout(SECOND, guard.fetch(key, pending::<Result<usize, Down>>)).await.expect_err("it hangs");
    }
    guard.drain().await;
    assert_eq!((said(&events, DROPPED), guard.stats().fetches_dropped), ((1, 2), 3), "{}", events.text());
}

/// Seen to fail (one line in 150 s) when only the beginning was reported.
#[tokio::test(start_paused = true)]
async fn failing_invalidations_are_reported_once_a_minute() {
    let (events, node) = (Collected::record(), FakeRedis::new().node());
    let guard = node.guard();
    let invalidate = async |key: u64| {
        guard.invalidate(key).await.expect_err("not acknowledged");
        sleep(2 * SECOND).await;
    };
    node.always(Invalidate, Fault::Fails);
    for key in 0..75 {
        invalidate(key).await;
    }
    let reported = || events.text().lines().filter(is_about_invalidations).map(str::to_owned).collect::<Vec<_>>();
    let lines = reported();
    assert_eq!(lines.len(), 3, "{lines:#?}");
    for (line, least) in lines.iter().zip([1, 29, 59]) {
        let counts = |n| line.contains(PENDING) && line.contains(&format!("invalidations={n} "));
        assert!((least..least + 4).any(counts), "{least}: {line}");
    }
    node.heal();
    sleep(2 * SECOND).await;
    assert!(reported()[3..].iter().all(|line| line.contains(ACKNOWLEDGED)), "{:#?}", reported());
    // Another failure within the minute has neither line.
    node.always(Invalidate, Fault::Fails);
    invalidate(99).await;
    node.heal();
    sleep(2 * SECOND).await;
    assert_eq!((guard.health().pending_invalidations, reported().len()), (0, 4), "{:#?}", reported());
}

/// Versions whose numbers differ by 16 begin with the same names.
///
/// Seen to fail with 30 lines.
#[tokio::test]
async fn layouts_that_meet_are_reported_once_a_type() {
    let (events, server) = (Collected::record(), RedisServer::start());
    let [old, new] = [0, 16].map(|version| StampedeGuard::new(server.client()).schema_version(version));
    for _ in 0..2 {
        for key in 0..5_u64 {
            for guard in [&old, &new] {
                guard.fetch(key, async || Ok::<_, Down>(1_u64)).await.expect("an answer");
                guard.fetch(format!("text {key}"), async || Ok::<_, Down>(String::new())).await.expect("an answer");
                guard.drain().await;
            }
        }
    }
    assert_eq!(events.events(Level::INFO, "entries of two layouts meet"), 2, "{}", events.text());
    assert_eq!((old.stats().misses, new.stats().misses, old.stats().other_layouts), (10, 10, 0));
    assert!(new.stats().other_layouts > 0);
}

#[tokio::test]
async fn type_without_fingerprint_is_named_once() {
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Unknown(u8);
    let (events, guard) = (Collected::record(), StampedeGuard::in_memory().fingerprint(false));
    for key in ["a", "b"] {
        guard.fetch(key, async || Ok::<_, Down>(Unknown(1))).await.expect("an answer");
    }
    assert_eq!(events.events(Level::DEBUG, "the structure of this type is not known"), 1, "{}", events.text());
}

/// Fetches that lead, and one for its own caller. Seen to fail (no line) without the report.
#[tokio::test(start_paused = true)]
async fn slow_fetch_is_reported_once() {
    let (events, guard) = (Collected::record(), StampedeGuard::in_memory().named("reports"));
    let said = || said(&events, "the fetch is slow");
    let load = |takes| {
        async move || {
            sleep(takes).await;
            Ok::<_, Down>(1)
        }
    };
    guard.fetch("quick", load(5 * SECOND)).await.expect("an answer");
    assert_eq!(said(), (0, 0));
    guard.fetch("slow", load(40 * SECOND)).await.expect("an answer");
    assert_eq!(said(), (1, 0));
    assert!(events.text().contains("name=reports running_for=5s"), "{}", events.text());
    guard.fetch("slow again", load(6 * SECOND)).await.expect("an answer");
    assert_eq!(said(), (1, 1), "once a minute");
    sleep(60 * SECOND).await;
    guard.clone().bypass(true).fetch("alone", load(30 * SECOND)).await.expect("an answer");
    assert_eq!(said(), (2, 1));
    guard.clone().fetch_timeout(SECOND).fetch("aborted", load(10 * SECOND)).await.expect_err("aborted");
    assert_eq!(said(), (2, 1));
}

/// Seen to fail (no line) without the report.
#[tokio::test]
async fn values_over_max_payload_are_reported_once_a_minute() {
    let (events, guard) = (Collected::record(), StampedeGuard::in_memory().named("reports").max_payload(100));
    for key in 0..3_u64 {
        guard.fetch(key, async || Ok::<_, Down>(vec!["x"; 101].concat())).await.expect("an answer");
    }
    assert_eq!(said(&events, "larger than `max_payload`"), (1, 2));
    assert!(events.text().contains("name=reports what=\"alloc::string::String\""), "{}", events.text());

    let layer = guard.named("pages");
    let page = get(async || "x".repeat(101)).layer(layer);
    let app = Router::new().route("/pages/{id}", page);
    for id in 0..3 {
        let request = Request::get(format!("http://example.test/pages/{id}")).body(Body::empty());
        let response = app.clone().oneshot(request.expect("a request")).await.expect("it cannot fail");
        assert_eq!(response.status(), 200);
    }
    assert_eq!(said(&events, "larger than `max_payload`"), (2, 4));
    assert!(events.text().contains("what=\"/pages/{id}\""), "{}", events.text());
}
