//! The stack that src/guide/layers.md shows.

use crate::kit::{ask, at_rest, get, get_with, guard, site};
use axum::{
    Router,
    extract::Request,
    http::{HeaderName, StatusCode},
    middleware::{Next, from_fn},
    response::Response,
};
use futures_util::future::join_all;
use stampede_guard::StampedeGuard;
use stampede_guard_support::Origin;
use std::{fs, path::Path, time::Duration};
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    limit::RequestBodyLimitLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

async fn authenticate(request: Request, next: Next) -> Response {
    next.run(request).await
}

async fn session(request: Request, next: Next) -> Response {
    next.run(request).await
}

#[rustfmt::skip] // as the document shows it
fn stack(router: Router, guard: StampedeGuard) -> Router {
router.layer(
    ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(TraceLayer::new_for_http())
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(30)))
        .layer(CorsLayer::permissive())
        .layer(from_fn(authenticate))
        .layer(guard)
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10)))
        .layer(GlobalConcurrencyLimitLayer::new(100))
        .layer(CompressionLayer::new())
        .layer(from_fn(session))
        .layer(RequestBodyLimitLayer::new(1 << 20)),
)
}

#[tokio::test]
async fn the_documented_stack_answers_a_herd_with_one_call() {
    let (guard, origin) = (guard(), Origin::gated());
    let site = stack(site(&origin, |_, n| format!("page {n}")), guard.clone());
    let asked: Vec<_> = (0..50).map(|_| tokio::spawn(ask(&site, get("/news")))).collect();
    origin.arrived(1).await;
    origin.open();
    for answer in join_all(asked).await {
        let answer = answer.expect("no panic");
        assert_eq!((answer.status, answer.text()), (200, "page 1"));
        assert_eq!(answer.header("x-request-id").len(), 36);
    }
    at_rest(&guard).await;
    let hit = ask(&site, get_with("/news", &[("x-request-id", "mine"), ("origin", "https://a.test")])).await;
    assert!(hit.is_hit() && origin.calls() == 1, "{hit:?}");
    let fields = [HeaderName::from_static("x-request-id"), HeaderName::from_static("access-control-allow-origin")];
    assert_eq!(fields.map(|name| hit.headers[name].clone()), ["mine", "*"]);
}

#[test]
fn the_documented_stack_is_the_tested_one() {
    let file = |path: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect("a file");
    let (document, source) = (file("../../src/guide/layers.md"), file("stack.rs"));
    let shown =
        document.split("```rust,ignore\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    assert!(source.contains(shown), "{shown}");
}
