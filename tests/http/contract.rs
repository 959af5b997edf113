//! The tower contract: readiness, clones, dropped callers, extensions.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, in_time, is_pending, on_each_store, site, waiting},
    support::{Origin, herd},
};
use axum::{
    Extension,
    body::Body,
    extract::Request,
    http::{Response, StatusCode},
    routing::get as on_get,
};
use futures_util::future::BoxFuture;
use stampede_guard::{CacheStatus, StampedeGuard};
use std::{
    convert::Infallible,
    future::{Ready, ready},
    mem::take,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tower::{Layer, Service, ServiceBuilder, ServiceExt};

/// A service that is ready only when the test says so, and only on the clone that was polled. Calling a clone that was
/// not polled to readiness panics.
struct Reluctant {
    state: Arc<Mutex<State>>,
    driven: bool,
}

#[derive(Default)]
struct State {
    ready: bool,
    calls: usize,
    waiting: Vec<Waker>,
}

impl Reluctant {
    fn new() -> (Self, Arc<Mutex<State>>) {
        let state = Arc::default();
        (Self { state: Arc::clone(&state), driven: false }, state)
    }
}

fn set_ready(state: &Mutex<State>, ready: bool) {
    let mut state = state.lock().expect("no panic");
    state.ready = ready;
    state.waiting.drain(..).for_each(Waker::wake);
}

impl Clone for Reluctant {
    fn clone(&self) -> Self {
        Self { state: self.state.clone(), driven: false }
    }
}

impl Service<Request> for Reluctant {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        let mut state = self.state.lock().expect("no panic");
        if !state.ready {
            state.waiting.push(cx.waker().clone());
            return Poll::Pending;
        }
        self.driven = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request) -> Self::Future {
        assert!(take(&mut self.driven), "this very clone was not driven ready");
        let mut state = self.state.lock().expect("no panic");
        state.calls += 1;
        ready(Ok(Response::new(state.calls.to_string().into())))
    }
}

/// Fails if the readiness of the inner service is passed on: the hit then waits for the origin.
#[tokio::test]
async fn poll_ready_is_ready_although_the_inner_service_is_not() {
    let (inner, state) = Reluctant::new();
    let guard = StampedeGuard::in_memory();
    let mut service = guard.layer(inner);
    let mut miss: BoxFuture<'_, _> = ask(&service, get("/page"));
    assert!(is_pending(&mut miss).await, "the origin is not ready");
    set_ready(&state, true);
    assert_eq!(miss.await.text(), "1");
    at_rest(&guard).await;

    set_ready(&state, false);
    in_time("readiness", service.ready()).await.expect("it is always ready");
    let hit = service.call(get("/page")).await.expect("an answer");
    assert_eq!(Answer::of(hit).await.cache_status(), CacheStatus::Hit);
    let mut other: BoxFuture<'_, _> = ask(&service, get("/other"));
    assert!(is_pending(&mut other).await);
    set_ready(&state, true);
    assert_eq!(other.await.text(), "2");
    at_rest(&guard).await;
}

/// Leaders, callers under a hit-for-pass marker, and bypassing requests: each drives the clone that it calls.
#[tokio::test]
async fn each_call_drives_its_own_clone_ready() {
    for guard in on_each_store("own-clone") {
        let (inner, state) = Reluctant::new();
        set_ready(&state, true);
        let service = guard.layer(inner);
        for path in ["/a", "/b"] {
            ask(&service, get(path)).await;
        }
        ask(&service, get_with("/a", &[("cookie", "a=b")])).await;
        assert_eq!(state.lock().expect("no panic").calls, 3);
        at_rest(&guard).await;
    }
}

/// With a limit of one call at a time, hits do not queue for the permit, and no request holds the permit without
/// calling.
#[tokio::test]
async fn a_saturated_origin_does_not_keep_hits_waiting() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let inner = ServiceBuilder::new().concurrency_limit(1).service(site(&origin, |_, n| n.to_string()));
    let service = guard.layer(inner);
    origin.release(1);
    assert_eq!(ask(&service, get("/page")).await.text(), "1");
    at_rest(&guard).await;
    let slow = waiting(&service, 3, |i| get(&format!("/slow/{i}"))).await;
    origin.arrived(2).await;
    assert_eq!(ask(&service, get("/page")).await.cache_status(), CacheStatus::Hit);
    assert_eq!((origin.running(), origin.calls()), (1, 2));
    origin.open();
    assert_eq!(slow.answers().await.len(), 3);
    at_rest(&guard).await;
}

/// Fails if the caller and not a task runs the fetch: the waiters then call the origin in turn.
#[tokio::test]
async fn a_leader_whose_caller_is_dropped_answers_its_waiters() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let mut asked = waiting(&app, 20, |_| get("/page")).await;
    origin.arrived(1).await;
    asked.drop_first();
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "1"));
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}

#[tokio::test]
async fn a_response_whose_only_caller_is_dropped_is_stored() {
    for guard in on_each_store("only-caller") {
        let origin = Origin::gated();
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        let asked = tokio::spawn(ask(&app, get("/page")));
        origin.arrived(1).await;
        asked.abort();
        assert!(asked.await.is_err_and(|error| error.is_cancelled()));
        origin.open();
        at_rest(&guard).await;
        let hit = ask(&app, get("/page")).await;
        assert_eq!((hit.text(), hit.cache_status(), origin.calls()), ("1", CacheStatus::Hit, 1));
    }
}

/// Callers are dropped at every stage of their request.
#[tokio::test(flavor = "multi_thread")]
async fn callers_dropped_at_any_time_leave_no_flight() {
    for guard in on_each_store("any-time") {
        let origin = Origin::new();
        let app = site(&origin, |_, n| ([("cache-control", "no-store")], n.to_string()));
        let app = app.layer(guard.clone().uncacheable_ttl(Duration::ZERO));
        let pages = herd(200, |i| {
            let answer = ask(&app, get(&format!("/page/{}", i % 3)));
            async move { tokio::time::timeout(Duration::from_micros(i as u64 * 20), answer).await.is_ok() }
        });
        in_time("the herd", pages).await;
        at_rest(&guard).await;
        for page in 0..3 {
            assert_eq!(ask(&app, get(&format!("/page/{page}"))).await.status, 200);
        }
        at_rest(&guard).await;
    }
}

#[tokio::test]
async fn extensions_reach_the_call_of_the_leader() {
    let guard = StampedeGuard::in_memory();
    let app = axum::Router::new()
        .route("/page", on_get(async |Extension(user): Extension<u32>| (Extension(user + 1), user.to_string())))
        .layer(guard.clone())
        .layer(Extension(7_u32));
    let response = app.clone().oneshot(get("/page")).await.expect("an answer");
    assert_eq!((response.status(), response.extensions().get()), (StatusCode::OK, Some(&8_u32)));
    assert_eq!(Answer::of(response).await.text(), "7");
    at_rest(&guard).await;
}

#[tokio::test]
async fn the_layer_works_under_a_buffer_a_timeout_and_a_limit() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let service = ServiceBuilder::new()
        .buffer(64)
        .timeout(Duration::from_secs(10))
        .concurrency_limit(64)
        .layer(guard.clone())
        .service(site(&origin, |_, n| n.to_string()));
    let asked = tokio::spawn(async move { herd(50, |_| ask(&service, get("/page"))).await });
    origin.arrived(1).await;
    origin.open();
    let answers = in_time("the herd", asked).await.expect("no panic");
    assert!(answers.iter().all(|answer| answer.text() == "1"));
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}
