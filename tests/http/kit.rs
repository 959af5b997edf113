//! Helpers of the HTTP tests: sites, requests, and responses that are read to their end.

use crate::support::{Origin, RedisServer, eventually};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    http::{HeaderMap, Method, Response},
    response::IntoResponse,
    routing::any,
};
use futures_util::future::{BoxFuture, join_all};
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use stampede_guard::{BoxError, CacheStatus, Policy, StampedeGuard, http::HttpOptions};
use std::{
    fmt::Debug,
    future::poll_fn,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};
use tokio::{sync::mpsc, time};
use tower::{Service, ServiceExt};

/// Returns a guard over the embedded store and one over Redis, for rules that hold on both. Their wait timeout is ten
/// minutes, so that a wait for the wrong event fails its test.
pub(crate) fn on_each_store(name: &str) -> [StampedeGuard; 2] {
    [patient(StampedeGuard::in_memory()), over_redis(name)]
}

/// Returns a guard that shares nothing but the Redis server, as a guard of another process does.
pub(crate) fn over_redis(name: &str) -> StampedeGuard {
    let guard = StampedeGuard::new(RedisServer::shared().client()).namespace(name);
    patient(guard).store_timeout(Duration::from_secs(5))
}

/// Returns the guard with request directives followed to the letter, for tests that force a request to the origin.
pub(crate) fn honouring(guard: StampedeGuard) -> StampedeGuard {
    guard.http(HttpOptions::default().honour_request_directives())
}

/// Sets freshness and wait timeout so high that a busy machine neither makes a response stale nor ends a wait.
fn patient(guard: StampedeGuard) -> StampedeGuard {
    guard.policy(Policy::fresh_for(Duration::from_secs(600))).wait_timeout(Duration::from_secs(600))
}

/// Returns a router that answers every path with `respond(request, n)` on the `n`-th call, once the origin lets the
/// call through.
pub(crate) fn site<R: IntoResponse>(
    origin: &Origin,
    respond: impl Fn(&Request, usize) -> R + Send + Sync + 'static,
) -> Router {
    erased_site(origin.clone(), Arc::new(move |request: &Request, call| respond(request, call).into_response()))
}

/// Compiled once for all sites.
fn erased_site(origin: Origin, respond: Arc<Respond>) -> Router {
    let handler = move |request: Request| {
        let (origin, respond) = (origin.clone(), respond.clone());
        async move {
            let call = origin.call().await;
            respond(&request, call)
        }
    };
    Router::new().route("/{*path}", any(handler))
}

type Respond = dyn Fn(&Request, usize) -> axum::response::Response + Send + Sync;

pub(crate) fn get(uri: &str) -> Request {
    request(Method::GET, uri, &[])
}

pub(crate) fn get_with(uri: &str, fields: &[(&str, &str)]) -> Request {
    request(Method::GET, uri, fields)
}

pub(crate) fn request(method: Method, uri: &str, fields: &[(&str, &str)]) -> Request {
    let absolute = uri.split_once("://").and_then(|(_, rest)| rest.split('/').next());
    let host = absolute.unwrap_or("example.test");
    let mut request = http::Request::builder().method(method).uri(uri).header("host", host);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(Body::empty()).expect("a request")
}

/// A response whose body was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) cache_status: Option<CacheStatus>,
}

impl Answer {
    pub(crate) async fn of<B: HttpBody<Data = Bytes, Error: Debug>>(response: Response<B>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body that does not break off").to_bytes();
        let cache_status = parts.extensions.get().copied();
        Self { status: parts.status.as_u16(), headers: parts.headers, body, cache_status }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a printable value"))
    }

    pub(crate) fn cache_status(&self) -> CacheStatus {
        self.cache_status.expect("it went through the guard")
    }
}

/// Sends one request and reads its response to the end. Panics if that takes 10 s.
pub(crate) fn ask<S, B>(service: &S, request: Request) -> BoxFuture<'static, Answer>
where
    S: Service<Request, Response = Response<B>, Error: Debug, Future: Send> + Clone + Send + 'static,
    B: HttpBody<Data = Bytes, Error: Debug> + Send,
{
    let service = service.clone();
    let answer = async move { Answer::of(service.oneshot(request).await.expect("an answer")).await };
    Box::pin(in_time("an answer", answer))
}

/// Starts `n` requests that cannot be answered yet. On one thread and over the embedded store, a request that was
/// polled once is the leader or has joined the leader's flight.
pub(crate) async fn waiting<S, B>(service: &S, n: usize, request: impl Fn(usize) -> Request) -> Waiting
where
    S: Service<Request, Response = Response<B>, Error: Debug, Future: Send> + Clone + Send + 'static,
    B: HttpBody<Data = Bytes, Error: Debug> + Send,
{
    let mut asked: Vec<_> = (0..n).map(|i| ask(service, request(i))).collect();
    for asked in &mut asked {
        assert!(is_pending(asked).await, "no request can be answered yet");
    }
    Waiting(asked)
}

pub(crate) struct Waiting(Vec<BoxFuture<'static, Answer>>);

impl Waiting {
    /// Returns the responses, the leader's first.
    pub(crate) async fn answers(self) -> Vec<Answer> {
        join_all(self.0).await
    }

    /// Drops the leader's caller.
    pub(crate) fn drop_first(&mut self) {
        drop(self.0.remove(0));
    }
}

/// Polls the future once and reports whether it is pending.
pub(crate) async fn is_pending<T>(future: &mut BoxFuture<'static, T>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Waits until the guard has no task and no flight left.
pub(crate) async fn at_rest(guard: &StampedeGuard) {
    in_time("the end of all tasks", async { while guard.drain().await > 0 {} }).await;
    eventually("no flight is left", async || guard.in_flight() == 0).await;
}

pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("{what} takes longer than {BOUND:?}"))
}

/// The sending half of a body whose chunks the test provides. Dropping it ends the body.
pub(crate) struct Tap(mpsc::UnboundedSender<Result<Frame<Bytes>, BoxError>>);

impl Tap {
    pub(crate) fn send(&self, chunk: impl Into<Bytes>) {
        let _ = self.0.send(Ok(Frame::data(chunk.into())));
    }

    pub(crate) fn trailers(&self, trailers: HeaderMap) {
        let _ = self.0.send(Ok(Frame::trailers(trailers)));
    }

    pub(crate) fn break_off(self) {
        let _ = self.0.send(Err("the disk is on fire".into()));
    }

    /// Reports whether the body still has a reader.
    pub(crate) fn is_read(&self) -> bool {
        !self.0.is_closed()
    }
}

/// Returns `n` taps and a function that returns their bodies, one per call. If `size` is given, each body declares that
/// length.
pub(crate) fn taps(n: usize, size: Option<u64>) -> (Vec<Tap>, impl Fn() -> Body + Clone + Send + Sync + 'static) {
    let (taps, mut bodies): (Vec<_>, Vec<_>) = (0..n)
        .map(|_| {
            let (sender, frames) = mpsc::unbounded_channel();
            (Tap(sender), Body::new(Tapped { frames, size }))
        })
        .unzip();
    bodies.reverse();
    let bodies = Arc::new(Mutex::new(bodies));
    (taps, move || bodies.lock().expect("no panic").pop().expect("a body for each call"))
}

struct Tapped {
    frames: mpsc::UnboundedReceiver<Result<Frame<Bytes>, BoxError>>,
    size: Option<u64>,
}

impl HttpBody for Tapped {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.frames.poll_recv(cx)
    }

    fn size_hint(&self) -> SizeHint {
        self.size.map_or_else(SizeHint::new, SizeHint::with_exact)
    }
}

const BOUND: Duration = Duration::from_secs(10);
