//! The layer over real sockets: around the service of a hyper server, and around a hyper client.

use crate::{
    kit::{Answer, at_rest, in_time},
    support::{Origin, herd},
};
use axum::{
    body::{Body, Bytes},
    http::{Request, Response},
};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{body::Incoming, client::conn::http1::handshake, server::conn::http1};
use hyper_util::{
    client::legacy::{Client, Error as ClientError, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use stampede_guard::{CacheStatus, StampedeGuard, http::HttpCache};
use std::{convert::Infallible, net::SocketAddr, time::Duration};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tower::{Layer, Service, ServiceExt, service_fn};

/// Serves every connection with a clone of the service, until the returned `JoinSet` is dropped.
async fn serve<S, B>(service: S) -> (SocketAddr, JoinSet<()>)
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send> + Clone + Send + 'static,
    B: hyper::body::Body<Data: Send, Error: Into<stampede_guard::BoxError>> + Send + 'static,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let service = TowerToHyperService::new(service.clone());
            connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
    (address, server)
}

async fn ask_over_socket(address: SocketAddr) -> Answer {
    let stream = TcpStream::connect(address).await.expect("a connection");
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    let request = Request::get("/page").header("host", "example.test").body(Empty::<Bytes>::new()).expect("a request");
    Answer::of(sender.send_request(request).await.expect("an answer")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_layer_works_in_a_hyper_server() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let calls = origin.clone();
    let service = service_fn(move |_: Request<Incoming>| {
        let calls = calls.clone();
        async move { Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(format!("page {}", calls.call().await)))) }
    });
    let (address, _server) = serve(guard.layer(service)).await;
    let asked = tokio::spawn(async move { herd(50, |_| ask_over_socket(address)).await });
    origin.arrived(1).await;
    origin.open();
    let answers = in_time("the herd", asked).await.expect("no panic");
    assert!(answers.iter().all(|answer| (answer.status, answer.text()) == (200, "page 1")));
    let led = answers.iter().filter(|answer| answer.header("cache-status").ends_with("stored")).count();
    assert_eq!((led, origin.calls()), (1, 1));
    at_rest(&guard).await;
}

type HyperClient = Client<HttpConnector, Empty<Bytes>>;

/// Half of the upstream's responses come in chunks, without a length.
#[tokio::test(flavor = "multi_thread")]
async fn the_layer_works_around_a_hyper_client() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let calls = origin.clone();
    let upstream = service_fn(move |request: Request<Incoming>| {
        let calls = calls.clone();
        async move {
            let text = format!("page {}", calls.call().await);
            let body = match request.uri().path() {
                "/length" => Body::from(text),
                _ => Body::from_stream(stream::once(async { Ok::<_, Infallible>(text) })),
            };
            Ok::<_, Infallible>(Response::new(body))
        }
    });
    let (address, mut server) = serve(upstream).await;
    let client: HyperClient = Client::builder(TokioExecutor::new()).build_http();
    let client: HttpCache<HyperClient> = guard.layer(client);
    let get = move |path: &str| {
        let uri = format!("http://{address}/{path}");
        Request::get(uri).body(Empty::new()).expect("a request")
    };
    for (n, path) in [(1, "length"), (2, "chunks")] {
        let asked = client.clone();
        let asked = tokio::spawn(async move {
            herd(50, |_| {
                let answer = asked.clone().oneshot(get(path));
                async { Answer::of(answer.await.expect("an answer")).await }
            })
            .await
        });
        origin.arrived(n).await;
        origin.release(1);
        let answers = in_time("the herd", asked).await.expect("no panic");
        assert!(answers.iter().all(|answer| answer.text() == format!("page {n}")));
        at_rest(&guard).await;
        let hit = Answer::of(client.clone().oneshot(get(path)).await.expect("an answer")).await;
        assert_eq!((hit.cache_status(), hit.text()), (CacheStatus::Hit, &*format!("page {n}")));
        assert!(!hit.headers.contains_key("transfer-encoding"));
    }
    assert_eq!(origin.calls(), 2);

    server.shutdown().await;
    let gone: Result<_, ClientError> = client.clone().oneshot(get("other")).await;
    gone.expect_err("the client's own error: the upstream has stopped");
    let hit = client.clone().oneshot(get("length")).await.expect("it does not need the upstream");
    assert_eq!(hit.into_body().collect().await.expect("a body").to_bytes(), "page 1");
    at_rest(&guard).await;
}

/// A body without a length that breaks off over a socket. Seen to fail when it handed its lease on without a failure: one
/// call after the other.
#[tokio::test]
async fn a_body_that_breaks_off_costs_a_herd_two_calls() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let calls = origin.clone();
    let upstream = service_fn(move |_: Request<Incoming>| {
        let calls = calls.clone();
        async move {
            calls.call().await;
            let end = async {
                tokio::time::sleep(Duration::from_millis(100)).await; // hyper sends the head meanwhile
                Err(std::io::Error::other("the disk is on fire"))
            };
            let parts = stream::once(async { Ok("some") }).chain(stream::once(end));
            Ok::<_, Infallible>(Response::new(Body::from_stream(parts)))
        }
    });
    let (address, _server) = serve(upstream).await;
    let client: HyperClient = Client::builder(TokioExecutor::new()).build_http();
    let client: HttpCache<HyperClient> = guard.layer(client);
    let asked = (0..100).map(|_| {
        let get = Request::get(format!("http://{address}/page")).body(Empty::new()).expect("a request");
        let answer = client.clone().oneshot(get);
        tokio::spawn(async move {
            let (head, body) = answer.await.expect("a head").into_parts();
            (head.status.as_u16(), body.collect().await.is_err())
        })
    });
    let asked: Vec<_> = asked.collect();
    origin.arrived(1).await; // on one thread, all requests have been polled by then
    origin.open();
    let answers = in_time("the herd", futures_util::future::join_all(asked)).await;
    let mut answers: Vec<_> = answers.into_iter().map(|answer| answer.expect("no panic")).collect();
    answers.sort_unstable();
    assert_eq!(answers, [[(200, true); 2].to_vec(), [(502, false); 98].to_vec()].concat());
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
}
