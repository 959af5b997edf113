//! Server errors with a freshness lifetime of their own are stored (RFC 9111 §3), unless a good response is of use.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, honouring, on_each_store, site},
    support::Origin,
};
use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::time::Duration;
use tokio::time;

/// Returns a site that is good for the first calls and fails later, with these values of `Cache-Control`.
fn failing(origin: &Origin, good: (usize, &'static str), bad: &'static str) -> Router {
    site(origin, move |_: &Request, n| -> Response {
        match n <= good.0 {
            true => ([("cache-control", good.1)], n.to_string()).into_response(),
            false => (StatusCode::SERVICE_UNAVAILABLE, [("cache-control", bad)], n.to_string()).into_response(),
        }
    })
}

fn seen(answer: &Answer) -> (u16, &str, CacheStatus) {
    (answer.status, answer.text(), answer.cache_status())
}

/// Seen to fail when no server error was stored: the second request was held off by a failure marker.
#[tokio::test]
async fn a_server_error_with_a_lifetime_is_a_hit() {
    for control in ["max-age=60", "s-maxage=60", "public, max-age=60"] {
        for guard in on_each_store(&format!("stored-error-{}", control.len())) {
            let origin = Origin::new();
            let app = failing(&origin, (0, ""), control).layer(guard.clone());
            assert_eq!(seen(&ask(&app, get("/page")).await), (503, "1", CacheStatus::Miss));
            at_rest(&guard).await;
            assert_eq!(seen(&ask(&app, get("/page")).await), (503, "1", CacheStatus::Hit), "{control}");
        }
    }
}

/// The windows of the policy are for good responses. Seen to fail when a stored error had them: it was served stale.
#[tokio::test(start_paused = true)]
async fn a_stored_server_error_ends_without_a_marker() {
    let policy =
        Policy::default().stale_while_revalidate(Duration::from_secs(60)).stale_if_error(Duration::from_secs(60));
    let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::new());
    let app = failing(&origin, (0, ""), "max-age=1").layer(guard.clone());
    for n in ["1", "2", "3"] {
        assert_eq!(seen(&ask(&app, get("/page")).await), (503, n, CacheStatus::Miss));
        at_rest(&guard).await;
        time::advance(Duration::from_secs(1)).await;
    }
}

/// One client reloads with a request that the origin does not like. Seen to fail when the error replaced the fresh page.
#[tokio::test]
async fn a_forced_reload_does_not_replace_a_fresh_page_by_an_error() {
    for guard in on_each_store("stored-error-reload") {
        let (guard, origin) = (honouring(guard), Origin::new());
        let app = failing(&origin, (1, "max-age=60"), "max-age=60").layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        ask(&app, get_with("/page", &[("cache-control", "no-cache")])).await;
        at_rest(&guard).await;
        assert_eq!(origin.calls(), 2);
        assert_eq!(seen(&ask(&app, get("/page")).await), (200, "1", CacheStatus::Hit));
    }
}

/// RFC 5861 §4. Seen to fail when the error was stored: the next answers were errors.
#[tokio::test(start_paused = true)]
async fn a_good_response_wins_in_its_stale_if_error_window() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = failing(&origin, (1, "max-age=1, stale-if-error=30"), "max-age=5").layer(guard.clone());
    ask(&app, get("/page")).await;
    at_rest(&guard).await;
    time::advance(Duration::from_secs(10)).await;
    for _ in 0..2 {
        assert_eq!(seen(&ask(&app, get("/page")).await), (200, "1", CacheStatus::Stale));
        at_rest(&guard).await;
    }
    time::advance(Duration::from_secs(30)).await;
    let error = ask(&app, get("/page")).await;
    assert_eq!((error.status, error.cache_status()), (503, CacheStatus::Miss), "the window is over");
    at_rest(&guard).await;
    assert_eq!(seen(&ask(&app, get("/page")).await), (503, error.text(), CacheStatus::Hit));
}

/// Seen to fail before: one reload with a field that the origin refuses gave all clients the 400 for a minute.
#[tokio::test]
async fn a_client_error_does_not_replace_a_fresh_page() {
    for guard in on_each_store("stored-client-error") {
        let (guard, origin) = (honouring(guard), Origin::new());
        let app = site(&origin, |request: &Request, n| {
            let status = if request.headers().contains_key("x-odd") { 400 } else { 200 };
            let status = StatusCode::from_u16(status).expect("a status");
            (status, [("cache-control", "max-age=60")], n.to_string())
        });
        let app = app.layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.text(), "1");
        at_rest(&guard).await;
        let reload = get_with("/page", &[("cache-control", "no-cache"), ("x-odd", "1")]);
        assert_eq!(ask(&app, reload).await.status, 400);
        at_rest(&guard).await;
        assert_eq!(seen(&ask(&app, get("/page")).await), (200, "1", CacheStatus::Hit));
    }
}

/// RFC 5861 §3. Seen to fail when only the window for errors kept the page.
#[tokio::test(start_paused = true)]
async fn a_server_error_does_not_replace_a_page_that_is_refreshed() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = failing(&origin, (1, "max-age=10, stale-while-revalidate=60"), "max-age=5").layer(guard.clone());
    for at in [0, 20, 21] {
        time::advance(Duration::from_secs(at)).await;
        assert_eq!(ask(&app, get("/page")).await.status, 200, "{at}");
        at_rest(&guard).await;
    }
}

/// One request reloads with a field that the origin answers with an error. Seen to fail for 404, 405, 410, 414 and 451: the
/// page was that error for all, for as long as a page.
#[tokio::test]
async fn no_error_replaces_a_fresh_page() {
    for code in [400, 403, 404, 405, 408, 410, 414, 429, 451, 500, 501, 503] {
        for control in ["", "max-age=60"] {
            let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
            let app = site(&origin, move |request: &Request, _| match request.headers().contains_key("x-odd") {
                true => (StatusCode::from_u16(code).expect("a status"), [("cache-control", control)]).into_response(),
                false => ([("cache-control", "max-age=60")], "page").into_response(),
            });
            let app = app.layer(guard.clone());
            assert_eq!(ask(&app, get("/page")).await.text(), "page");
            at_rest(&guard).await;
            for _ in 0..2 {
                ask(&app, get_with("/page", &[("cache-control", "no-cache"), ("x-odd", "1")])).await;
                at_rest(&guard).await;
            }
            assert_eq!(seen(&ask(&app, get("/page")).await), (200, "page", CacheStatus::Hit), "{code} {control}");
        }
    }
}

/// No request waits for it, so it is stored as RFC 9111 permits: another request is not asked.
#[tokio::test]
async fn an_error_that_nobody_waits_for_is_stored_by_its_status() {
    for (code, is_stored) in
        [(404, true), (405, true), (410, true), (414, true), (501, true), (400, false), (503, false)]
    {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, move |_, n| (StatusCode::from_u16(code).expect("a status"), n.to_string()));
        let app = app.layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        let (text, status) = if is_stored { ("1", CacheStatus::Hit) } else { ("2", CacheStatus::Miss) };
        assert_eq!(seen(&ask(&app, get("/page")).await), (code, text, status));
        at_rest(&guard).await;
    }
}
