//! The origin: a server whose responses and timing the test decides.

use crate::support::Origin;
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::request::Parts,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

/// An origin server. Dropping it closes the server and its connections.
pub(crate) struct Site {
    pub(crate) address: SocketAddr,
    seen: Arc<Mutex<Vec<Parts>>>,
    _server: JoinSet<()>,
}

impl Site {
    /// Starts a server that answers `respond(request, n)` to the `n`-th call, once the origin lets the call through.
    /// Unsafe methods are neither held nor counted: their `n` is 0.
    pub(crate) async fn start<R: IntoResponse>(
        origin: &Origin,
        respond: impl Fn(Request, usize) -> R + Clone + Send + Sync + 'static,
    ) -> Self {
        Self::slow(origin, Duration::ZERO, respond).await
    }

    /// Starts a server as [`start`](Self::start) does, each of whose calls takes `cost`.
    pub(crate) async fn slow<R: IntoResponse>(
        origin: &Origin,
        cost: Duration,
        respond: impl Fn(Request, usize) -> R + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let (origin, seen) = (origin.clone(), Arc::<Mutex<Vec<Parts>>>::default());
        let heads = seen.clone();
        let handler = move |request: Request| {
            let (origin, respond, heads) = (origin.clone(), respond.clone(), heads.clone());
            async move {
                let (head, body) = request.into_parts();
                heads.lock().expect("no panic").push(head.clone());
                let call = if head.method.is_safe() { origin.work(cost).await } else { 0 };
                respond(Request::from_parts(head, body), call)
            }
        };
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, Router::new().fallback(handler)).await.expect("it serves") });
        Self { address, seen, _server: server }
    }

    /// Starts a site whose responses are shareable and repeat the request line.
    pub(crate) async fn mirror(origin: &Origin) -> Self {
        let answer = |request: Request, _| {
            let asked = format!("{} {} {}", request.method(), field(&request, "host"), request.uri());
            with(&[("cache-control", "max-age=60")], asked)
        };
        Self::start(origin, answer).await
    }

    /// Starts a site with one page that has validators and is fresh for a minute. Its `ETag` is the number of the call.
    pub(crate) async fn with_validators(origin: &Origin) -> Self {
        let answer = |_, n| {
            let etag = format!("\"{n}\"");
            with(&[("cache-control", "max-age=60"), ("etag", &etag), ("last-modified", MODIFIED)], PAGE)
        };
        Self::start(origin, answer).await
    }

    /// Returns the heads of all requests so far, in the order of arrival.
    pub(crate) fn seen(&self) -> Vec<Parts> {
        self.seen.lock().expect("no panic").clone()
    }
}

/// Returns a response with these fields.
pub(crate) fn with(fields: &[(&str, &str)], body: impl Into<Body>) -> Response {
    with_status(200, fields, body)
}

pub(crate) fn with_status(status: u16, fields: &[(&str, &str)], body: impl Into<Body>) -> Response {
    let mut response = Response::builder().status(status);
    for (name, value) in fields {
        response = response.header(*name, *value);
    }
    response.body(body.into()).expect("a response")
}

/// Returns the value of a request field, or an empty string.
pub(crate) fn field(request: &Request, name: &str) -> String {
    request.headers().get(name).map_or("", |value| value.to_str().expect("a printable value")).to_owned()
}

/// The sending half of a body whose chunks the test provides.
#[derive(Clone)]
pub(crate) struct Tap {
    sender: mpsc::UnboundedSender<Chunk>,
    chunks: Arc<Mutex<Option<mpsc::UnboundedReceiver<Chunk>>>>,
}

enum Chunk {
    Data(&'static [u8]),
    BreaksOff,
    Ends,
}

impl Tap {
    pub(crate) fn new() -> Self {
        let (sender, chunks) = mpsc::unbounded_channel();
        Self { sender, chunks: Arc::new(Mutex::new(Some(chunks))) }
    }

    pub(crate) fn send(&self, chunk: &'static [u8]) {
        let _ = self.sender.send(Chunk::Data(chunk));
    }

    pub(crate) fn break_off(&self) {
        let _ = self.sender.send(Chunk::BreaksOff);
    }

    pub(crate) fn end(&self) {
        let _ = self.sender.send(Chunk::Ends);
    }

    /// Returns the body of this tap. Panics on the second call.
    pub(crate) fn body(&self) -> Body {
        let chunks = self.chunks.lock().expect("no panic").take().expect("one body");
        Body::from_stream(stream::unfold(chunks, async |mut chunks| match chunks.recv().await? {
            Chunk::Data(data) => Some((Ok(data), chunks)),
            Chunk::BreaksOff => Some((Err("the disk is on fire"), chunks)),
            Chunk::Ends => None,
        }))
    }
}

/// Returns a body of that many chunks of 64 KiB, each of which is made when it is read.
pub(crate) fn large(chunks: usize) -> Body {
    Body::from_stream(stream::iter((0..chunks).map(|_| Ok::<_, Infallible>(CHUNK))))
}

pub(crate) const CHUNK: &[u8] = &[b'x'; 64 << 10];
pub(crate) const PAGE: &str = "0123456789";
pub(crate) const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
