//! Protocols over real sockets: HTTP/2 with prior knowledge (h2c), and WebSocket.

use crate::kit::{Answer, BOUND, at_rest, guard, site};
use axum::{
    Router,
    body::{Body, Bytes},
    extract::{
        WebSocketUpgrade,
        ws::{Message as Served, WebSocket, rejection::WebSocketUpgradeRejection},
    },
    http::{Request, header},
    response::{IntoResponse, Response},
    routing::any,
};
use futures_util::{SinkExt, StreamExt, future::join_all};
use http_body_util::Empty;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
    service::TowerToHyperService,
};
use stampede_guard_support::Origin;
use std::net::SocketAddr;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_tungstenite::{WebSocketStream, client_async, tungstenite::Message};

/// Serves every connection, in HTTP/1.1 or HTTP/2, until the returned `JoinSet` is dropped.
pub(crate) async fn serve(router: Router) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let service = TowerToHyperService::new(router.clone());
            connections.spawn(async move {
                let builder = auto::Builder::new(TokioExecutor::new());
                builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await.ok();
            });
        }
    });
    (address, server)
}

async fn connect(address: SocketAddr) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    sender
}

async fn get(connection: &SendRequest<Empty<Bytes>>, uri: &str) -> Answer {
    let request = Request::get(uri).body(Empty::new()).expect("a request");
    let asked = connection.clone().send_request(request);
    Answer::of(timeout(BOUND, asked).await.expect("in time").expect("an answer")).await
}

#[tokio::test]
async fn http2_streams_share_one_fetch() {
    let (guard, origin) = (guard(), Origin::gated());
    let (address, _server) = serve(site(&origin, |_, n| format!("page {n}")).layer(guard.clone())).await;
    let connection = connect(address).await;
    let uri = "http://example.test/news";
    let asked = tokio::spawn({
        let connection = connection.clone();
        async move { join_all((0..20).map(|_| get(&connection, uri))).await }
    });
    origin.arrived(1).await;
    origin.open();
    let answers = asked.await.expect("no panic");
    assert!(answers.iter().all(|answer| (answer.status, answer.text()) == (200, "page 1")), "{answers:?}");
    at_rest(&guard).await;
    let hit = get(&connect(address).await, uri).await;
    assert!(hit.header("cache-status").contains("; hit"), "{hit:?}");
    assert_eq!(origin.calls(), 1);
}

/// A request has no `Host` field here: `:scheme` and `:authority` arrive as parts of its URI.
#[tokio::test]
async fn http2_scheme_and_authority_are_in_the_key() {
    let (guard, origin) = (guard(), Origin::new());
    let (address, _server) = serve(site(&origin, |_, n| format!("page {n}")).layer(guard.clone())).await;
    let connection = connect(address).await;
    let uris = ["http://a.test/news", "http://b.test/news", "https://a.test/news"];
    for _ in 0..2 {
        for (uri, page) in uris.iter().zip(["page 1", "page 2", "page 3"]) {
            assert_eq!(get(&connection, uri).await.text(), page, "{uri}");
            at_rest(&guard).await;
        }
    }
    assert_eq!(origin.calls(), 3);
}

/// Sends each text back with the number of its socket. Other requests get a page.
fn echo(origin: &Origin) -> Router {
    let origin = origin.clone();
    let upgrade = move |upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>| {
        let origin = origin.clone();
        async move {
            let number = origin.call().await;
            match upgrade {
                Ok(upgrade) => upgrade.on_upgrade(move |socket| answer(socket, number)),
                Err(_) => ([(header::VARY, "upgrade")], format!("page {number}")).into_response(),
            }
        }
    };
    Router::new().route("/ws", any(upgrade))
}

async fn answer(mut socket: WebSocket, number: usize) {
    while let Some(Ok(Served::Text(text))) = socket.recv().await {
        socket.send(Served::text(format!("{number}: {text}"))).await.expect("a client");
    }
}

async fn open(address: SocketAddr) -> WebSocketStream<TcpStream> {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (socket, response) = client_async("ws://example.test/ws", stream).await.expect("an upgrade");
    assert_eq!(response.status(), 101);
    assert!(response.headers()["cache-status"].to_str().is_ok_and(|status| status.contains("fwd=request")));
    socket
}

#[tokio::test]
async fn websocket_upgrades_pass_the_guard() {
    let origin = Origin::new();
    let (address, _server) = serve(echo(&origin).layer(guard())).await;
    let mut sockets = Vec::new();
    for number in 1..=3 {
        let mut socket = open(address).await;
        socket.send(Message::text("hello")).await.expect("a server");
        sockets.push((number, socket));
        origin.arrived(number).await;
    }
    for text in ["hello", "again"] {
        for (number, socket) in &mut sockets {
            let echoed = timeout(BOUND, socket.next()).await.expect("in time").expect("a frame").expect("a message");
            assert_eq!(echoed, Message::text(format!("{number}: {text}")));
            socket.send(Message::text("again")).await.expect("a server");
        }
    }
}

/// Asks for the page on the path where other requests upgrade.
async fn plain(address: SocketAddr) -> Answer {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    let request = Request::get("/ws").header("host", "example.test").body(Empty::<Bytes>::new()).expect("a request");
    let response: Response<_> = sender.send_request(request).await.expect("an answer").map(Body::new);
    Answer::of(response).await
}

/// The page names `Upgrade` in its `Vary`. Seen to fail without: the stored page answers the handshake.
#[tokio::test]
async fn websockets_on_the_path_of_a_page_are_told_apart_by_vary() {
    let (guard, origin) = (guard(), Origin::new());
    let (address, _server) = serve(echo(&origin).layer(guard.clone())).await;
    assert_eq!(plain(address).await.text(), "page 1");
    at_rest(&guard).await;
    open(address).await;
    let hit = plain(address).await;
    assert!(hit.header("cache-status").contains("; hit") && hit.text() == "page 1", "{hit:?}");
    assert_eq!(origin.calls(), 2);
}
