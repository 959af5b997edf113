//! A proxy that is told to stop.

use crate::{
    client::{ask, asked, get, in_time, open},
    fleet::{Fleet, Proxy},
    site::{Site, Tap, with},
    support::{Origin, eventually},
};
use axum::body::Body;
use http_body_util::BodyExt;
use std::net::SocketAddr;
use tokio::net::TcpStream;

async fn takes_no_more(address: SocketAddr) {
    eventually("the proxy takes no more connections", async || TcpStream::connect(address).await.is_err()).await;
}

/// An idle connection does not delay the end.
#[tokio::test]
async fn requests_under_way_are_answered_before_the_end() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "max-age=60")], format!("page {n}"))).await;
    let mut proxies = Fleet::start(2, site.address, "stop").await.into_proxies();
    let (stays, stops) = (proxies.remove(0), proxies.remove(0));
    let _idle = TcpStream::connect(stops.address).await.expect("a connection");
    let under_way = tokio::spawn(ask(stops.address, get("/page")));
    origin.arrived(1).await;
    stops.terminate();
    takes_no_more(stops.address).await;
    origin.open();
    let answer = in_time("the answer", under_way).await.expect("no panic");
    assert_eq!((answer.status, answer.text()), (200, "page 1"));
    stops.ends_well().await;
    assert_eq!(ask(stays.address, get("/page")).await.text(), "page 1");
    assert_eq!(origin.calls(), 1);
}

/// The proxy also waits for a body that the guard no longer handles.
#[tokio::test]
async fn a_stream_is_completed_before_the_end() {
    let tap = Tap::new();
    let old = tap.clone();
    let site = Site::start(&Origin::new(), move |_, _| with(&[("cache-control", "private")], old.body())).await;
    let proxy = Proxy::alone(site.address).await;
    tap.send(b"one, ");
    let stream = open(proxy.address, get("/stream").body(Body::empty()).expect("a request"));
    let mut body = in_time("the head", stream).await.into_body();
    in_time("a chunk", body.frame()).await.expect("a chunk").expect("no error");
    proxy.terminate();
    takes_no_more(proxy.address).await;
    tap.send(b"two");
    tap.end();
    assert_eq!(in_time("the rest", body.collect()).await.expect("it does not break off").to_bytes(), "two");
    proxy.ends_well().await;
}

#[tokio::test]
async fn a_fetch_without_a_caller_is_stored_before_the_end() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "max-age=60")], format!("page {n}"))).await;
    let mut proxies = Fleet::start(2, site.address, "stop-behind").await.into_proxies();
    let (stays, stops) = (proxies.remove(0), proxies.remove(0));
    let leader = asked(stops.address, "/page").await;
    origin.arrived(1).await;
    drop(leader);
    stops.terminate();
    takes_no_more(stops.address).await;
    origin.open();
    stops.ends_well().await;
    assert_eq!(ask(stays.address, get("/page")).await.text(), "page 1");
    assert_eq!(origin.calls(), 1);
}

#[tokio::test]
async fn an_idle_proxy_ends_at_once() {
    let site = Site::start(&Origin::new(), |_, _| "page").await;
    let proxy = Proxy::alone(site.address).await;
    proxy.ends_well().await;
}
