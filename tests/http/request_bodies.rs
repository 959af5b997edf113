//! Requests whose body does not say whether it is empty, as below a layer that wraps bodies.

use crate::{
    kit::{ask, at_rest, get},
    support::Origin,
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    routing::any,
};
use futures_util::{FutureExt, stream};
use http_body::{Body as HttpBody, Frame};
use stampede_guard::{CacheStatus, StampedeGuard};
use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};
use tower::util::MapRequestLayer;

/// A body that forwards neither `is_end_stream` nor `size_hint`, as that of tower-http's `RequestBodyTimeoutLayer`.
struct Wrapped<B>(B);

impl<B: HttpBody + Unpin> HttpBody for Wrapped<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        Pin::new(&mut self.0).poll_frame(cx)
    }
}

/// Returns a site that answers with the request's body and the number of the call. A layer above the guard wraps the
/// body, and removes its length as a layer that decompresses does.
fn echo(guard: &StampedeGuard, origin: &Origin) -> Router {
    let origin = origin.clone();
    let handler = move |body: Bytes| async move {
        let n = origin.call().await;
        format!("{}{n}", String::from_utf8_lossy(&body))
    };
    let wrap = MapRequestLayer::new(|mut request: Request| {
        request.headers_mut().remove("content-length");
        request.map(|body| Body::new(Wrapped(body)))
    });
    Router::new().route("/page", any(handler)).layer(guard.clone()).layer(wrap)
}

/// RFC 9110 §9.3.1: the body is not part of the key. Fails if a request of HTTP/1.1 without `Content-Length` and
/// `Transfer-Encoding` counts as one without a body: it then gets the page.
#[tokio::test]
async fn get_with_a_wrapped_body_bypasses_the_cache_whole() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = echo(&guard, &origin);
    let parts = || stream::iter(["one", "two"].map(Ok::<_, Infallible>));
    let late = async { tokio::task::yield_now().await }.map(|()| Ok::<_, Infallible>("late")).into_stream();
    for (body, echoed) in [
        (Body::empty(), "1"),
        (Body::from("query"), "query2"),
        (Body::from_stream(parts()), "onetwo3"),
        (Body::from_stream(late), "late4"),
    ] {
        let answer = ask(&app, get("/page").map(|_| body)).await;
        assert_eq!((answer.text(), answer.cache_status()), (echoed, CacheStatus::Bypass));
        assert!(answer.header("cache-status").ends_with("detail=request-body"));
        at_rest(&guard).await;
    }
}
