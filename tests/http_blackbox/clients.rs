//! Clients that disconnect, close one half of the connection, or send several requests at once.

use crate::{
    client::{SITE, ask, asked, get, in_time},
    fleet::Fleet,
    site::{Site, with},
    support::Origin,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

#[tokio::test]
async fn a_leading_client_that_disconnects_does_not_lose_the_fill() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "max-age=60")], format!("page {n}"))).await;
    let fleet = Fleet::start(2, site.address, "leader-leaves").await;
    let leader = asked(fleet.at(0), "/page").await;
    origin.arrived(1).await;
    drop(leader);
    let waits = tokio::spawn(ask(fleet.at(1), get("/page")));
    origin.open();
    assert_eq!(in_time("the waiter", waits).await.expect("no panic").text(), "page 1");
    assert_eq!(ask(fleet.at(0), get("/page")).await.text(), "page 1");
    assert_eq!(origin.calls(), 1);
    fleet.ends_well().await;
}

#[tokio::test]
async fn a_waiting_client_that_disconnects_affects_no_other_client() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "max-age=60")], format!("page {n}"))).await;
    let fleet = Fleet::start(2, site.address, "waiter-leaves").await;
    let leads = tokio::spawn(ask(fleet.at(0), get("/page")));
    origin.arrived(1).await;
    for i in 0..10 {
        drop(asked(fleet.at(i), "/page").await);
    }
    let waits = tokio::spawn(ask(fleet.at(1), get("/page")));
    origin.open();
    for answer in [leads, waits] {
        assert_eq!(in_time("an answer", answer).await.expect("no panic").text(), "page 1");
    }
    assert_eq!(origin.calls(), 1);
    fleet.ends_well().await;
}

/// A proxy may take a half-closed connection for a disconnect, as nginx does. The client is answered or cut off, and
/// its fetch is stored for later requests.
#[tokio::test]
async fn a_half_closed_connection_does_not_lose_the_fill() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "max-age=60")], format!("page {n}"))).await;
    let fleet = Fleet::start(2, site.address, "half-closed").await;
    let mut half = asked(fleet.at(0), "/page").await;
    origin.arrived(1).await;
    half.shutdown().await.expect("its half was open");
    origin.open();
    let mut answer = String::new();
    in_time("the other half", half.read_to_string(&mut answer)).await.expect("a clean end");
    assert!(answer.is_empty() || answer.ends_with("page 1"), "{answer}");
    for i in 0..2 {
        assert_eq!(ask(fleet.at(i), get("/page")).await.text(), "page 1");
    }
    assert_eq!(origin.calls(), 1);
    fleet.ends_well().await;
}

/// The client sends three requests on one connection before it reads a response.
#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| {
        with(&[("cache-control", "max-age=60")], format!("<{}>", request.uri().path()))
    })
    .await;
    let fleet = Fleet::start(1, site.address, "pipelined").await;
    let mut stream = asked(fleet.at(0), "/1").await;
    for (path, close) in [("/2", ""), ("/1", "connection: close\r\n")] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: {SITE}\r\n{close}\r\n");
        stream.write_all(request.as_bytes()).await.expect("it reads");
    }
    let mut answers = String::new();
    in_time("the answers", stream.read_to_string(&mut answers)).await.expect("UTF-8");
    let bodies: Vec<_> = answers.split('<').skip(1).map(|rest| &rest[..2]).collect();
    assert_eq!(bodies, ["/1", "/2", "/1"], "{answers}");
    assert_eq!(origin.calls(), 2);
    fleet.ends_well().await;
}
