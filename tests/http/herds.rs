//! Herds, wherever the layer sits.

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
use stampede_guard::{BoxError, CacheVerdict, StampedeGuard};
use std::{convert::Infallible, slice::from_ref};
use tower::{Layer, ServiceExt, buffer::Buffer};

/// 200 requests for one page, of which the first has the origin's attention before it answers anybody.
async fn herd_of_200(app: &Router, origin: &Origin) -> Vec<Answer> {
    let asked = app.clone();
    let herd = tokio::spawn(async move { herd(200, |_| ask(&asked, get("/page"))).await });
    origin.arrived(1).await;
    origin.open();
    in_time("the herd", herd).await.expect("nobody panics")
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

/// With the list of what a task leads (`LEADING`) left empty, the inner guard waits for the lease of the outer one.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_within_a_guard_does_not_wait_for_itself() {
    for guard in on_each_store("herd-twice") {
        costs_one_call(from_ref(&guard), |site| site.route_layer(guard.clone()).layer(guard.clone())).await;
    }
}

/// As before: it is the namespace and the key that count, not the guard.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_within_another_guard_of_the_same_namespace_does_not_wait_for_it() {
    let [outer, inner] = [over_redis("herd-two"), over_redis("herd-two")];
    costs_one_call(&[outer.clone(), inner.clone()], |site| site.layer(inner.clone()).layer(outer.clone())).await;
}

/// As before, where the inner request is made by one task and awaited by another. Seen to fail (it waits for the outer one)
/// with the look at `LEADING` when the request is made.
#[tokio::test(flavor = "multi_thread")]
async fn a_guard_behind_a_buffer_does_not_wait_for_the_one_around_it() {
    for guard in on_each_store("herd-buffer") {
        costs_one_call(from_ref(&guard), |site| {
            let buffer = Buffer::new(guard.layer(site), 16);
            let inner = buffer.map_err(|error: BoxError| -> Infallible { panic!("{error}") });
            Router::new().fallback_service(inner).layer(guard.clone())
        })
        .await;
    }
}

/// As before, for the call that every waiter makes for itself.
#[tokio::test]
async fn a_guard_within_a_guard_passes_what_is_not_cacheable() {
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
        in_time("the herd", herd).await.expect("nobody panics");
        assert_eq!(origin.calls(), 20);
        at_rest(&guard).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn layers_around_it_see_the_verdict_and_may_change_the_body() {
    async fn trace(request: Request, next: Next) -> Response {
        let mut response = next.run(request).await;
        let verdict = *response.extensions().get::<CacheVerdict>().expect("the guard said how");
        response.headers_mut().insert("x-verdict", format!("{verdict:?}").parse().expect("a value"));
        response.map(|body| Body::new(body.map_frame(|frame| frame.map_data(|data| data.to_ascii_uppercase().into()))))
    }
    let guard = StampedeGuard::in_memory();
    let origin = Origin::gated();
    let app = site(&origin, |_, n| format!("page {n}")).layer(guard.clone()).layer(middleware::from_fn(trace));
    let answers = herd_of_200(&app, &origin).await;
    let led = answers.iter().filter(|answer| answer.header("x-verdict") == "Filled").count();
    assert_eq!((led, origin.calls()), (1, 1));
    assert!(answers.iter().all(|answer| answer.text() == "PAGE 1"));
    assert_eq!(ask(&app, get("/page")).await.header("x-verdict"), "Hit");
    at_rest(&guard).await;
}

#[test]
fn it_is_built_without_a_runtime() {
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

/// One guard on each nested router, on the router around them, or on both.
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
            assert_eq!(origin.calls(), 2, "each is asked for once");
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
