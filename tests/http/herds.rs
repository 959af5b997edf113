//! Herds against the layer in every position: on a router, on a route, in another guard, under a buffer.

use crate::{
    kit::{Answer, ask, at_rest, get, in_time, on_each_store, over_redis, site},
    support::{Origin, herd},
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::Response,
};
use http_body_util::BodyExt;
use stampede_guard::{BoxError, CacheStatus, StampedeGuard};
use std::{convert::Infallible, slice::from_ref};
use tower::{Layer, ServiceExt, buffer::Buffer};

/// Sends 200 requests for one page, and opens the origin once the first call has arrived.
async fn herd_of_200(app: &Router, origin: &Origin) -> Vec<Answer> {
    let asked = app.clone();
    let herd = tokio::spawn(async move { herd(200, |_| ask(&asked, get("/page"))).await });
    origin.arrived(1).await;
    origin.open();
    in_time("the herd", herd).await.expect("no panic")
}

async fn costs_one_call(guards: &[StampedeGuard], app: impl Fn(Router) -> Router) {
    let origin = Origin::gated();
    let app = app(site(&origin, |_, n| format!("page {n}")));
    for answer in herd_of_200(&app, &origin).await {
        assert_eq!((answer.status, answer.text()), (200, "page 1"));
    }
    assert_eq!(origin.calls(), 1);
    for guard in guards {
        at_rest(guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_on_a_routers_layer_costs_one_call() {
    for guard in on_each_store("herd-layer") {
        costs_one_call(from_ref(&guard), |site| site.layer(guard.clone())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_herd_on_a_route_layer_costs_one_call() {
    for guard in on_each_store("herd-route-layer") {
        costs_one_call(from_ref(&guard), |site| site.route_layer(guard.clone())).await;
    }
}

/// Fails if the list of a task's fetches (`ACTIVE_FETCHES`) stays empty: the inner guard then waits for the lease of
/// the outer one.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_within_a_guard_does_not_wait_for_itself() {
    for guard in on_each_store("herd-twice") {
        costs_one_call(from_ref(&guard), |site| site.route_layer(guard.clone()).layer(guard.clone())).await;
    }
}

/// The same with two guards: namespace and key count, not the guard.
#[tokio::test(flavor = "multi_thread")]
async fn nested_guards_of_one_namespace_do_not_wait_on_each_other() {
    let [outer, inner] = [over_redis("herd-two"), over_redis("herd-two")];
    costs_one_call(&[outer.clone(), inner.clone()], |site| site.layer(inner.clone()).layer(outer.clone())).await;
}

/// The same if one task makes the inner request and another task awaits it. Seen to fail when `ACTIVE_FETCHES` was read
/// at the time the request is made: the inner guard waited for the outer one.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_under_a_buffer_does_not_wait_for_the_outer_guard() {
    for guard in on_each_store("herd-buffer") {
        costs_one_call(from_ref(&guard), |site| {
            let buffer = Buffer::new(guard.layer(site), 16);
            let inner = buffer.map_err(|error: BoxError| -> Infallible { panic!("{error}") });
            Router::new().fallback_service(inner).layer(guard.clone())
        })
        .await;
    }
}

/// The same for the call that each waiter makes on its own.
#[tokio::test]
async fn nested_guards_pass_an_uncacheable_response() {
    for guard in on_each_store("herd-twice-uncacheable") {
        let origin = Origin::gated();
        let app = site(&origin, |_, n| ([("cache-control", "no-store")], n.to_string()));
        let app = app.route_layer(guard.clone()).layer(guard.clone());
        let asked = app.clone();
        let herd = tokio::spawn(async move { herd(20, |_| ask(&asked, get("/page"))).await });
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(20).await;
        assert_eq!(origin.running(), 19);
        origin.open();
        in_time("the herd", herd).await.expect("no panic");
        assert_eq!(origin.calls(), 20);
        at_rest(&guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn outer_layers_see_the_cache_status_and_may_change_bodies() {
    async fn trace(request: Request, next: Next) -> Response {
        let mut response = next.run(request).await;
        let cache_status = *response.extensions().get::<CacheStatus>().expect("set by the guard");
        response.headers_mut().insert("x-cache-status", format!("{cache_status:?}").parse().expect("a value"));
        response.map(|body| Body::new(body.map_frame(|frame| frame.map_data(|data| data.to_ascii_uppercase().into()))))
    }
    let guard = StampedeGuard::in_memory();
    let origin = Origin::gated();
    let app = site(&origin, |_, n| format!("page {n}")).layer(guard.clone()).layer(middleware::from_fn(trace));
    let answers = herd_of_200(&app, &origin).await;
    let led = answers.iter().filter(|answer| answer.header("x-cache-status") == "Miss").count();
    assert_eq!((led, origin.calls()), (1, 1));
    assert!(answers.iter().all(|answer| answer.text() == "PAGE 1"));
    assert_eq!(ask(&app, get("/page")).await.header("x-cache-status"), "Hit");
    at_rest(&guard).await;
}

#[test]
fn the_layer_is_built_without_a_runtime() {
    let origin = Origin::new();
    let apps = on_each_store("no-runtime").map(|guard| site(&origin, |_, n| n.to_string()).layer(guard));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        for app in &apps {
            assert_eq!(ask(app, get("/page")).await.text(), ask(app, get("/page")).await.text());
        }
        assert_eq!(origin.calls(), 2);
    });
}

/// The guard is on each nested router, on the outer router, or on both.
#[tokio::test]
async fn nested_routers_with_the_same_inner_path_never_share_an_entry() {
    for guard in on_each_store("nested") {
        for (place, inside, outside) in [("in", true, false), ("out", false, true), ("both", true, true)] {
            let origin = Origin::new();
            let version = |name: &'static str| {
                let users = site(&origin, move |_, _| name);
                if inside { users.layer(guard.clone()) } else { users }
            };
            let app = Router::new().nest("/v1", version("one")).nest("/v2", version("two"));
            let app = if outside { app.layer(guard.clone()) } else { app };
            for round in 0..3 {
                for (path, expected) in [("v1", "one"), ("v2", "two")] {
                    let answer = ask(&app, get(&format!("/{path}/{place}/users"))).await;
                    assert_eq!(answer.text(), expected, "round {round} with the guard {place}");
                }
            }
            assert_eq!(origin.calls(), 2, "each page is fetched once");
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn hosts_queries_and_spellings_of_a_path_never_share_an_entry() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let targets = ["/a", "/a?", "/a?b", "/a?b=", "/A", "/a/", "/%61", "http://other.test/a", "https://example.test/a"];
    for (n, target) in targets.iter().enumerate() {
        assert_eq!(ask(&app, get(target)).await.text(), (n + 1).to_string(), "{target}");
    }
    for (n, target) in targets.iter().enumerate() {
        assert_eq!(ask(&app, get(target)).await.text(), (n + 1).to_string(), "{target}");
    }
    assert_eq!(ask(&app, get("http://EXAMPLE.test/a")).await.text(), "1", "a host has no case");
    at_rest(&guard).await;
}
