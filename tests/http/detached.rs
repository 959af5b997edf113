//! Handlers whose clients have left: `max_detached`.

use crate::{
    kit::{ask, at_rest, get, is_pending, request, site, taps},
    support::{Origin, herd},
};
use axum::{
    Router,
    http::{Method, StatusCode},
    response::Response,
    routing::any,
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::time::Duration;
use tower::{Layer, ServiceExt, limit::ConcurrencyLimitLayer};

/// A limit above the guard sees no fetch whose client has left. Seen to fail with 500 handlers at once.
#[tokio::test(start_paused = true)]
async fn clients_that_leave_run_at_most_74_handlers_at_once() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let limited = ConcurrencyLimitLayer::new(10).layer(site(&origin, |_, _| "page").layer(guard.clone()));
    herd(10, |i| {
        let limited = limited.clone();
        async move {
            for n in 0..50 {
                let answer = limited.clone().oneshot(get(&format!("/{i}/{n}")));
                tokio::time::timeout(Duration::from_millis(1), answer).await.expect_err("the gate is closed");
            }
        }
    })
    .await;
    assert!((64..=74).contains(&origin.peak()), "{} handlers at once", origin.peak());
    assert_eq!(origin.calls(), 500);
    origin.open();
    at_rest(&guard).await;
    assert_eq!(guard.stats().fetches_dropped, 500 - 64);
}

/// The limit is about handlers. Seen to fail when the limit applies until the body is stored.
#[tokio::test(start_paused = true)]
async fn body_is_collected_after_its_client_has_left() {
    let guard = StampedeGuard::in_memory().max_detached(0).policy(Policy::fresh_for(Duration::from_secs(600)));
    let (mut taps, bodies) = taps(1, Some(4));
    let app = Router::new().route("/{*path}", any(async move || Response::new(bodies()))).layer(guard.clone());
    let response = app.clone().oneshot(get("/page")).await.expect("it cannot fail");
    assert_eq!(response.status(), StatusCode::OK);
    drop(response);
    tokio::time::sleep(Duration::from_millis(1)).await; // each task that can run has run
    let tap = taps.remove(0);
    tap.send("page");
    drop(tap);
    at_rest(&guard).await;
    let answer = ask(&app, get("/page")).await;
    assert_eq!((answer.text(), answer.cache_status()), ("page", CacheStatus::Hit));
}

/// A `HEAD` request is led like a `GET`, and its fetch ends with its client too.
#[tokio::test]
async fn handler_ends_with_its_last_client_at_zero() {
    let (guard, origin) = (StampedeGuard::in_memory().max_detached(0), Origin::gated());
    let app = site(&origin, |_, _| "page").layer(guard.clone());
    for (n, method) in (1..).zip([Method::GET, Method::HEAD]) {
        let mut client = ask(&app, request(method, "/page", &[]));
        assert!(is_pending(&mut client).await);
        origin.arrived(n).await;
        drop(client);
        at_rest(&guard).await;
        assert_eq!(origin.running(), 0);
    }
    assert_eq!(guard.stats().fetches_dropped, 2);
}
