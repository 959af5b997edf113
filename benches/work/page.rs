//! The page that benches serve, and the request for it.

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::BodyExt;
use std::{convert::Infallible, fmt};
use tower::{Service, ServiceExt};

/// A request with the usual fields of a browser.
pub(crate) fn request<B: Default>(target: &str) -> Request<B> {
    Request::get(target)
        .header("host", "example.org")
        .header("user-agent", "bench/1.0")
        .header("accept", "application/json")
        .header("accept-encoding", "gzip, br")
        .header("accept-language", "en")
        .header("x-request-id", "5f0c3a52")
        .body(B::default())
        .expect("a request")
}

/// A response of 1 KiB with six header fields.
pub(crate) fn page<B: From<Bytes>>() -> Response<B> {
    Response::builder()
        .header("content-type", "application/json")
        .header("content-length", PAGE.len())
        .header("cache-control", "max-age=3600")
        .header("etag", "\"5f0c3a52\"")
        .header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("x-served-by", "origin-1")
        .body(Bytes::from_static(PAGE).into())
        .expect("a response")
}

/// Sends the request and returns the body after its last byte has arrived.
pub(crate) async fn answer<S, R, B>(service: S, request: Request<R>) -> Bytes
where
    S: Service<Request<R>, Response = Response<B>, Error = Infallible>,
    B: Body<Error: fmt::Debug>,
{
    let response = service.oneshot(request).await.expect("infallible");
    response.into_body().collect().await.expect("the body is whole").to_bytes()
}

pub(crate) const PAGE: &[u8] = &[b'x'; 1024];
