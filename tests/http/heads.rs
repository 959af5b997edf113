//! HEAD requests: answered from a stored GET response, and used to freshen it (RFC 9111 §4.3.5).

use crate::{
    kit::{Answer, ask, at_rest, get, on_each_store, request, site, waiting},
    support::Origin,
    vary::field,
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

/// Fails if the origin's response to a HEAD is ignored: the GET is then a hit with the fields of the first call.
#[tokio::test]
async fn a_head_with_the_same_validator_freshens_the_get_entry() {
    for guard in on_each_store("head-freshens") {
        let origin = Origin::new();
        let app =
            site(&origin, |_, n| ([("etag", "\"a\"".to_owned()), ("x-call", n.to_string())], format!("page {n}")));
        let app = app.layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        assert_eq!(validating(&app).await.header("x-call"), "2");
        at_rest(&guard).await;
        let hit = ask(&app, get("/page")).await;
        assert_eq!((hit.text(), hit.header("x-call"), hit.cache_status()), ("page 1", "2", CacheStatus::Hit));
        assert_eq!(
            (origin.calls(), hit.header("content-length")),
            (2, ask(&app, get("/page")).await.header("content-length"))
        );
    }
}

#[tokio::test]
async fn a_head_that_reports_a_change_drops_the_get_entry() {
    for (field, values) in [
        ("etag", ["\"a\"", "\"b\""]),
        ("last-modified", ["Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 08:49:38 GMT"]),
        ("content-length", ["1", "2"]),
    ] {
        for guard in on_each_store(&format!("head-drops-{field}")) {
            let origin = Origin::new();
            let app = site(&origin, move |_, n| {
                let value = values[usize::from(n > 1)];
                let body = if field == "content-length" { "x".repeat(n.min(2)) } else { n.to_string() };
                ([(field, value)], body)
            });
            let app = app.layer(guard.clone());
            ask(&app, get("/page")).await;
            at_rest(&guard).await;
            validating(&app).await;
            at_rest(&guard).await;
            let next = ask(&app, get("/page")).await;
            assert_eq!((next.cache_status(), origin.calls()), (CacheStatus::Miss, 3), "{field}");
            at_rest(&guard).await;
        }
    }
}

/// A HEAD response without a validator changes nothing either, because it may be about any response.
#[tokio::test]
async fn a_head_that_fails_or_has_no_validator_changes_nothing() {
    for status in [StatusCode::NOT_FOUND, StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK] {
        for guard in on_each_store(&format!("head-leaves-{}", status.as_u16())) {
            let origin = Origin::new();
            let app = site(&origin, move |request, n| match *request.method() {
                Method::HEAD if status == StatusCode::OK => (status, [("x-call", n.to_string())], ""),
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

#[tokio::test]
async fn a_head_freshens_its_own_variant() {
    for guard in on_each_store("head-variant") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| {
            let etag = format!("\"{}\"", field(request, "accept-language"));
            [("etag", etag), ("vary", "accept-language".to_owned()), ("x-call", n.to_string())]
        });
        let app = app.layer(guard.clone());
        for language in ["de", "en"] {
            ask(&app, request(Method::GET, "/page", &[("accept-language", language)])).await;
            at_rest(&guard).await;
        }
        let asked = [("accept-language", "en"), ("cache-control", "no-cache")];
        assert_eq!(ask(&app, head(&asked)).await.header("x-call"), "3");
        at_rest(&guard).await;
        for (language, call) in [("de", "1"), ("en", "3")] {
            let hit = ask(&app, request(Method::GET, "/page", &[("accept-language", language)])).await;
            assert_eq!((hit.header("x-call"), hit.cache_status()), (call, CacheStatus::Hit));
        }
    }
}
