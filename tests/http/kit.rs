//! Sites, requests, and answers that are read to their end.

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
use stampede_guard::{BoxError, CacheVerdict, Policy, StampedeGuard};
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

/// A guard over the embedded store and one over Redis, for what has to hold on both. They wait so long that a wait for
/// the wrong thing is a test that fails.
pub(crate) fn on_each_store(name: &str) -> [StampedeGuard; 2] {
    [patient(StampedeGuard::in_memory()), over_redis(name)]
}

/// A guard as another process would have it: only the server is shared.
pub(crate) fn over_redis(name: &str) -> StampedeGuard {
    let guard = StampedeGuard::new(RedisServer::shared().client()).namespace(name);
    patient(guard).op_timeout(Duration::from_secs(5))
}

/// What takes long on a busy machine is neither stale nor given up.
fn patient(guard: StampedeGuard) -> StampedeGuard {
    guard.policy(Policy::fresh_for(Duration::from_secs(600))).wait(Duration::from_secs(600))
}

/// A site of which every path answers `respond(request, n)` to the `n`-th call, once the origin lets that through.
pub(crate) fn site<R: IntoResponse>(
    origin: &Origin,
    respond: impl Fn(&Request, usize) -> R + Clone + Send + Sync + 'static,
) -> Router {
    let origin = origin.clone();
    let handler = move |request: Request| {
        let (origin, respond) = (origin.clone(), respond.clone());
        async move {
            let call = origin.call().await;
            respond(&request, call)
        }
    };
    Router::new().route("/{*path}", any(handler))
}

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

/// An answer that was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) verdict: Option<CacheVerdict>,
}

impl Answer {
    pub(crate) async fn of<B: HttpBody<Data = Bytes, Error: Debug>>(response: Response<B>) -> Self {
        let (parts, body) = response.into_parts();
        let body = body.collect().await.expect("a body that does not break off").to_bytes();
        let verdict = parts.extensions.get().copied();
        Self { status: parts.status.as_u16(), headers: parts.headers, body, verdict }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a printable value"))
    }

    pub(crate) fn verdict(&self) -> CacheVerdict {
        self.verdict.expect("it went through the guard")
    }
}

/// One request, answered. Panics if that takes 10 s.
pub(crate) fn ask<S, B>(service: &S, request: Request) -> BoxFuture<'static, Answer>
where
    S: Service<Request, Response = Response<B>, Error: Debug, Future: Send> + Clone + Send + 'static,
    B: HttpBody<Data = Bytes, Error: Debug> + Send,
{
    let service = service.clone();
    let answer = async move { Answer::of(service.oneshot(request).await.expect("an answer")).await };
    Box::pin(in_time("an answer", answer))
}

/// `n` requests that have been asked and are not answered yet: on one thread and over the embedded store, whoever has
/// been polled once leads or has joined who does.
pub(crate) async fn waiting<S, B>(service: &S, n: usize, request: impl Fn(usize) -> Request) -> Waiting
where
    S: Service<Request, Response = Response<B>, Error: Debug, Future: Send> + Clone + Send + 'static,
    B: HttpBody<Data = Bytes, Error: Debug> + Send,
{
    let mut asked: Vec<_> = (0..n).map(|i| ask(service, request(i))).collect();
    for asked in &mut asked {
        assert!(is_pending(asked).await, "nobody can have been answered");
    }
    Waiting(asked)
}

pub(crate) struct Waiting(Vec<BoxFuture<'static, Answer>>);

impl Waiting {
    /// The answers, the leader's first.
    pub(crate) async fn answers(self) -> Vec<Answer> {
        join_all(self.0).await
    }

    /// The leader's caller goes away.
    pub(crate) fn drop_first(&mut self) {
        drop(self.0.remove(0));
    }
}

/// Polls it once.
pub(crate) async fn is_pending<T>(future: &mut BoxFuture<'static, T>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Nothing is left behind: no flight, no task.
pub(crate) async fn at_rest(guard: &StampedeGuard) {
    in_time("the end of all tasks", guard.shutdown()).await;
    eventually("no flight is left", async || guard.in_flight() == 0).await;
}

pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("{what} takes longer than {BOUND:?}"))
}

/// The origin's end of a body that comes when the test says so. Dropped, the body ends.
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

    /// Whether somebody may still read.
    pub(crate) fn is_read(&self) -> bool {
        !self.0.is_closed()
    }
}

/// Bodies for that many calls, and the taps that fill them. With a size, they say how long they will be.
pub(crate) fn taps(n: usize, size: Option<u64>) -> (Vec<Tap>, impl Fn() -> Body + Clone + Send + Sync + 'static) {
    let (taps, mut bodies): (Vec<_>, Vec<_>) = (0..n)
        .map(|_| {
            let (sender, frames) = mpsc::unbounded_channel();
            (Tap(sender), Body::new(Tapped { frames, size }))
        })
        .unzip();
    bodies.reverse();
    let bodies = Arc::new(Mutex::new(bodies));
    (taps, move || bodies.lock().expect("nobody panics").pop().expect("a body for each call"))
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
