//! What a hit through the HTTP layer allocates beyond the bare service. Allocations are the same on every machine, so
//! they are held to a limit here; times are for `benches/paths.rs`.

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use stampede_guard::{Policy, StampedeGuard};
use std::{convert::Infallible, time::Duration};
use tower::{Layer, Service, ServiceExt, service_fn};

#[tokio::test]
async fn a_hit_allocates_little_more_than_the_bare_service() {
    let ask = [("accept", "application/json")];
    holds_to_the_limit("a hit", page, Method::GET, &ask, "; hit").await;
}

#[tokio::test]
async fn a_hit_of_a_variant_allocates_little_more_than_the_bare_service() {
    let ask = [("accept-language", "en"), ("accept-encoding", "gzip, br")];
    holds_to_the_limit("a variant", varying, Method::GET, &ask, "; hit").await;
}

#[tokio::test]
async fn a_304_allocates_little_more_than_the_bare_service() {
    let ask = [("if-none-match", "\"5f0c3a52\"")];
    holds_to_the_limit("a 304", page, Method::GET, &ask, "; hit").await;
}

#[tokio::test]
async fn a_head_allocates_little_more_than_the_bare_service() {
    holds_to_the_limit("a HEAD", page, Method::HEAD, &[], "; hit").await;
}

#[tokio::test]
async fn a_range_allocates_little_more_than_the_bare_service() {
    holds_to_the_limit("a range", page, Method::GET, &[("range", "bytes=0-99")], "; hit").await;
}

/// Asks once for the whole page, so that it is stored, and counts the second answer: from the call to its last byte,
/// without the making of the request.
async fn holds_to_the_limit(
    what: &str,
    origin: fn() -> Response<Full<Bytes>>,
    method: Method,
    fields: &[(&'static str, &'static str)],
    expected: &str,
) {
    let bare = service_fn(move |_: Request<Full<Bytes>>| async move { Ok::<_, Infallible>(origin()) });
    let guard = StampedeGuard::in_memory().policy(Policy::fresh_for(Duration::from_secs(3600)));
    let guarded = guard.layer(bare);
    let request = |method: &Method, conditions: bool| {
        let whole = |name: &str| conditions || !["if-none-match", "range"].contains(&name);
        let chosen = fields.iter().filter(|(name, _)| whole(name));
        let request = Request::builder().method(method).uri("/report/7").header("host", "example.org");
        let request = chosen.fold(request, |request, (name, value)| request.header(*name, *value));
        request.body(Full::default()).expect("a request")
    };
    let stored = guarded.clone().oneshot(request(&Method::GET, false)).await.expect("infallible");
    stored.into_body().collect().await.expect("the body is whole");
    guard.shutdown().await;
    let answer = guarded.clone().oneshot(request(&method, true)).await.expect("infallible");
    let status = answer.headers()["cache-status"].to_str().expect("ASCII").to_owned();
    assert!(status.contains(expected), "{what}: {status}");

    let without = allocations(bare, request(&method, true));
    let with = allocations(guarded, request(&method, true));
    println!("{what}: {with} allocations, {without} of the bare service");
    assert!(with <= without + MOST, "{what}: {with} allocations, {without} of the bare service");
}

fn allocations<S, B>(service: S, request: Request<Full<Bytes>>) -> u64
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: http_body::Body<Error: std::fmt::Debug>,
{
    let counted = allocation_counter::measure(|| {
        let answered = async { service.oneshot(request).await.expect("infallible").into_body().collect().await };
        answered.now_or_never().expect("it waits for nobody").expect("the body is whole");
    });
    counted.count_total
}

fn page() -> Response<Full<Bytes>> {
    described(Response::builder())
}

fn varying() -> Response<Full<Bytes>> {
    described(Response::builder().header("vary", "accept-language, accept-encoding"))
}

/// A page of 1 KiB under six header fields.
fn described(response: http::response::Builder) -> Response<Full<Bytes>> {
    let fields = [
        ("content-type", "application/json"),
        ("content-length", "1024"),
        ("cache-control", "max-age=3600"),
        ("etag", "\"5f0c3a52\""),
        ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"),
        ("x-served-by", "origin-1"),
    ];
    let response = fields.into_iter().fold(response, |response, (name, value)| response.header(name, value));
    response.body(Full::new(Bytes::from_static(&[b'x'; 1024]))).expect("a response")
}

const MOST: u64 = 10;
