//! What the counters and histograms of the feature `metrics` count.

use crate::{
    recorder::Metrics,
    support::{Down, MS, Origin, SECOND},
};
use axum::{Router, body::Body, extract::Request, routing::get};
use stampede_guard::{
    FetchOutcome, Key, Policy, StampedeGuard,
    testing::{FakeRedis, Fault, Operation},
};
use std::{convert::Infallible, future::pending};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn};

async fn number() -> Result<u64, Infallible> {
    Ok(1)
}

#[tokio::test(start_paused = true)]
async fn requests_are_counted_by_front_end_and_status() {
    let metrics = Metrics::record();
    let guard = StampedeGuard::in_memory().namespace("shop").named("reports");
    for _ in 0..3 {
        guard.fetch("k", number).await.expect("an answer");
        guard.drain().await;
    }
    let fetched = |status| {
        let labels = [("front_end", "fetch"), ("name", "reports"), ("namespace", "shop"), ("status", status)];
        metrics.get("requests_total", &labels)
    };
    assert_eq!((fetched("miss"), fetched("hit")), (1.0, 2.0), "{}", metrics.text());

    let keyed = guard.keyed(|key: &u64| Some(Key::new(*key))).layer(service_fn(async |_: u64| number().await));
    keyed.oneshot(5).await.expect("an answer");
    assert_eq!(metrics.get("requests_total", &[("front_end", "keyed"), ("status", "miss")]), 1.0);

    let app = Router::new().route("/", get(async || "page")).layer(guard.clone());
    for _ in 0..2 {
        let answer = app.clone().oneshot(Request::get("http://a.test/").body(Body::empty()).expect("a request"));
        axum::body::to_bytes(answer.await.expect("infallible").into_body(), 100).await.expect("a body");
        guard.drain().await;
    }
    assert_eq!(metrics.get("requests_total", &[("front_end", "http"), ("status", "hit")]), 1.0);
    assert_eq!(metrics.get("requests_total", &[]), 6.0);
    assert_eq!(metrics.get("saved_calls_total", &[]), 3.0);
    assert_eq!(metrics.get("fetch_seconds_count", &[]), 3.0);
}

/// Seen to fail (nothing is counted) when a handle was kept that had been resolved without a recorder.
#[tokio::test]
async fn recorder_that_is_installed_late_is_used() {
    let guard = StampedeGuard::in_memory();
    guard.fetch("k", number).await.expect("an answer");
    guard.drain().await;
    guard.fetch("k", number).await.expect("a hit");
    let metrics = Metrics::record();
    guard.fetch("k", number).await.expect("a hit");
    assert_eq!(metrics.get("requests_total", &[("status", "hit")]), 1.0);
}

/// Nothing was shown before the first request, and no breaker before one had opened.
#[tokio::test]
async fn first_scrape_has_all_metrics_of_guard_and_named_clones() {
    let metrics = Metrics::record();
    let guard = StampedeGuard::in_memory().namespace("shop");
    let (_reports, _users) = (guard.clone().named("reports"), guard.cache::<u64>("user"));
    for name in ["default", "reports", "user"] {
        let names = format!("namespace=\"shop\",name=\"{name}\"");
        for series in [
            format!("requests_total{{{names},front_end=\"http\",status=\"hit\"}} 0"),
            format!("saved_calls_total{{{names}}} 0"),
            format!("leases_lost_total{{{names}}} 0"),
            format!("overloaded_total{{{names}}} 0"),
            format!("failures_total{{{names},kind=\"codec\"}} 0"),
            format!("store_errors_total{{{names},operation=\"get\"}} 0"),
            format!("uncached_total{{{names},reason=\"private\"}} 0"),
            format!("in_flight{{{names}}} 0"),
            format!("fetch_seconds_count{{{names}}} 0"),
            format!("store_seconds_count{{{names},operation=\"fill\"}} 0"),
        ] {
            assert!(
                metrics.text().contains(&format!("stampede_guard_{series}\n")),
                "no {series} in\n{}",
                metrics.text()
            );
        }
    }
    for gauge in ["breaker_open", "pending_invalidations", "near_cache_bytes"] {
        assert!(metrics.text().contains(&format!("stampede_guard_{gauge} 0\n")), "{gauge}: {}", metrics.text());
    }
    assert!(metrics.text().contains("# HELP stampede_guard_breaker_open Open circuit breakers of the process"));
    assert!(!metrics.text().contains("namespace=\"sg\""), "no name of a guard that was still being built");
}

#[tokio::test]
async fn views_and_clones_of_one_name_share_their_metrics() {
    let metrics = Metrics::record();
    let guard = StampedeGuard::in_memory();
    for _ in 0..3 {
        guard.cache::<u64>("user").fetch(1, number).await.expect("an answer");
        guard.drain().await;
    }
    let other = guard.clone().namespace("other").cache::<u64>("user").fetch(1, number).await;
    assert_eq!(other.expect("an answer"), 1);
    let requests = |namespace| metrics.get("requests_total", &[("namespace", namespace), ("name", "user")]);
    assert_eq!((requests("sg"), requests("other")), (3.0, 1.0), "{}", metrics.text());
}

/// Seen to fail with 28 failures when each waiter counted the failure that it got.
#[tokio::test(start_paused = true)]
async fn failed_fetch_is_counted_once_however_many_wait() {
    let metrics = Metrics::record();
    let guard = StampedeGuard::in_memory().fetch_timeout(SECOND);
    let down = async || {
        sleep(SECOND / 2).await;
        Err::<u64, _>(Down)
    };
    let slow = async || pending::<Result<u64, Down>>().await;
    let panicking = async || {
        sleep(MS).await;
        panic!("a bug of the application")
    };
    let all = (0..10).map(async |_| {
        tokio::join!(
            guard.fetch("down", down),
            guard.fetch("slow", slow),
            guard.fetch::<u64, Down, _, _>("panicking", panicking),
        )
    });
    for (down, slow, panicking) in futures_util::future::join_all(all).await {
        assert!(down.is_err() && slow.is_err() && panicking.is_err());
    }
    let failures = ["origin", "timed_out", "panicked"].map(|kind| metrics.get("failures_total", &[("kind", kind)]));
    assert_eq!(failures, [1.0; 3], "{}", metrics.text());
    assert_eq!(metrics.get("wait_seconds_count", &[]), 27.0, "nine waiters of each");
    assert_eq!(metrics.get("fetch_seconds_count", &[]), 3.0);
    let waited = metrics.get("wait_seconds_sum", &[]);
    assert!((13.4..13.7).contains(&waited), "9 times 0.5 s, 1 s and 1 ms: {waited}");
}

/// Two requests are rejected: one because of `max_waiters`, the other one because the fetch that it waits for fails.
#[tokio::test(start_paused = true)]
async fn overload_is_counted_without_the_errors_of_fetches() {
    let (metrics, guard) = (Metrics::record(), StampedeGuard::in_memory().max_waiters(1));
    let fails = || {
        guard.fetch("k", async || {
            sleep(SECOND).await;
            Err::<u64, _>(Down)
        })
    };
    let (first, second, third) = tokio::join!(fails(), fails(), fails());
    assert!([first, second].iter().all(|answer| answer.as_ref().is_err_and(|error| !error.is_overloaded())));
    assert!(third.is_err_and(|error| error.is_overloaded()));
    assert_eq!(metrics.get("requests_total", &[("status", "rejected")]), 2.0, "{}", metrics.text());
    assert_eq!(metrics.get("overloaded_total", &[]), 1.0, "{}", metrics.text());
}

#[tokio::test(start_paused = true)]
async fn server_error_is_counted_as_a_failure() {
    let metrics = Metrics::record();
    let failing = get(async || http::StatusCode::SERVICE_UNAVAILABLE);
    let app = Router::new().route("/", failing).layer(StampedeGuard::in_memory());
    let request = Request::get("http://a.test/").body(Body::empty()).expect("a request");
    assert_eq!(app.oneshot(request).await.expect("infallible").status(), 503);
    assert_eq!(metrics.get("failures_total", &[("kind", "server_error")]), 1.0);
    assert_eq!(metrics.get("uncached_total", &[("reason", "origin-failure")]), 1.0, "{}", metrics.text());
}

#[tokio::test(start_paused = true)]
async fn store_operations_are_timed_and_their_errors_counted() {
    let metrics = Metrics::record();
    let node = FakeRedis::new().node();
    let guard = node.guard().policy(Policy::fresh_for(SECOND)).store_timeout(100 * MS);
    node.once(Operation::Get, Fault::ReplyDelayed(20 * MS));
    guard.fetch("k", number).await.expect("an answer");
    guard.drain().await;
    let seconds = |operation| metrics.get("store_seconds_sum", &[("operation", operation)]);
    assert!((0.019..0.022).contains(&seconds("get")), "{}", metrics.text());
    for operation in ["get", "get_or_lease", "fill"] {
        assert_eq!(metrics.get("store_seconds_count", &[("operation", operation)]), 1.0, "{operation}");
    }
    node.always(Operation::Get, Fault::Hangs);
    guard.fetch("other", number).await.expect("an answer");
    assert_eq!(metrics.get("store_errors_total", &[("operation", "get")]), 1.0);
    assert!((0.119..0.122).contains(&seconds("get")), "{}", metrics.text());
}

#[tokio::test(start_paused = true)]
async fn lost_lease_is_counted() {
    let metrics = Metrics::record();
    let server = FakeRedis::new();
    let (guard, origin) = (server.node().guard(), Origin::gated());
    let call = origin.clone();
    let fetched = guard.fetch("k", async move || Ok::<_, Infallible>(call.call().await));
    let lose = async {
        origin.arrived(1).await;
        server.flush();
        sleep(4 * SECOND).await;
        origin.open();
    };
    let (answer, ()) = tokio::join!(fetched, lose);
    answer.expect("an answer");
    assert_eq!(metrics.get("leases_lost_total", &[]), 1.0);
}

/// Seen to fail with four saved calls when each stale answer was one.
#[tokio::test(start_paused = true)]
async fn stale_answer_of_a_request_that_fetches_saves_no_call() {
    let metrics = Metrics::record();
    let policy = Policy::fresh_for(SECOND).jitter(0.0);
    let guard = StampedeGuard::in_memory().track_hot_keys(10);
    let failing = guard.clone().policy(policy.stale_if_error(60 * SECOND));
    let refreshing = guard.policy(policy.stale_while_revalidate(60 * SECOND));
    failing.fetch("failing", number).await.expect("an answer");
    refreshing.fetch("refreshing", number).await.expect("an answer");
    sleep(2 * SECOND).await;
    assert_eq!(failing.fetch("failing", async || Err::<u64, _>(Down)).await.expect("the stale value"), 1);
    let origin = Origin::gated();
    for _ in 0..3 {
        let origin = origin.clone();
        let stale = refreshing.fetch("refreshing", async move || Ok::<_, Infallible>(origin.call().await as u64));
        assert_eq!(stale.await.expect("the stale value"), 1);
    }
    assert_eq!(metrics.get("requests_total", &[("status", "stale")]), 4.0);
    assert_eq!(metrics.get("saved_calls_total", &[]), 2.0, "{}", metrics.text());
    let saved: Vec<_> = failing.stats().hot_keys.iter().map(|key| (key.key.clone(), key.saved_calls)).collect();
    assert_eq!(saved, [("refreshing".to_owned(), 2), ("failing".to_owned(), 0)]);
}

/// Seen to fail with no failure.
#[tokio::test]
async fn panic_of_a_fetch_for_one_caller_is_counted() {
    let metrics = Metrics::record();
    let guard = StampedeGuard::in_memory();
    let private = async |_| Ok::<_, Down>(FetchOutcome::new(1_u64).private());
    guard.cache("number").entry("k").fetch_with(private).await.expect("leads");
    guard.drain().await;
    let panicking = tokio::spawn(async move {
        guard.fetch::<u64, Down, _, _>("number:k", async || panic!("a bug of the application")).await
    });
    assert!(panicking.await.expect_err("the panic reaches the caller").is_panic());
    assert_eq!(metrics.get("failures_total", &[("kind", "panicked")]), 1.0, "{}", metrics.text());
}
