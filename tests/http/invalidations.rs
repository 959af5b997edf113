//! Invalidations of unsafe requests when the store is unavailable, or the client has left (RFC 9111 §4.4).

use crate::{
    kit::{Answer, ask, at_rest, get, is_pending, request, site},
    support::Origin,
};
use axum::{Router, body::Body, http::Method, response::IntoResponse, routing::any};
use futures_util::FutureExt;
use stampede_guard::{
    CacheStatus, ErrorKind, Policy, StampedeGuard,
    testing::{FakeRedis, Fault, Gate, Node, Operation},
};
use std::time::Duration;
use tokio::time::Instant;
use tower::ServiceExt;

const MS: Duration = Duration::from_millis(1);

/// Returns a site that counts its `GET` requests, and the guard of the node in front of it. Other requests are answered
/// at once.
fn site_of(node: &Node, origin: &Origin) -> (Router, StampedeGuard) {
    let guard = node.guard().policy(Policy::fresh_for(Duration::from_secs(600)));
    let pages = site(origin, |_, n| format!("page {n}"));
    let changes = async || "changed".into_response();
    let app = Router::new().route("/{*path}", any(changes).get_service(pages)).layer(guard.clone());
    (app, guard)
}

/// Makes the store hang for reads and requests for a lease, and opens the circuit breaker.
async fn open_breaker(node: &Node, app: &Router, guard: &StampedeGuard) {
    node.always(Operation::Get, Fault::Hangs);
    node.always(Operation::GetOrLease, Fault::Hangs);
    ask(app, get("/other")).await;
    assert!(guard.health().breaker_open);
}

/// The response is ready when the request is first polled, so nothing was awaited. Seen to fail when the request waits
/// for the acknowledgement, and when only the task makes this process forget.
#[tokio::test(start_paused = true)]
async fn an_unsafe_request_awaits_no_store_while_breaker_is_open() {
    let (server, origin, held) = (FakeRedis::new(), Origin::new(), Gate::closed());
    let (node, elsewhere) = (server.node(), server.node());
    let (app, guard) = site_of(&node, &origin);
    assert_eq!(ask(&app, get("/page")).await.text(), "page 1");
    at_rest(&guard).await;
    open_breaker(&node, &app, &guard).await; // call 2
    assert_eq!(ask(&app, get("/page")).await.text(), "page 3", "kept by the outage cache");
    at_rest(&guard).await;
    node.always(Operation::Invalidate, Fault::Held(held.clone()));

    let post = app.clone().oneshot(request(Method::POST, "/page", &[])).now_or_never();
    let answer = Answer::of(post.expect("nothing is awaited").expect("it cannot fail")).await;
    let cache_status = "stampede-guard; fwd=method; fwd-status=200; detail=invalidation-pending";
    assert_eq!((answer.header("cache-status"), answer.cache_status()), (cache_status, CacheStatus::Bypass));
    assert_eq!(ask(&app, get("/page")).await.text(), "page 4", "this process has forgotten the page");
    let error = guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await;
    assert_eq!(error.expect_err("not acknowledged").kind(), ErrorKind::Store);

    held.open();
    node.heal();
    assert_eq!(guard.drain_within(Duration::from_secs(60)).await, 0);
    let (app, _) = site_of(&elsewhere, &origin);
    assert_eq!(ask(&app, get("/page")).await.text(), "page 5", "the entry is gone");
}

/// Seen to take 250 ms, the timeout of its own store call, when the request ignores the breaker that opens.
#[tokio::test(start_paused = true)]
async fn an_unsafe_request_stops_waiting_when_the_breaker_opens() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let (app, guard) = site_of(&node, &origin);
    node.always(Operation::Invalidate, Fault::Held(Gate::closed()));
    let opening = tokio::spawn({
        let (node, app, guard) = (node.clone(), app.clone(), guard.clone());
        async move { open_breaker(&node, &app, &guard).await }
    });
    tokio::time::sleep(100 * MS).await;
    let began = Instant::now();
    let answer = ask(&app, request(Method::POST, "/page", &[])).await;
    assert!(answer.header("cache-status").ends_with("detail=invalidation-pending"));
    assert!(began.elapsed() < 160 * MS, "{:?}", began.elapsed());
    opening.await.expect("no panic");
}

/// A store that answers with an error opens no breaker at once. The invalidation is retried nevertheless.
#[tokio::test(start_paused = true)]
async fn an_unsafe_request_says_that_its_invalidation_failed() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let (app, guard) = site_of(&node, &origin);
    assert_eq!(ask(&app, get("/page")).await.text(), "page 1");
    at_rest(&guard).await;
    node.once(Operation::Invalidate, Fault::Fails);
    for detail in ["invalidation-pending", "method"] {
        let answer = ask(&app, request(Method::POST, "/page", &[])).await;
        assert_eq!(
            answer.header("cache-status"),
            format!("stampede-guard; fwd=method; fwd-status=200; detail={detail}")
        );
    }
    assert_eq!(guard.drain_within(Duration::from_secs(60)).await, 0);
    assert_eq!(ask(&app, get("/page")).await.text(), "page 2");
}

/// The client leaves when the origin has responded and the store has not been asked yet. Seen to fail when the request
/// asks the store itself.
#[tokio::test]
async fn an_unsafe_request_invalidates_if_its_client_has_left() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let (app, guard) = site_of(&node, &origin);
    assert_eq!(ask(&app, get("/page")).await.text(), "page 1");
    at_rest(&guard).await;
    let mut post = ask(&app, request(Method::POST, "/page", &[]));
    assert!(is_pending(&mut post).await);
    assert_eq!(node.asked(Operation::Invalidate), 0);
    drop(post);
    at_rest(&guard).await;
    assert_eq!(node.asked(Operation::Invalidate), 1);
    assert_eq!(ask(&app, get("/page")).await.text(), "page 2");
}

/// Seen to fail when both were another key than the one of the page: the call was `Ok`, and the page stayed.
#[tokio::test]
async fn a_url_names_the_page_whatever_its_spelling() {
    for url in ["http://example.test:80/page", "https://EXAMPLE.test:443/page", "https://example.test/page"] {
        for (uri, host) in [("/page", "example.test:80"), ("https://example.test:443/page", "example.test")] {
            let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
            let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
            let page = || {
                let request = http::Request::get(uri).header("host", host);
                ask(&app, request.body(Body::empty()).expect("a request"))
            };
            assert_eq!((page().await.text(), at_rest(&guard).await, page().await.text()), ("1", (), "1"));
            guard.invalidate_url(&url.parse().expect("a URL")).await.expect("acknowledged");
            assert_eq!(page().await.text(), "2", "{url}: {uri}");
        }
    }
}

/// Seen to fail before: the call was `Ok`, and the page stayed.
#[tokio::test]
async fn the_key_of_a_page_is_refused_with_the_right_method() {
    let guard = StampedeGuard::in_memory();
    guard.invalidate("/page").await.expect("the guard is no layer");
    let _app: Router = Router::new().route("/page", any(async || "page")).layer(guard.clone());
    for url in ["/page", "/", "http://example.test/page", "https://example.test/page"] {
        let error = guard.invalidate(url).await.expect_err(url);
        assert_eq!(error.kind(), ErrorKind::InvalidUrl);
        assert!(error.to_string().contains("`invalidate_url`"), "{error}");
    }
    guard.invalidate("user:42").await.expect("the key of a value");
}

/// RFC 9110 §4.2.3. Seen to fail (the old page) when an empty path was no `/`.
#[tokio::test]
async fn empty_path_with_a_query_is_the_root() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let handler = {
        let origin = origin.clone();
        async move || origin.call().await.to_string()
    };
    let app = Router::new().fallback(handler).layer(guard.clone());
    let page = async |text: &str| {
        assert_eq!(ask(&app, get("/?page=2")).await.text(), text);
        at_rest(&guard).await;
    };
    page("1").await;
    guard.invalidate_url(&"http://example.test?page=2".parse().expect("a URL")).await.expect("the store answers");
    page("2").await;
    let mut change = request(Method::POST, "/?page=2", &[]);
    *change.uri_mut() = "http://example.test?page=2".parse().expect("a URL");
    ask(&app, change).await;
    page("4").await;
}
