//! Bodies are passed on while they arrive, in both directions.

use crate::{
    client::{ask, get, in_time, open, request, send},
    fleet::{Fleet, Proxy},
    site::{CHUNK, Site, Tap, large, with},
    support::Origin,
};
use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use hyper::body::Incoming;

async fn chunk(body: &mut Incoming) -> Option<Result<Bytes, hyper::Error>> {
    let frame = in_time("a chunk", body.frame()).await?;
    Some(frame.map(|frame| frame.into_data().expect("data")))
}

/// Reads a body to its end and returns its length in bytes.
async fn length(mut body: Incoming) -> usize {
    let mut length = 0;
    while let Some(chunk) = chunk(&mut body).await {
        length += chunk.expect("a body that does not break off").len();
    }
    length
}

#[tokio::test]
async fn an_event_arrives_before_the_next_one_exists() {
    let (tap, origin) = (Tap::new(), Origin::new());
    let events = tap.clone();
    let site = Site::start(&origin, move |_, _| with(&[("content-type", "text/event-stream")], events.body())).await;
    let proxy = Proxy::alone(site.address).await;
    let asked = tokio::spawn(open(proxy.address, get("/events").body(Body::empty()).expect("a request")));
    tap.send(b"data: 1\n\n");
    let mut body = in_time("the head", asked).await.expect("no panic").into_body();
    assert_eq!(chunk(&mut body).await.expect("an event").expect("no error"), "data: 1\n\n");
    tap.send(b"data: 2\n\n");
    assert_eq!(chunk(&mut body).await.expect("an event").expect("no error"), "data: 2\n\n");
}

/// The client sends the second chunk only after the origin has echoed the first one, and never ends the body.
#[tokio::test]
async fn an_upload_reaches_the_origin_while_it_is_sent() {
    let (tap, origin) = (Tap::new(), Origin::new());
    let site = Site::start(&origin, |request, _| with(&[], request.into_body())).await;
    let proxy = Proxy::alone(site.address).await;
    let upload = request("POST", "/echo").body(tap.body()).expect("a request");
    tap.send(b"first");
    let mut body = in_time("the head", open(proxy.address, upload)).await.into_body();
    assert_eq!(chunk(&mut body).await.expect("a chunk").expect("no error"), "first");
    tap.send(b"second");
    assert_eq!(chunk(&mut body).await.expect("a chunk").expect("no error"), "second");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_unstored_body_is_not_held_in_memory() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| match request.method().as_str() {
        "GET" => with(&[("cache-control", "private")], large(CHUNKS)),
        _ => with(&[], request.into_body()),
    })
    .await;
    let proxy = Proxy::alone(site.address).await;
    // The first response allocates the memory that every response needs.
    ask(proxy.address, get("/download")).await;
    let before = proxy.peak_memory();
    for _ in 0..2 {
        let download = open(proxy.address, get("/download").body(Body::empty()).expect("a request")).await;
        assert_eq!(length(download.into_body()).await, CHUNKS * CHUNK.len());
    }
    let upload = request("POST", "/upload").body(large(CHUNKS)).expect("a request");
    assert_eq!(length(open(proxy.address, upload).await.into_body()).await, CHUNKS * CHUNK.len());
    let grown = proxy.peak_memory() - before;
    assert!(grown < 8 << 10, "{grown} KiB more for 72 MiB that were passed on");
}

/// Number of chunks of a large body: 24 MiB.
const CHUNKS: usize = 384;

#[tokio::test]
async fn a_body_over_the_cap_is_passed_on_and_not_stored() {
    let origin = Origin::new();
    let site = Site::start(&origin, |_, _| with(&[("cache-control", "max-age=60")], large(4))).await;
    let proxy = Proxy::start(site.address, &["--max-body", "100000"]).await;
    for _ in 0..2 {
        assert_eq!(ask(proxy.address, get("/page")).await.body.len(), 4 * CHUNK.len());
    }
    assert_eq!(origin.calls(), 2);
}

/// With a declared length the body is too short, and without one it lacks the last chunk. A request after the failure
/// gets a whole body, even if the first fetch has not quite ended.
#[tokio::test]
async fn a_body_that_breaks_off_is_not_stored() {
    for length in [None, Some("9")] {
        let (tap, origin) = (Tap::new(), Origin::new());
        let broken = tap.clone();
        let site = Site::start(&origin, move |_, n| {
            let control = ("cache-control", "max-age=60");
            match (n, length) {
                (1, Some(length)) => with(&[control, ("content-length", length)], broken.body()),
                (1, None) => with(&[control], broken.body()),
                _ => with(&[control], "all of it"),
            }
        })
        .await;
        let fleet = Fleet::start(2, site.address, &format!("breaks-off-{}", length.unwrap_or("chunks"))).await;
        tap.send(b"half");
        let first = open(fleet.at(0), get("/page").body(Body::empty()).expect("a request"));
        let mut body = in_time("the head", first).await.into_body();
        assert_eq!(chunk(&mut body).await.expect("a chunk").expect("no error"), "half");
        tap.break_off();
        assert!(chunk(&mut body).await.is_some_and(|chunk| chunk.is_err()), "the client gets an error");
        for i in 0..2 {
            assert_eq!(ask(fleet.at(i), get("/page")).await.text(), "all of it", "{length:?}");
        }
    }
}

#[tokio::test]
async fn an_upload_of_many_chunks_arrives_whole() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| with(&[], request.into_body())).await;
    let proxy = Proxy::alone(site.address).await;
    for method in ["POST", "PUT", "PATCH", "DELETE"] {
        let sized = request(method, "/echo");
        let answer = send(proxy.address, sized.body(Body::from(CHUNK)).expect("a request")).await;
        assert_eq!((answer.status, answer.body.as_ref()), (200, CHUNK), "{method}");
    }
    assert_eq!(site.seen().iter().filter(|head| head.headers["content-length"] == "65536").count(), 4);
}
