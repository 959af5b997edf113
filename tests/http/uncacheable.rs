//! Responses that must not be shared are not shared, and a herd for them does not queue.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, in_time, on_each_store, site, waiting},
    support::{Origin, herd},
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use stampede_guard::{CacheStatus, StampedeGuard};
use std::{collections::BTreeSet, convert::Infallible, time::Duration};

/// Kinds of responses that are for one client only; each response carries the number of its call.
const KINDS: [&str; 10] = [
    "no-store",
    "private",
    "no-cache",
    "max-age=0",
    "set-cookie",
    "vary",
    "event-stream",
    "over the cap, declared",
    "over the cap, undeclared",
    "temporary redirect",
];

fn answer_of(kind: &str, n: usize) -> Response {
    let large = || format!("{n:07}{}", "x".repeat(CAP));
    match kind {
        "set-cookie" => ([("set-cookie", format!("user={n}"))], n.to_string()).into_response(),
        "vary" => ([("vary", "accept-language, *")], n.to_string()).into_response(),
        "event-stream" => ([("content-type", "text/event-stream; charset=utf-8")], n.to_string()).into_response(),
        "over the cap, declared" => large().into_response(),
        "over the cap, undeclared" => {
            let chunks: Vec<_> = large().into_bytes().chunks(100).map(|c| Ok::<_, Infallible>(c.to_vec())).collect();
            Body::from_stream(stream::iter(chunks)).into_response()
        }
        "temporary redirect" => (StatusCode::FOUND, n.to_string()).into_response(),
        directive => ([("cache-control", directive)], n.to_string()).into_response(),
    }
}

const CAP: usize = 2000;

/// Returns the numbers of the calls that made these responses.
fn calls_of(answers: &[Answer]) -> BTreeSet<usize> {
    let call_of = |answer: &Answer| answer.text().trim_end_matches('x').parse().expect("a number");
    answers.iter().map(call_of).collect()
}

fn app(kind: &'static str, origin: &Origin, guard: &StampedeGuard) -> Router {
    site(origin, move |_, n| answer_of(kind, n)).layer(guard.clone().max_payload(CAP))
}

/// Fails without the hit-for-pass marker: the second herd then waits for a leader of its own.
#[tokio::test]
async fn a_herd_for_an_uncacheable_page_is_not_serialised() {
    for kind in KINDS {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = app(kind, &origin, &guard);
        let first = waiting(&app, 50, |_| get("/page")).await;
        let second = async {
            origin.arrived(1).await;
            assert_eq!(origin.calls(), 1, "{kind}: it is not known yet to be uncacheable");
            origin.release(1);
            origin.arrived(50).await;
            assert_eq!(origin.running(), 49, "{kind}: all waiters run at once");
            origin.release(49);
        };
        let (first, ()) = tokio::join!(first.answers(), second);
        assert_eq!(calls_of(&first), (1..=50).collect(), "{kind}: each client gets its own response");
        at_rest(&guard).await;

        let second = waiting(&app, 50, |_| get("/page")).await;
        origin.arrived(100).await;
        assert_eq!(origin.running(), 50, "{kind}: the second herd does not wait");
        origin.release(50);
        let second = second.answers().await;
        assert_eq!(calls_of(&second), (51..=100).collect(), "{kind}");
        assert!(second.iter().all(|answer| answer.cache_status() == CacheStatus::Bypass), "{kind}");
        at_rest(&guard).await;
    }
}

/// Fails if the flight of a private response ends as `Abandoned` and not as `Uncacheable`: the 49 waiters then lead in
/// turn.
#[tokio::test]
async fn waiters_are_released_without_a_hit_for_pass_marker() {
    let (guard, origin) = (StampedeGuard::in_memory().uncacheable_ttl(Duration::ZERO), Origin::gated());
    let app = app("private", &origin, &guard);
    let asked = waiting(&app, 50, |_| get("/page")).await;
    let released = async {
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(50).await;
        assert_eq!(origin.running(), 49);
        origin.open();
    };
    let (answers, ()) = tokio::join!(asked.answers(), released);
    assert_eq!(calls_of(&answers), (1..=50).collect());
    at_rest(&guard).await;
}

/// The herd of the first test, with the hit-for-pass marker in Redis, where another process finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_herd_for_an_uncacheable_page_is_not_serialised_over_redis() {
    for kind in ["no-store", "over the cap, undeclared"] {
        let name = format!("uncacheable-{}", kind.len());
        let (origin, guards) = (Origin::gated(), [crate::kit::over_redis(&name), crate::kit::over_redis(&name)]);
        let apps = guards.clone().map(|guard| app(kind, &origin, &guard));
        let [one, two] = apps.clone();
        let first = tokio::spawn(async move { herd(50, |_| ask(&one, get("/page"))).await });
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(50).await;
        assert_eq!(origin.running(), 49, "{kind}");
        origin.release(49);
        let first = in_time("the first herd", first).await.expect("no panic");
        assert_eq!(calls_of(&first), (1..=50).collect(), "{kind}");
        at_rest(&guards[0]).await;

        let second = tokio::spawn(async move { herd(50, |_| ask(&two, get("/page"))).await });
        origin.arrived(100).await;
        assert_eq!(origin.running(), 50, "{kind}");
        origin.release(50);
        let second = in_time("the second herd", second).await.expect("no panic");
        assert_eq!(calls_of(&second), (51..=100).collect(), "{kind}");
        at_rest(&guards[1]).await;
    }
}

#[tokio::test]
async fn a_cacheable_response_replaces_its_hit_for_pass_marker() {
    for guard in on_each_store("promoted") {
        let origin = Origin::new();
        let respond = |_: &Request, n: usize| {
            let control = if n < 3 { "no-store" } else { "max-age=60" };
            ([("cache-control", control)], n.to_string())
        };
        let app = site(&origin, respond).layer(guard.clone());
        for n in ["1", "2", "3", "3"] {
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            at_rest(&guard).await;
        }
    }
}

/// Sends either credential, before and after the anonymous response is stored. The second user waits for the first
/// response, because nothing is known of the page yet.
#[tokio::test]
async fn requests_with_credentials_do_not_use_anonymous_entries() {
    for credential in ["authorization", "cookie"] {
        for guard in on_each_store(&format!("credentials-{credential}")) {
            let origin = Origin::gated();
            let respond = move |request: &Request, _| match request.headers().get(credential).map(|v| v.to_str()) {
                Some(user) => format!("hello {}", user.expect("a name")),
                None => "hello stranger".to_owned(),
            };
            let app = site(&origin, respond).layer(guard.clone());
            let user = |name: &'static str| ask(&app, get_with("/page", &[(credential, name)]));
            let both_run = async {
                origin.arrived(1).await;
                origin.open();
            };
            let (alice, bob, ()) = tokio::join!(user("Alice"), user("Bob"), both_run);
            assert_eq!((alice.text(), bob.text()), ("hello Alice", "hello Bob"));
            at_rest(&guard).await;
            for _ in 0..2 {
                assert_eq!(ask(&app, get("/page")).await.text(), "hello stranger");
                assert_eq!(user("Carol").await.text(), "hello Carol");
            }
            assert_eq!(origin.calls(), 5, "two users, an anonymous client once, and a user twice");
            at_rest(&guard).await;
        }
    }
}
