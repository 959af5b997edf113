//! Failures: shared with waiters, held off by a failure marker, replaced by a stale response, never stored.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, over_redis, site, taps, waiting},
    support::{CLOSED_PORT, Origin, eventually},
};
use axum::{
    body::Body,
    extract::Request,
    http::{Response, StatusCode},
};
use futures_util::future::join_all;
use http_body_util::BodyExt;
use stampede_guard::{CacheStatus, Policy, StampedeGuard, StoreFailure, http::Deadline};
use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time;
use tower::{Layer, ServiceExt, service_fn};

fn down(n: usize) -> (StatusCode, [(&'static str, String); 1], &'static str) {
    (StatusCode::SERVICE_UNAVAILABLE, [("x-call", n.to_string())], "down for a while")
}

/// Returns a good response on the first call, and a 503 afterwards.
fn good_then_down(n: usize) -> axum::response::Response {
    use axum::response::IntoResponse;
    if n == 1 { "good".into_response() } else { down(n).into_response() }
}

/// Returns a policy whose responses are stale at once, but may replace a failure for 60 s.
fn forgiving() -> Policy {
    Policy::fresh_for(Duration::ZERO).stale_if_error(Duration::from_secs(60))
}

/// Fails if `Storable::ServerError` is taken for `Storable::Private`: there are then 50 calls.
#[tokio::test]
async fn a_server_error_is_shared_with_waiters() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| down(n)).layer(guard.clone());
    let asked = waiting(&app, 50, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    for (i, answer) in answers.iter().enumerate() {
        let call = if i == 0 { "1" } else { "2" };
        assert_eq!((answer.status, answer.header("x-call"), answer.text()), (503, call, "down for a while"));
    }
    assert_eq!(answers[0].cache_status(), CacheStatus::Miss);
    assert_eq!(answers.iter().filter(|answer| answer.cache_status() == CacheStatus::Coalesced).count(), 48);
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
}

/// Error pages are often marked `no-store`, or set a cookie. Waiters do not get the page, but learn of the failure.
#[tokio::test(start_paused = true)]
async fn a_private_server_error_spares_the_origin_and_stays_private() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let respond = |_: &Request, n: usize| {
        let fields = [("cache-control", "no-store".to_owned()), ("set-cookie", format!("session={n}"))];
        (StatusCode::SERVICE_UNAVAILABLE, fields, "for the first one only")
    };
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert_eq!((answers[0].text(), answers[0].header("set-cookie")), ("for the first one only", "session=1"));
    let (led, waited): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.cache_status() == CacheStatus::Miss);
    assert_eq!((led.len(), led[1].header("set-cookie")), (2, "session=2"));
    for answer in waited {
        assert_eq!((answer.status, answer.text()), (503, ""));
        assert!(!answer.headers.contains_key("set-cookie"));
    }
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
    assert!(ask(&app, get("/page")).await.headers.contains_key("retry-after"), "a failure marker");
    assert_eq!(origin.calls(), 2);
}

#[tokio::test]
async fn waiters_get_a_server_error_of_unknown_length_without_body() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let (taps, bodies) = taps(2, None);
    let respond = move |_: &Request, _| (StatusCode::BAD_GATEWAY, [("x-why", "db"), ("content-type", "x/y")], bodies());
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 4, |_| get("/page")).await;
    origin.open();
    for tap in taps {
        tap.send("down");
    }
    let answers = asked.answers().await;
    let (led, waited): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.cache_status() == CacheStatus::Miss);
    assert!(led.iter().all(|led| (led.text(), led.header("content-type")) == ("down", "x/y")));
    for answer in &answers {
        assert_eq!((answer.status, answer.header("x-why")), (502, "db"));
    }
    assert!(waited.iter().all(|a| a.text().is_empty() && !a.headers.contains_key("content-type")));
    assert_eq!((led.len(), origin.calls()), (2, 2));
    at_rest(&guard).await;
}

/// Fails if there is no failure marker: each of these requests then calls the origin again. The failure of one request
/// blocks no other request.
#[tokio::test(start_paused = true)]
async fn a_failure_marker_blocks_requests_for_100_ms() {
    let (guard, origin) = (StampedeGuard::in_memory().failure_ttl(Duration::from_secs(2)), Origin::gated());
    let app = site(&origin, |_, n| down(n)).layer(guard.clone());
    origin.release(4);
    for _ in 0..2 {
        assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Miss);
        at_rest(&guard).await;
    }
    waiting(&app, 2, |_| get("/page")).await.answers().await;
    at_rest(&guard).await;
    for _ in 0..3 {
        let answer = ask(&app, get("/page")).await;
        assert_eq!((answer.status, answer.header("retry-after"), answer.text()), (503, "1", ""));
        assert_eq!((answer.cache_status(), answer.header("cache-control")), (CacheStatus::Rejected, "no-store"));
    }
    assert_eq!(origin.calls(), 4, "the origin is spared");

    time::advance(Duration::from_millis(101)).await;
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    for answer in &asked.answers().await[1..] {
        assert_eq!((answer.status, answer.header("x-call")), (503, "6"), "two requests try, and the others wait");
    }
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Rejected, "blocked again");
    assert_eq!(origin.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn without_a_failure_marker_each_request_calls_the_origin() {
    let (guard, origin) = (StampedeGuard::in_memory().failure_ttl(Duration::ZERO), Origin::new());
    let app = site(&origin, |_, n| down(n)).layer(guard.clone());
    for n in ["1", "2", "3"] {
        assert_eq!(ask(&app, get("/page")).await.header("x-call"), n);
        at_rest(&guard).await;
    }
}

#[tokio::test]
async fn a_failure_marker_holds_off_other_processes() {
    let guards = [over_redis("failure-marker"), over_redis("failure-marker")];
    let origin = Origin::new();
    let respond = |request: &Request, n| {
        assert!(!request.uri().path().contains("panic"), "planned by the test");
        down(n)
    };
    let [one, two] = guards.clone().map(|guard| site(&origin, respond).layer(guard));
    for path in ["/page", "/panic"] {
        // The block is short: on a busy machine it may have ended.
        eventually("the second process is blocked", async || {
            tokio::join!(ask(&one, get(path)), ask(&one, get(path)));
            at_rest(&guards[0]).await;
            let calls = origin.calls();
            let answer = ask(&two, get(path)).await;
            let is_blocked = origin.calls() == calls;
            if is_blocked {
                assert_eq!((answer.status, answer.header("retry-after")), (503, "1"), "{path}");
                assert_eq!(answer.cache_status(), CacheStatus::Rejected);
            }
            is_blocked
        })
        .await;
    }
    at_rest(&guards[1]).await;
}

#[tokio::test]
async fn another_process_retries_after_the_failure_marker() {
    let short = || over_redis("failure-marker-ends").failure_ttl(Duration::from_millis(30));
    let (guards, origin) = ([short(), short()], Origin::new());
    let respond = |_: &Request, n| if n == 1 { Err(down(n)) } else { Ok("up again") };
    let [one, two] = guards.clone().map(|guard| site(&origin, respond).layer(guard));
    assert_eq!(ask(&one, get("/page")).await.status, 503);
    eventually("the other process is let through", async || ask(&two, get("/page")).await.text() == "up again").await;
    assert_eq!(ask(&one, get("/page")).await.text(), "up again");
    assert_eq!(origin.calls(), 2);
    at_rest(&guards[0]).await;
    at_rest(&guards[1]).await;
}

/// Fails if `allows_stale_on_error` is always false: all callers then get the error.
#[tokio::test(start_paused = true)]
async fn a_stale_response_replaces_a_server_error() {
    let (guard, origin) = (StampedeGuard::in_memory().policy(forgiving()), Origin::gated());
    let app = site(&origin, |_, n| good_then_down(n)).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "good");
    at_rest(&guard).await;

    time::advance(Duration::from_secs(5)).await;
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    for answer in asked.answers().await {
        assert_eq!((answer.status, answer.text(), answer.cache_status()), (200, "good", CacheStatus::Stale));
        assert_eq!((answer.header("age"), answer.header("cache-status")), ("5", "stampede-guard; hit; ttl=-5"));
    }
    assert_eq!(origin.calls(), 3);
    at_rest(&guard).await;

    let held_off = ask(&app, get("/page")).await;
    assert_eq!((held_off.text(), held_off.cache_status()), ("good", CacheStatus::Stale), "under the marker too");
    time::advance(Duration::from_secs(60)).await;
    assert_eq!(ask(&app, get("/page")).await.status, 503, "the stale window has ended");
    at_rest(&guard).await;
}

#[tokio::test]
async fn a_stale_response_replaces_a_server_error_over_redis() {
    let guards = [over_redis("stale"), over_redis("stale")].map(|guard| guard.policy(forgiving()));
    let origin = Origin::new();
    let [one, two] = guards.clone().map(|guard| site(&origin, |_, n| good_then_down(n)).layer(guard));
    assert_eq!(ask(&one, get("/page")).await.text(), "good");
    at_rest(&guards[0]).await;
    for app in [&two, &one, &two] {
        let answer = ask(app, get("/page")).await;
        assert_eq!((answer.status, answer.text(), answer.cache_status()), (200, "good", CacheStatus::Stale));
    }
    assert_eq!(origin.calls(), 2, "the failure marker holds off the other requests");
    at_rest(&guards[1]).await;
}

/// RFC 9111 §4.2.4: `must-revalidate` and `s-maxage` forbid stale use.
#[tokio::test(start_paused = true)]
async fn a_response_that_forbids_stale_use_is_not_served_stale() {
    for control in ["max-age=1, must-revalidate", "s-maxage=1"] {
        let (guard, origin) = (StampedeGuard::in_memory().policy(forgiving()), Origin::new());
        let respond =
            move |_: &Request, n| if n == 1 { Ok(([("cache-control", control)], "good")) } else { Err(down(n)) };
        let app = site(&origin, respond).layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.status, 200);
        at_rest(&guard).await;
        time::advance(Duration::from_millis(1001)).await;
        assert_eq!(ask(&app, get("/page")).await.status, 503, "{control}");
        at_rest(&guard).await;
    }
}

/// An invalidation during the call takes the lease, and then the stale response must not be used. Seen to fail with a
/// broken body: the engine did not read a response to its end after the lease was lost.
#[tokio::test]
async fn a_server_error_whose_lease_was_lost_is_whole() {
    let guard = StampedeGuard::in_memory().policy(forgiving());
    let (origin, wrecked) = (Origin::gated(), guard.clone());
    let app = site(&origin, |_, n| good_then_down(n)).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "good");
    at_rest(&guard).await;

    let asked = waiting(&app, 2, |_| get("/page")).await;
    origin.arrived(2).await;
    wrecked.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("the store answers");
    origin.open();
    for answer in asked.answers().await {
        assert_eq!((answer.status, answer.text()), (503, "down for a while"));
    }
    at_rest(&guard).await;
}

/// Returns a service that counts its calls and fails after the first `good` ones.
fn failing(
    calls: &Arc<AtomicUsize>,
    good: usize,
) -> impl tower::Service<Request, Response = Response<Body>, Error = io::Error, Future: Send> + Clone + Send + 'static {
    let calls = calls.clone();
    service_fn(move |_: Request| {
        let n = calls.fetch_add(1, SeqCst);
        std::future::ready(if n < good { Ok(Response::new("good".into())) } else { Err(io::Error::other("no route")) })
    })
}

#[tokio::test]
async fn a_service_error_reaches_its_callers_and_waiters_get_a_502() {
    for guard in on_each_store("service-error") {
        let calls = Arc::default();
        let service = guard.layer(failing(&calls, 0));
        let answers = join_all((0..3).map(|_| service.clone().oneshot(get("/page")))).await;
        let (led, waited): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_err);
        assert!(led.into_iter().all(|led| led.expect_err("its own error").to_string() == "no route"));
        for waiter in waited {
            let waiter = Answer::of(waiter.expect("a response")).await;
            assert_eq!((waiter.status, waiter.cache_status(), waiter.text()), (502, CacheStatus::Rejected, ""));
        }
        assert_eq!(calls.load(SeqCst), 2);
        at_rest(&guard).await;
        eventually("the next request is blocked", async || {
            // Unless the block, which is short, has ended: then the service fails again.
            join_all((0..2).map(|_| service.clone().oneshot(get("/page")))).await;
            at_rest(&guard).await;
            let before = calls.load(SeqCst);
            let Ok(next) = service.clone().oneshot(get("/page")).await else { return false };
            let next = Answer::of(next).await;
            assert_eq!((next.status, next.header("retry-after")), (503, "1"));
            calls.load(SeqCst) == before
        })
        .await;
        at_rest(&guard).await;
    }
}

#[tokio::test]
async fn a_service_error_is_unchanged_for_bypassing_requests() {
    let service = StampedeGuard::in_memory().layer(failing(&Arc::default(), 0));
    let error = service.oneshot(get_with("/page", &[("cookie", "a=b")])).await.expect_err("its own error");
    assert_eq!(error.to_string(), "no route");
}

#[tokio::test]
async fn a_stale_response_replaces_a_service_error() {
    for guard in on_each_store("stale-service-error").map(|guard| guard.policy(forgiving())) {
        let service = guard.layer(failing(&Arc::default(), 1));
        for expected in [CacheStatus::Miss, CacheStatus::Stale, CacheStatus::Stale] {
            let answer = Answer::of(service.clone().oneshot(get("/page")).await.expect("no error")).await;
            assert_eq!((answer.status, answer.text(), answer.cache_status()), (200, "good", expected));
            at_rest(&guard).await;
        }
    }
}

/// Fails without `catch_unwind` in the leader: each request then calls the origin and panics in turn.
#[tokio::test]
async fn a_panic_is_a_500_for_leader_and_waiters() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let respond = |_: &Request, n: usize| assert_eq!(n, 0, "planned by the test");
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert!(answers.iter().all(|answer| answer.status == 500 && answer.cache_status() == CacheStatus::Rejected));
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
}

/// A waiter stays for two fetches if its wait timeout permits that.
#[tokio::test(start_paused = true)]
async fn a_fetch_timeout_is_a_504_for_leader_and_waiters() {
    let guard = StampedeGuard::in_memory().fetch_timeout(Duration::from_secs(3)).wait_timeout(Duration::from_secs(9));
    let origin = Origin::gated();
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let answers = waiting(&app, 20, |_| get("/page")).await.answers().await;
    assert!(answers.iter().all(|answer| answer.status == 504 && answer.cache_status() == CacheStatus::Rejected));
    assert_eq!((origin.calls(), origin.running()), (2, 0), "they were aborted");
    at_rest(&guard).await;
}

#[tokio::test]
async fn a_server_errors_body_breaks_off_for_waiters_too() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let (taps, bodies) = taps(2, Some(10));
    let app = site(&origin, move |_, _| (StatusCode::BAD_GATEWAY, bodies())).layer(guard.clone());
    let answers = join_all((0..3).map(|_| app.clone().oneshot(get("/page")))).await;
    for tap in taps {
        tap.send("12345");
        tap.break_off();
    }
    for response in answers {
        let body: Result<_, _> = response.expect("a response").into_body().collect().await;
        body.expect_err("it is not whole");
    }
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
}

/// A rejection is a response that says when to retry.
#[tokio::test]
async fn a_rejection_is_a_503_with_retry_after() {
    let redis = redis::Client::open(format!("redis://127.0.0.1:{CLOSED_PORT}")).expect("a client");
    let (closed, origin) = (StampedeGuard::new(redis).on_store_failure(StoreFailure::FailClosed), Origin::new());
    let app = site(&origin, |_, _| "page").layer(closed);
    let refused = ask(&app, get("/page")).await;
    assert_eq!(
        (refused.status, refused.header("retry-after"), refused.cache_status()),
        (503, "1", CacheStatus::Rejected)
    );
    assert_eq!(refused.header("cache-control"), "no-store");
    assert_eq!(origin.calls(), 0);

    let (guard, origin) = (StampedeGuard::in_memory().max_waiters(1), Origin::gated());
    let app = site(&origin, |_, _| "page").layer(guard);
    let asked = waiting(&app, 2, |_| get("/page")).await;
    let refused = ask(&app, get("/page")).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.status == 200));
}

/// An outer layer knows the time limit of the client.
#[tokio::test(start_paused = true)]
async fn a_request_is_answered_by_its_deadline() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, _| "page").layer(guard);
    let asked = waiting(&app, 1, |_| get("/page")).await;
    let mut hurried = get("/page");
    let deadline = (time::Instant::now() + Duration::from_secs(1)).into_std();
    hurried.extensions_mut().insert(Deadline(deadline));
    assert_eq!(ask(&app, hurried).await.status, 503);
    assert_eq!(time::Instant::now().into_std(), deadline);
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.status == 200));
}

/// Seen to fail (the response does not come) when a request for one client has no limit.
#[tokio::test(start_paused = true)]
async fn handler_for_one_client_ends_with_its_timeout() {
    let fetch_timeout = Duration::from_secs(1);
    let guard = StampedeGuard::in_memory().fetch_timeout(fetch_timeout);
    let origin = Origin::gated();
    let page = site(&origin, |_, _| [("cache-control", "private")]);
    let app = page.clone().layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.status, 200);
    at_rest(&guard).await;
    for app in [app, page.layer(guard.bypass(true))] {
        let began = time::Instant::now();
        let answer = ask(&app, get("/page")).await;
        assert_eq!(
            (answer.status, answer.cache_status(), began.elapsed()),
            (504, CacheStatus::Rejected, fetch_timeout)
        );
        let mut hurried = get("/page");
        hurried.extensions_mut().insert(Deadline(began.into_std() + fetch_timeout + Duration::from_millis(300)));
        let answer = ask(&app, hurried).await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, "1"));
        assert_eq!(began.elapsed(), fetch_timeout + Duration::from_millis(300));
    }
    assert_eq!((origin.calls(), origin.running()), (5, 0));
}
