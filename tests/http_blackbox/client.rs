//! Test clients: one speaks HTTP with one request per connection, the other writes arbitrary bytes.

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, Request, Response, request::Builder},
};
use http_body_util::BodyExt;
use hyper::{body::Incoming, client::conn::http1::handshake};
use hyper_util::rt::TokioIo;
use std::{net::SocketAddr, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time,
};

/// A response whose body was read to its end.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a text")
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a printable value"))
    }

    /// Returns the `Cache-Status` field.
    pub(crate) fn cache(&self) -> &str {
        self.header("cache-status")
    }
}

/// Builds a GET request for the one site, whatever the address of the proxy.
pub(crate) fn get(path: &str) -> Builder {
    Request::get(path).header("host", SITE)
}

/// Builds a request with that method and without a body.
pub(crate) fn request(method: &str, path: &str) -> Builder {
    Request::builder().method(method).uri(path).header("host", SITE)
}

/// Sends a request without a body, and reads the response to its end.
pub(crate) async fn ask(address: SocketAddr, request: Builder) -> Answer {
    send(address, request.body(Body::empty()).expect("a request")).await
}

/// Sends a request, and reads the response to its end.
pub(crate) async fn send(address: SocketAddr, request: Request<Body>) -> Answer {
    let response = in_time("an answer", open(address, request)).await;
    let (parts, body) = response.into_parts();
    let body = in_time("a body", body.collect()).await.expect("a body that does not break off").to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

/// Sends a request, and returns at the head of the response. The connection lives as long as the body.
pub(crate) async fn open(address: SocketAddr, request: Request<Body>) -> Response<Incoming> {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    sender.send_request(request).await.expect("an answer")
}

/// Sends these bytes, and reads until the proxy closes. The proxy may close before it has read all bytes.
pub(crate) async fn raw(address: SocketAddr, bytes: impl AsRef<[u8]>) -> String {
    let talk = async {
        let mut stream = TcpStream::connect(address).await.expect("a connection");
        let _ = stream.write_all(bytes.as_ref()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        String::from_utf8_lossy(&answer).into_owned()
    };
    in_time("the end of the connection", talk).await
}

/// Returns the status of a response as [`raw`] reads it.
pub(crate) fn status(answer: &str) -> u16 {
    let status = answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3));
    status.and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("no status in {answer:?}"))
}

/// Sends a request, and returns the connection without reading the response.
pub(crate) async fn asked(address: SocketAddr, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {SITE}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    stream
}

pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    time::timeout(BOUND, future).await.unwrap_or_else(|_| panic!("{what} takes longer than {BOUND:?}"))
}

pub(crate) const SITE: &str = "site.example";
const BOUND: Duration = Duration::from_secs(15);
