//! Requests whose body does not say whether it is empty, as below a layer that wraps bodies.

use crate::{
    kit::{ask, at_rest, get, in_time, on_each_store, request},
    support::Origin,
};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{Method, Response},
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
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tower::{Layer, ServiceExt, service_fn, util::MapRequestLayer};

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

/// Seen to fail: each request was forwarded, because its body did not say that it is empty.
#[tokio::test]
async fn request_with_a_wrapped_empty_body_is_cached() {
    for guard in on_each_store("wrapped-bodies") {
        let origin = Origin::new();
        let app = echo(&guard, &origin);
        for (method, status) in
            [(Method::GET, CacheStatus::Miss), (Method::GET, CacheStatus::Hit), (Method::HEAD, CacheStatus::Hit)]
        {
            assert_eq!(ask(&app, request(method, "/page", &[])).await.cache_status(), status);
            at_rest(&guard).await;
        }
        assert_eq!(origin.calls(), 1);
    }
}

/// RFC 9110 §9.3.1: the body is not part of the key. Fails if a request of HTTP/1.1 without `Content-Length` and
/// `Transfer-Encoding` counts as one without a body: it then gets the page.
#[tokio::test]
async fn get_with_a_wrapped_body_bypasses_the_cache_whole() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = echo(&guard, &origin);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    at_rest(&guard).await;
    let parts = || stream::iter(["one", "two"].map(Ok::<_, Infallible>));
    let late = async { tokio::task::yield_now().await }.map(|()| Ok::<_, Infallible>("late")).into_stream();
    let bodies =
        [(Body::from("query"), "query2"), (Body::from_stream(parts()), "onetwo3"), (Body::from_stream(late), "late4")];
    for (body, echoed) in bodies {
        let answer = ask(&app, get("/page").map(|_| body)).await;
        assert_eq!((answer.text(), answer.cache_status()), (echoed, CacheStatus::Bypass));
        at_rest(&guard).await;
    }
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
}

/// The same over HTTP/1.1, where the body comes from the connection.
#[tokio::test]
async fn wrapped_body_of_a_connection_is_told_from_an_empty_one() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let server = tokio::spawn(axum::serve(listener, echo(&guard, &origin)).into_future());
    let ask = async |rest: &str| {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let request = format!("GET /page HTTP/1.1\r\nhost: example.test\r\nconnection: close\r\n{rest}");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        in_time("the answer", stream.read_to_string(&mut answer)).await.expect("read");
        at_rest(&guard).await;
        answer.rsplit("\r\n").next().unwrap_or_default().to_owned()
    };
    assert_eq!(ask("\r\n").await, "1");
    assert_eq!(ask("content-length: 5\r\n\r\nquery").await, "query2");
    assert_eq!(ask("transfer-encoding: chunked\r\n\r\n5\r\nquery\r\n0\r\n\r\n").await, "query3");
    assert_eq!(ask("\r\n").await, "1");
    server.abort();
}

/// A frame that was read from another body than axum's could not be put back.
#[tokio::test]
async fn wrapped_body_of_another_type_bypasses_the_cache() {
    let page = service_fn(|_: Request<Wrapped<Body>>| async { Ok::<_, Infallible>(Response::new(Body::from("page"))) });
    let service = StampedeGuard::in_memory().layer(page);
    let response = service.oneshot(get("/page").map(Wrapped)).await.expect("an answer");
    assert_eq!(response.extensions().get(), Some(&CacheStatus::Bypass));
}
