//! `guard.keyed(..)` over services that do not speak HTTP.

use crate::{
    kit::{at_rest, in_time, on_each_store},
    support::{Origin, herd},
};
use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{Request, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use stampede_guard::{ErrorKind, Key, StampedeGuard};
use std::{fmt, num::ParseIntError, time::Duration};
use tower::{BoxError, Service, ServiceBuilder, ServiceExt, service_fn};

#[derive(Clone, Debug)]
struct ReadNumber {
    number: &'static str,
    /// Whether the request has no key and is not shared.
    own: bool,
}

fn ask(number: &'static str) -> ReadNumber {
    ReadNumber { number, own: false }
}

/// Returns a service that parses a number; the origin counts its calls.
fn reader(
    origin: &Origin,
) -> impl Service<ReadNumber, Response = u32, Error = ParseIntError, Future: Send> + Clone + Send + 'static {
    let origin = origin.clone();
    service_fn(move |ask: ReadNumber| {
        let origin = origin.clone();
        async move {
            origin.call().await;
            ask.number.parse::<u32>()
        }
    })
}

fn key(ask: &ReadNumber) -> Option<Key> {
    (!ask.own).then(|| Key::new(ask.number))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_key_share_one_call() {
    for guard in on_each_store("keyed") {
        let origin = Origin::gated();
        let service = ServiceBuilder::new().layer(guard.keyed(|ask: &ReadNumber| key(ask))).service(reader(&origin));
        let asked = tokio::spawn(async move {
            herd(100, |i| service.clone().oneshot(ask(if i % 2 == 0 { "12" } else { "13" }))).await
        });
        origin.arrived(2).await;
        origin.open();
        let answers = in_time("the herd", asked).await.expect("no panic");
        for (i, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.expect("a number"), 12 + i as u32 % 2);
        }
        assert_eq!(origin.calls(), 2);
        at_rest(&guard).await;
    }
}

#[tokio::test]
async fn the_request_type_may_be_named_instead_of_annotated() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let mut by_name = ServiceBuilder::new()
        .layer(guard.keyed::<ReadNumber, _>(|ask| (!ask.own).then(|| Key::new(ask.number))))
        .service(reader(&origin));
    let mut by_path = ServiceBuilder::new().layer(guard.keyed(key)).service(reader(&origin));
    assert_eq!(by_name.call(ask("12")).await.expect("a number"), 12);
    assert_eq!(by_path.call(ask("12")).await.expect("a number"), 12);
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn a_request_without_a_key_is_passed_on() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let service = ServiceBuilder::new().layer(guard.keyed(key)).service(reader(&origin));
    let own = || service.clone().oneshot(ReadNumber { number: "12", own: true });
    let both_run = async {
        origin.arrived(2).await;
        assert_eq!(origin.running(), 2);
        origin.open();
    };
    let (one, two, ()) = tokio::join!(own(), own(), both_run);
    assert_eq!((one.expect("a number"), two.expect("a number")), (12, 12));
    let error = service.clone().oneshot(ReadNumber { number: "x", own: true }).await.expect_err("no number");
    assert_eq!(error.kind(), ErrorKind::Origin);
    assert!(error.origin::<ParseIntError>().is_some());
    assert_eq!(guard.stats(), StampedeGuard::in_memory().stats(), "the guard counts nothing");
}

#[tokio::test]
async fn an_error_is_shared_and_keeps_its_source() {
    for guard in on_each_store("keyed-error") {
        let origin = Origin::gated();
        let service = ServiceBuilder::new().layer(guard.keyed(key)).service(reader(&origin));
        let asked = service.clone();
        let asked = tokio::spawn(async move { herd(20, |_| asked.clone().oneshot(ask("x"))).await });
        origin.arrived(1).await;
        tokio::task::yield_now().await;
        origin.open();
        for answer in in_time("the herd", asked).await.expect("no panic") {
            let error = answer.expect_err("no number");
            assert!(matches!(error.kind(), ErrorKind::Origin), "{error:?}");
            assert!(error.origin::<ParseIntError>().is_some());
        }
        at_rest(&guard).await;
        let error = service.oneshot(ask("x")).await.expect_err("held off");
        assert_eq!(error.kind(), ErrorKind::Origin);
        assert!(error.origin::<ParseIntError>().is_some(), "the cause is kept in the process");
        assert!(error.retry_in().is_some());
        assert_eq!(origin.calls(), 1);
        at_rest(&guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_and_a_fetch_timeout_are_errors() {
    let guard = StampedeGuard::in_memory().fetch_timeout(Duration::from_secs(1));
    let sloth = service_fn(async |ask: ReadNumber| {
        assert_ne!(ask.number, "panic", "planned by the test");
        std::future::pending::<Result<u32, ParseIntError>>().await
    });
    let service = ServiceBuilder::new().layer(guard.keyed(key)).service(sloth);
    for (number, kind) in [("panic", ErrorKind::Panicked), ("slow", ErrorKind::TimedOut)] {
        let (one, two) = tokio::join!(service.clone().oneshot(ask(number)), service.clone().oneshot(ask(number)));
        let kinds: [ErrorKind; 2] = [one, two].map(|answer| answer.expect_err("no answer").kind());
        assert_eq!(kinds, [kind; 2]);
    }
    at_rest(&guard).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keyed_works_under_a_buffer_a_timeout_and_a_limit() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let service = ServiceBuilder::new()
        .buffer(64)
        .timeout(Duration::from_secs(10))
        .concurrency_limit(64)
        .layer(guard.keyed(|ask: &ReadNumber| key(ask)))
        .concurrency_limit(1)
        .service(reader(&origin));
    let asked = tokio::spawn(herd(50, move |_| service.clone().oneshot(ask("12"))));
    origin.arrived(1).await;
    origin.open();
    let answers: Vec<Result<u32, BoxError>> = in_time("the herd", asked).await.expect("no panic");
    assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|n| *n == 12)));
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}

/// `Keyed` implements `Debug` even if its key function and its service do not.
#[test]
fn keyed_implements_debug() {
    fn shown(what: impl fmt::Debug) -> bool {
        format!("{what:?}").starts_with("Keyed")
    }
    assert!(shown(StampedeGuard::in_memory().keyed(key)));
}

/// The first request was answered 404, and the next ones 503 for as long as the failure marker lived.
#[tokio::test]
async fn a_handler_sees_the_same_error_while_it_blocks() {
    async fn number(
        State((guard, origin)): State<(StampedeGuard, Origin)>,
        Path(text): Path<String>,
    ) -> Result<String, Response> {
        let key = Key::from(text.clone());
        let parsed = guard.fetch(key, async move || {
            origin.call().await;
            text.parse::<u32>().map_err(anyhow::Error::from)
        });
        let parsed = parsed.await;
        parsed.map(|number| number.to_string()).map_err(|error| match error.origin::<ParseIntError>() {
            Some(_) => StatusCode::NOT_FOUND.into_response(),
            None => error.into_response(),
        })
    }

    for guard in on_each_store("handler-error") {
        let origin = Origin::new();
        let app: Router = Router::new().route("/{number}", get(number)).with_state((guard.clone(), origin.clone()));
        let status = async |path: &str| {
            let request = Request::get(path).body(Body::empty()).expect("a request");
            app.clone().oneshot(request).await.expect("infallible").status()
        };
        assert_eq!(status("/12").await, StatusCode::OK);
        for _ in 0..3 {
            assert_eq!(status("/x").await, StatusCode::NOT_FOUND);
            at_rest(&guard).await;
        }
        assert_eq!(origin.calls(), 2, "the later answers came without a call");
    }
}
