//! Layers that observe requests or rename them: request ids, spans, panics, task-locals, normalized paths.

use crate::kit::{ask, at_rest, get, get_with, guard, site};
use axum::{
    Router,
    extract::Request,
    http::{HeaderName, HeaderValue, Response, StatusCode},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response as AxumResponse},
    routing::get as on_get,
};
use stampede_guard_support::Origin;
use std::{
    any::Any,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tower::Layer;
use tower_http::{
    catch_panic::CatchPanicLayer,
    normalize_path::NormalizePathLayer,
    request_id::{MakeRequestId, PropagateRequestIdLayer, RequestId, SetRequestIdLayer},
    trace::TraceLayer,
};
use tracing::Span;

/// Numbers the requests that it sees. Clones share the count.
#[derive(Clone, Default)]
struct Numbered(Arc<AtomicUsize>);

impl MakeRequestId for Numbered {
    fn make_request_id<B>(&mut self, _: &http::Request<B>) -> Option<RequestId> {
        HeaderValue::try_from(format!("id-{}", self.0.fetch_add(1, SeqCst))).ok().map(RequestId::new)
    }
}

const ID: HeaderName = HeaderName::from_static("x-request-id");

/// Inside of the guard, a hit has the id of the request that reached the origin.
#[tokio::test]
async fn request_ids_are_set_outside_of_the_guard() {
    for (is_outside, ids_made) in [(true, 2), (false, 1)] {
        let (guard, numbered) = (guard(), Numbered::default());
        let (set, propagate) = (SetRequestIdLayer::new(ID, numbered.clone()), PropagateRequestIdLayer::new(ID));
        let site = site(&Origin::new(), |_, n| format!("page {n}"));
        let site = match is_outside {
            true => site.layer(guard.clone()).layer(propagate).layer(set),
            false => site.layer(propagate).layer(set).layer(guard.clone()),
        };
        let first = ask(&site, get("/page")).await;
        at_rest(&guard).await;
        let second = ask(&site, get("/page")).await;
        assert_eq!((first.header("x-request-id"), second.text()), ("id-0", "page 1"));
        assert_eq!(second.header("x-request-id") == "id-1", is_outside);
        assert_eq!(numbered.0.load(SeqCst), ids_made);
        if is_outside {
            let own = ask(&site, get_with("/page", &[("x-request-id", "mine")])).await;
            assert_eq!((own.header("x-request-id"), own.text()), ("mine", "page 1"));
        }
    }
}

/// Inside of the guard, a hit is not traced.
#[tokio::test]
async fn tracing_outside_of_the_guard_sees_hits() {
    for (is_outside, traced) in [(true, 2), (false, 1)] {
        let (guard, responses) = (guard(), Arc::new(AtomicUsize::new(0)));
        let counter = responses.clone();
        let trace = TraceLayer::new_for_http().on_response(move |_: &Response<_>, _: Duration, _: &Span| {
            counter.fetch_add(1, SeqCst);
        });
        let site = site(&Origin::new(), |_, n| format!("page {n}"));
        let site = match is_outside {
            true => site.layer(guard.clone()).layer(trace),
            false => site.layer(trace).layer(guard.clone()),
        };
        ask(&site, get("/page")).await;
        at_rest(&guard).await;
        assert!(ask(&site, get("/page")).await.text() == "page 1");
        assert_eq!(responses.load(SeqCst), traced);
    }
}

/// The guard contains panics itself, so a layer outside of it sees only its empty 500.
#[tokio::test]
async fn panics_are_caught_inside_of_the_guard() {
    async fn handler() -> StatusCode {
        panic!("as intended")
    }
    fn own_page(_: Box<dyn Any + Send>) -> AxumResponse {
        (StatusCode::INTERNAL_SERVER_ERROR, "own page").into_response()
    }
    let (router, catch) = (|| Router::new().route("/page", on_get(handler)), || CatchPanicLayer::custom(own_page));
    let inside = router().layer(catch()).layer(guard());
    let outside = router().layer(guard()).layer(catch());
    for (site, text) in [(inside, "own page"), (outside, "")] {
        let answer = ask(&site, get("/page")).await;
        assert_eq!((answer.status, answer.text()), (500, text));
    }
}

tokio::task_local! {
    static TENANT: &'static str;
}

/// A fetch that may be shared runs in a task of its own.
#[tokio::test]
async fn task_locals_are_set_inside_of_the_guard() {
    async fn scope(request: Request, next: Next) -> AxumResponse {
        TENANT.scope("acme", next.run(request)).await
    }
    let handler = || async { TENANT.try_with(|tenant| *tenant).unwrap_or("no task-local") };
    let router = || Router::new().route("/page", on_get(handler));
    let inside = router().layer(from_fn(scope)).layer(guard());
    let outside = router().layer(guard()).layer(from_fn(scope));
    for (site, text) in [(inside, "acme"), (outside, "no task-local")] {
        assert_eq!(ask(&site, get("/page")).await.text(), text);
    }
}

/// The guard keys each path as it arrives, so both spellings are fetched and stored if it is outermost.
#[tokio::test]
async fn paths_are_normalized_outside_of_the_guard() {
    let trim = NormalizePathLayer::trim_trailing_slash;
    for (is_outside, calls) in [(true, 1), (false, 2)] {
        let (guard, origin) = (guard(), Origin::new());
        let router = site(&origin, |_, n| format!("page {n}"));
        for (n, path) in ["/news", "/news/"].into_iter().enumerate() {
            let answer = match is_outside {
                true => ask(&trim().layer(router.clone().layer(guard.clone())), get(path)).await,
                false => ask(&guard.layer(trim().layer(router.clone())), get(path)).await,
            };
            at_rest(&guard).await;
            assert_eq!((answer.status, answer.text()), (200, &*format!("page {}", calls.min(n + 1))));
        }
        assert_eq!(origin.calls(), calls);
    }
}
