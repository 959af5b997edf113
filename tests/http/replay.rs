//! Replayed responses equal the responses of the origin, to the byte.

use crate::{
    kit::{Answer, ask, at_rest, get, on_each_store, site, waiting},
    support::Origin,
};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode},
};
use stampede_guard::{CacheStatus, StampedeGuard};

/// Fields that have to be replayed unchanged, in this order if one name has several values.
const FIELDS: [(&str, &[u8]); 9] = [
    ("link", b"</a>; rel=preload"),
    ("x-many", b"1"),
    ("link", b"</b>; rel=preload"),
    ("x-many", b"1"),
    ("x-many", b""),
    ("x-latin", b"caf\xe9 \xff"),
    ("x-quotes", br#"a, "b\"c""#),
    ("etag", b"W/\"1\""),
    ("last-modified", b"not a date"),
];

/// Hop-by-hop fields, one of them because `Connection` lists it.
const HOP_BY_HOP: [(&str, &[u8]); 7] = [
    ("connection", b"keep-alive, X-Hop"),
    ("x-hop", b"1"),
    ("keep-alive", b"timeout=5"),
    ("proxy-authenticate", b"Basic"),
    ("te", b"trailers"),
    ("trailer", b"x-sum"),
    ("upgrade", b"h2c"),
];

fn fields(fields: &[(&'static str, &[u8])]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).expect("a value"));
    }
    headers
}

fn bytes() -> Vec<u8> {
    (0..=255).cycle().take(100_000).collect()
}

fn respond(_: &Request, _: usize) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes()));
    *response.status_mut() = StatusCode::NON_AUTHORITATIVE_INFORMATION;
    *response.headers_mut() = fields(&FIELDS);
    response.headers_mut().extend(fields(&HOP_BY_HOP));
    response
}

fn check(answer: &Answer, cache_status: CacheStatus) {
    assert_eq!((answer.status, answer.cache_status()), (203, cache_status));
    assert!(answer.body == bytes(), "{} bytes", answer.body.len());
    let mut headers = answer.headers.clone();
    assert!(headers.remove("cache-status").is_some());
    assert!(headers.remove("age").is_some() || cache_status != CacheStatus::Hit, "a hit states its age");
    headers.remove("content-length");
    assert!(headers.remove("date").is_some(), "added on arrival");
    assert_eq!(headers, fields(&FIELDS));
}

#[tokio::test]
async fn bytes_and_fields_are_replayed_unchanged() {
    for guard in on_each_store("replay") {
        let origin = Origin::new();
        let app = site(&origin, respond).layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.body, bytes());
        at_rest(&guard).await;
        for _ in 0..2 {
            check(&ask(&app, get("/page")).await, CacheStatus::Hit);
        }
        assert_eq!(origin.calls(), 1);
    }
}

#[tokio::test]
async fn waiters_get_bytes_and_fields_unchanged() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 5, |_| get("/page")).await;
    origin.open();
    for answer in &asked.answers().await[1..] {
        check(answer, CacheStatus::Coalesced);
    }
    at_rest(&guard).await;
}
