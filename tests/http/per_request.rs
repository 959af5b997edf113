//! Fields of one request, such as request ids: no client gets the value of another request.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, request, site, waiting},
    support::{Origin, RedisServer},
    vary::field,
};
use axum::{
    Router,
    extract::Request,
    http::{HeaderName, Method, StatusCode},
    response::{IntoResponse, Response},
};
use stampede_guard::{CacheStatus, StampedeGuard, http::HttpOptions};

/// Returns a site whose answers name their call, as middleware for request ids and traces does: it repeats the id of
/// the request, or makes one. It answers a condition with a 304, and `X-Fail` with a 503.
fn traced(origin: &Origin, on_304: bool) -> Router {
    site(origin, move |request: &Request, n| -> Response {
        let id = match field(request, "x-request-id") {
            "" => format!("call-{n}"),
            sent => sent.to_owned(),
        };
        let validated = request.headers().contains_key("if-none-match");
        let of_the_page = [("etag", "\"a\"".to_owned()), ("cache-control", "max-age=60".to_owned())];
        let of_the_call = [("x-request-id", id), ("server-timing", format!("db;dur={n}"))];
        match (validated, field(request, "x-fail")) {
            (_, "yes") => (StatusCode::SERVICE_UNAVAILABLE, of_the_call, "busy").into_response(),
            (true, _) if !on_304 => (StatusCode::NOT_MODIFIED, of_the_page).into_response(),
            (true, _) => (StatusCode::NOT_MODIFIED, of_the_page, of_the_call).into_response(),
            (false, _) => (of_the_page, of_the_call, "0123456789").into_response(),
        }
    })
}

fn ids(answer: &Answer) -> (Option<&str>, Option<&str>) {
    let value = |name| answer.headers.get(name).map(|value| value.to_str().expect("a printable value"));
    (value("x-request-id"), value("server-timing"))
}

/// Seen to fail with an empty list of fields: a hit, a 304, a range and a HEAD had the id and the timing of the leader.
#[tokio::test]
async fn a_hit_has_the_request_id_of_its_own_client() {
    for guard in on_each_store("per-request-hit") {
        let origin = Origin::new();
        let app = traced(&origin, true).layer(guard.clone());
        let leader = ask(&app, get_with("/page", &[("x-request-id", "leader-1")])).await;
        assert_eq!(ids(&leader), (Some("leader-1"), Some("db;dur=1")));
        at_rest(&guard).await;
        for (fields, method) in [
            (&[][..], Method::GET),
            (&[("if-none-match", "\"a\"")], Method::GET),
            (&[("range", "bytes=0-1")], Method::GET),
            (&[], Method::HEAD),
        ] {
            let hit = ask(&app, request(method.clone(), "/page", fields)).await;
            assert_eq!(hit.cache_status(), CacheStatus::Hit);
            assert_eq!(ids(&hit), (None, None), "{method} {fields:?}");
            let mine = [fields, &[("x-request-id", "mine-77"), ("traceparent", "00-1-2-01")]].concat();
            let hit = ask(&app, request(method.clone(), "/page", &mine)).await;
            assert_eq!(ids(&hit), (Some("mine-77"), None), "{method} {fields:?}");
            assert_eq!(hit.headers.get("traceparent"), None, "the response had none");
        }
        assert_eq!(origin.calls(), 1);
    }
}

/// Seen to fail with an empty list of fields, for a response that is stored and for a server error.
#[tokio::test]
async fn a_coalesced_answer_has_the_id_of_its_own_client() {
    for control in ["", "yes"] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = traced(&origin, true).layer(guard.clone());
        let ids_sent = ["leader", "", "second", ""];
        let asked = waiting(&app, 4, |i| match ids_sent[i] {
            "" => get_with("/page", &[("x-fail", control)]),
            id => get_with("/page", &[("x-fail", control), ("x-request-id", id)]),
        })
        .await;
        origin.open();
        let answers = asked.answers().await;
        let expected = [(Some("leader"), Some("db;dur=1")), (None, None), (Some("second"), None), (None, None)];
        for (i, (answer, expected)) in answers.iter().zip(expected).enumerate() {
            assert_eq!(ids(answer), expected, "{i} of {control}: {}", answer.status);
        }
        assert_eq!(origin.calls(), 1);
    }
}

/// Seen to fail: a hit had the identifiers and the remaining rate of the leader.
#[tokio::test]
async fn a_hit_has_no_field_of_a_platform_or_rate_limit() {
    let fields = [
        "fly-request-id",
        "ratelimit",
        "ratelimit-remaining",
        "ratelimit-reset",
        "x-amz-id-2",
        "x-azure-ref",
        "x-envoy-upstream-service-time",
        "x-ratelimit-remaining",
        "x-ratelimit-reset",
        "x-vercel-id",
    ];
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, move |_, _| (fields.map(|name| (name, "1")), [("ratelimit-limit", "9")], "page"));
    let app = app.layer(guard.clone());
    for is_leader in [true, false] {
        let answer = ask(&app, get("/page")).await;
        for name in fields {
            assert_eq!(answer.headers.contains_key(name), is_leader, "{name}");
        }
        assert_eq!(answer.header("ratelimit-limit"), "9");
        at_rest(&guard).await;
    }
    assert_eq!(origin.calls(), 1);
}

/// The value of a field may be a secret of its request, and nothing reads it.
#[tokio::test]
async fn the_values_of_one_request_are_not_stored() {
    let server = RedisServer::start();
    let (guard, origin) = (StampedeGuard::new(server.client()), Origin::new());
    let app = traced(&origin, true).layer(guard.clone());
    ask(&app, get_with("/page", &[("x-request-id", "leader-1")])).await;
    at_rest(&guard).await;
    let mut redis = server.connection().await;
    let names: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut redis).await.expect("up");
    assert_eq!(names.len(), 1, "{names:?}");
    let stored: Vec<u8> = redis::cmd("GET").arg(&names[0]).query_async(&mut redis).await.expect("up");
    let contains = |text: &[u8]| stored.windows(text.len()).any(|bytes| bytes == text);
    assert!(contains(b"x-request-id") && contains(b"0123456789"));
    assert!(!contains(b"leader-1") && !contains(b"db;dur"));
}

/// A 304 and a response to HEAD freshen the stored head. Its fields of one request stay without a value, whether the
/// newer response has them or not. Seen to fail with an empty list of fields.
#[tokio::test]
async fn a_freshened_response_has_no_id_of_another_request() {
    for (method, on_304) in [(Method::GET, true), (Method::GET, false)] {
        for guard in on_each_store(&format!("per-request-304-{method}-{on_304}")) {
            let origin = Origin::new();
            let app = traced(&origin, on_304).layer(guard.clone());
            ask(&app, get("/page")).await;
            at_rest(&guard).await;
            let reload = [("cache-control", "no-cache"), ("x-request-id", "second")];
            let own = ask(&app, request(method.clone(), "/page", &reload)).await;
            assert_eq!((own.status, ids(&own).0), (200, Some("second")), "{method} {on_304}");
            let timing = on_304.then_some("db;dur=2");
            assert_eq!(ids(&own).1, timing, "{method} {on_304}");
            at_rest(&guard).await;
            let hit = ask(&app, get("/page")).await;
            assert_eq!((hit.cache_status(), ids(&hit)), (CacheStatus::Hit, (None, None)), "{method} {on_304}");
            let hit = ask(&app, get_with("/page", &[("x-request-id", "mine")])).await;
            assert_eq!(ids(&hit), (Some("mine"), None), "{method} {on_304}");
            assert_eq!(origin.calls(), 2);
        }
    }
}

#[tokio::test]
async fn the_operator_sets_the_fields_of_one_request() {
    let of = |fields: &'static [&'static str]| {
        let fields = fields.iter().map(|name| HeaderName::from_static(name));
        StampedeGuard::in_memory().http(HttpOptions::default().per_request_fields(fields))
    };
    for (guard, expected) in
        [(of(&[]), (Some("call-1"), Some("db;dur=1"))), (of(&["x-request-id"]), (None, Some("db;dur=1")))]
    {
        let origin = Origin::new();
        let app = traced(&origin, true).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        assert_eq!(ids(&ask(&app, get("/page")).await), expected);
    }
}
