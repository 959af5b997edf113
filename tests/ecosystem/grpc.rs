//! Calls of tonic through the guard, over HTTP/2. They are POST requests with trailers.

use crate::{
    kit::{BOUND, guard},
    sockets::serve,
};
use axum::{Router, extract::Request as HttpRequest, routing::post};
use bytes::{Buf, BufMut};
use futures_util::{future::join, stream, stream::BoxStream};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use stampede_guard_support::Origin;
use std::{future::ready, net::SocketAddr};
use tokio::{sync::mpsc, time::timeout};
use tonic::{
    Code, Request, Response, Status, Streaming,
    body::Body,
    client::Grpc as ClientGrpc,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server::Grpc as ServerGrpc,
};
use tower::service_fn;

/// Messages are texts, as they are.
#[derive(Clone, Copy, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, text: String, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(text.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = buffer.copy_to_bytes(buffer.remaining());
        String::from_utf8(bytes.into()).map(Some).map_err(|_| Status::invalid_argument("no text"))
    }
}

type Texts = BoxStream<'static, Result<String, Status>>;

/// Returns `Say`, which answers one text with another, and `Chat`, which answers each text of a stream until the text
/// `fail`.
fn services(origin: &Origin) -> Router {
    let origin = origin.clone();
    let say = move |request: HttpRequest| {
        let origin = origin.clone();
        let service = service_fn(move |request: Request<String>| {
            let origin = origin.clone();
            async move { Ok(Response::new(format!("{}: {}", origin.call().await, request.into_inner()))) }
        });
        async move { ServerGrpc::new(Text).unary(service, request).await }
    };
    let chat = async |request: HttpRequest| {
        let service = service_fn(|request: Request<Streaming<String>>| {
            ready(Ok(Response::new(Box::pin(echo(request.into_inner())) as Texts)))
        });
        ServerGrpc::new(Text).streaming(service, request).await
    };
    Router::new().route("/echo.Echo/Say", post(say)).route("/echo.Echo/Chat", post(chat))
}

fn echo(texts: Streaming<String>) -> impl futures_util::Stream<Item = Result<String, Status>> + Send {
    stream::try_unfold(texts, async |mut texts| match texts.message().await? {
        Some(text) if text == "fail" => {
            let mut status = Status::out_of_range("as intended");
            status.metadata_mut().insert("x-detail", "in the trailers".parse().expect("a value"));
            Err(status)
        }
        text => Ok(text.map(|text| (text, texts))),
    })
}

type GrpcClient = ClientGrpc<Client<HttpConnector, Body>>;

async fn connect(address: SocketAddr) -> GrpcClient {
    let client = Client::builder(TokioExecutor::new()).http2_only(true).build_http();
    let mut client = ClientGrpc::with_origin(client, format!("http://{address}").parse().expect("a URI"));
    client.ready().await.expect("always ready");
    client
}

async fn say(client: &GrpcClient, text: &str) -> Result<Response<String>, Status> {
    let path = "/echo.Echo/Say".parse().expect("a path");
    let mut client = client.clone();
    let asked = client.unary(Request::new(text.to_owned()), path, Text);
    timeout(BOUND, asked).await.expect("in time")
}

/// Two equal calls are two calls: a POST is neither shared nor stored.
#[tokio::test]
async fn unary_grpc_calls_are_not_coalesced() {
    let origin = Origin::gated();
    let (address, _server) = serve(services(&origin).layer(guard())).await;
    let client = connect(address).await;
    let asked = tokio::spawn({
        let client = client.clone();
        async move { join(say(&client, "hello"), say(&client, "hello")).await }
    });
    origin.arrived(2).await;
    origin.open();
    let (first, second) = asked.await.expect("no panic");
    let mut answers = [first, second].map(|answer| answer.expect("an answer").into_inner());
    answers.sort_unstable();
    assert_eq!(answers, ["1: hello", "2: hello"]);
    let third = say(&client, "hello").await.expect("an answer");
    assert_eq!(third.get_ref(), "3: hello");
    let status = third.metadata().get("cache-status").expect("it passed the guard");
    assert!(status.to_str().is_ok_and(|status| status.contains("fwd=method")), "{status:?}");
    assert_eq!(third.metadata().get("grpc-status").expect("the trailers"), "0");
}

/// Each text is echoed before the next one is sent. The status at the end, with its metadata, comes as trailers.
/// Seen to fail when the body of a forwarded response drops trailers.
#[tokio::test]
async fn streaming_grpc_calls_keep_their_trailers() {
    let (address, _server) = serve(services(&Origin::new()).layer(guard())).await;
    let (sender, receiver) = mpsc::channel(1);
    let texts = stream::unfold(receiver, async |mut receiver: mpsc::Receiver<String>| {
        receiver.recv().await.map(|text| (text, receiver))
    });
    let path = "/echo.Echo/Chat".parse().expect("a path");
    let mut client = connect(address).await;
    let asked = client.streaming(Request::new(texts), path, Text);
    let mut echoed = timeout(BOUND, asked).await.expect("in time").expect("an answer").into_inner();
    for text in ["hello", "again"] {
        sender.send(text.to_owned()).await.expect("a reader");
        let message = timeout(BOUND, echoed.message()).await.expect("in time");
        assert_eq!(message.expect("no failure yet").as_deref(), Some(text));
    }
    sender.send("fail".to_owned()).await.expect("a reader");
    let status = timeout(BOUND, echoed.message()).await.expect("in time").expect_err("the call fails");
    assert_eq!((status.code(), status.message()), (Code::OutOfRange, "as intended"));
    assert_eq!(status.metadata().get("x-detail").expect("the trailers"), "in the trailers");
}
