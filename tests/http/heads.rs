//! HEAD requests: answered from a stored GET response, which they do not change.

use crate::{
    kit::{Answer, ask, at_rest, get, on_each_store, request, site, waiting},
    support::Origin,
};
use axum::{
    Router,
    extract::Request,
    http::{Method, StatusCode},
};
use futures_util::future::BoxFuture;
use stampede_guard::{CacheStatus, StampedeGuard};

fn head(fields: &[(&str, &str)]) -> Request {
    request(Method::HEAD, "/page", fields)
}

/// Sends a HEAD request that the origin answers, whatever is stored.
fn validating(app: &Router) -> BoxFuture<'static, Answer> {
    ask(app, head(&[("cache-control", "no-cache")]))
}

#[tokio::test]
async fn a_head_is_answered_from_the_get_entry_without_its_body() {
    for guard in on_each_store("head-hit") {
        let origin = Origin::new();
        let app = site(&origin, |_, _| ([("etag", "\"a\"")], "0123456789")).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        let hit = ask(&app, head(&[])).await;
        assert_eq!((hit.status, hit.text(), hit.cache_status()), (200, "", CacheStatus::Hit));
        assert_eq!((hit.header("content-length"), hit.header("etag")), ("10", "\"a\""));
        assert_eq!(ask(&app, head(&[("if-none-match", "\"a\"")])).await.status, 304);
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test]
async fn a_herd_of_heads_costs_one_head_at_the_origin() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, _| [("x-method", request.method().to_string())]).layer(guard.clone());
    let asked = waiting(&app, 20, |_| head(&[])).await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.header("x-method") == "HEAD"));
    at_rest(&guard).await;
    assert_eq!(ask(&app, head(&[])).await.cache_status(), CacheStatus::Hit);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn a_head_changes_no_stored_get() {
    for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK] {
        for guard in on_each_store(&format!("head-leaves-{}", status.as_u16())) {
            let origin = Origin::new();
            let app = site(&origin, move |request, _| match *request.method() {
                Method::HEAD => (status, [("etag", "\"b\"".to_owned())], ""),
                _ => (StatusCode::OK, [("etag", "\"a\"".to_owned())], "page"),
            });
            let app = app.layer(guard.clone());
            ask(&app, get("/page")).await;
            at_rest(&guard).await;
            assert_eq!(validating(&app).await.status, status);
            at_rest(&guard).await;
            let hit = ask(&app, get("/page")).await;
            assert_eq!((hit.text(), hit.header("etag"), hit.cache_status()), ("page", "\"a\"", CacheStatus::Hit));
        }
    }
}
