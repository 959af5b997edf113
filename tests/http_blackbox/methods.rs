//! Methods: which of them share a stored response, and which of them invalidate it.

use crate::{
    client::{Answer, ask, get, in_time, open, request},
    fleet::Fleet,
    site::{Site, Tap, with, with_status},
    support::{Origin, eventually, herd},
};
use axum::{body::Body, http::Method};
use http_body_util::BodyExt;
use std::sync::Arc;

/// Starts a site whose page has 11 bytes. A response to HEAD declares that length, too.
async fn site(origin: &Origin) -> Site {
    Site::start(origin, |request, n| {
        let page = if n == 0 { "written".to_owned() } else { format!("page {n:>6}") };
        let fields = [("cache-control", "max-age=60"), ("content-length", &*page.len().to_string())];
        match *request.method() {
            Method::HEAD => with(&fields, Body::empty()),
            _ => with(&fields, page),
        }
    })
    .await
}

fn is_whole(answer: &Answer) {
    assert_eq!((answer.status, answer.header("content-length"), answer.body.len()), (200, "11", 11), "{answer:?}");
}

fn is_head(answer: &Answer) {
    assert_eq!((answer.status, answer.header("content-length"), answer.body.len()), (200, "11", 0), "{answer:?}");
}

#[tokio::test]
async fn a_head_stores_no_empty_page() {
    let origin = Origin::new();
    let site = site(&origin).await;
    let fleet = Fleet::start(2, site.address, "head-first").await;
    for i in 0..4 {
        is_head(&ask(fleet.at(i), request("HEAD", "/page")).await);
    }
    for i in 0..4 {
        is_whole(&ask(fleet.at(i), get("/page")).await);
        is_head(&ask(fleet.at(i + 1), request("HEAD", "/page")).await);
    }
}

#[tokio::test]
async fn a_stored_page_answers_a_head() {
    let origin = Origin::new();
    let site = site(&origin).await;
    let fleet = Fleet::start(2, site.address, "head-hit").await;
    is_whole(&ask(fleet.at(0), get("/page")).await);
    crate::fleet::is_stored(&fleet, || get("/page")).await;
    for i in 0..2 {
        is_head(&ask(fleet.at(i), request("HEAD", "/page")).await);
    }
    assert_eq!(origin.calls(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mixed_herd_gets_heads_and_pages() {
    let origin = Origin::gated();
    let site = site(&origin).await;
    let fleet = Arc::new(Fleet::start(3, site.address, "head-herd").await);
    let asked = fleet.clone();
    let herd = tokio::spawn(async move {
        herd(90, |i| ask(asked.at(i), request(if i % 2 == 0 { "HEAD" } else { "GET" }, "/page"))).await
    });
    origin.arrived(1).await;
    origin.open();
    for (i, answer) in in_time("the herd", herd).await.expect("no panic").iter().enumerate() {
        if i % 2 == 0 { is_head(answer) } else { is_whole(answer) }
    }
}

/// RFC 9110 §9.1: methods are case-sensitive, and unknown methods go to the origin.
#[tokio::test]
async fn other_methods_go_to_the_origin_each_time() {
    let origin = Origin::new();
    let site = Site::mirror(&origin).await;
    let fleet = Fleet::start(2, site.address, "other-methods").await;
    let methods = ["OPTIONS", "TRACE", "POST", "PUT", "PATCH", "DELETE", "PROPFIND", "get", "head"];
    for method in methods {
        for i in 0..2 {
            let answer = ask(fleet.at(i), request(method, "/page")).await;
            assert_eq!((answer.status, answer.text()), (200, &*format!("{method} site.example /page")));
        }
    }
    assert_eq!(site.seen().len(), 2 * methods.len());
    assert_eq!(ask(fleet.at(0), get("/page")).await.text(), "GET site.example /page");
}

/// RFC 9111 §4.4.
#[tokio::test]
async fn a_successful_unsafe_method_invalidates_in_all_processes() {
    for method in ["POST", "PUT", "PATCH", "DELETE", "FROB"] {
        let origin = Origin::new();
        let site = site(&origin).await;
        let fleet = Fleet::start(2, site.address, &format!("unsafe-{method}")).await;
        for i in 0..2 {
            assert_eq!(ask(fleet.at(i), get("/page")).await.text(), "page      1");
        }
        assert_eq!(ask(fleet.at(0), request(method, "/page")).await.text(), "written");
        assert_eq!(ask(fleet.at(0), get("/page")).await.text(), "page      2", "{method}");
        // The other process learns of it by message.
        let told = async || ask(fleet.at(1), get("/page")).await.text() == "page      2";
        eventually("the message has come", told).await;
        assert_eq!(origin.calls(), 2, "{method}");
    }
}

#[tokio::test]
async fn a_failed_unsafe_method_keeps_the_entry() {
    let origin = Origin::new();
    let site = Site::start(&origin, |_, n| match n {
        0 => with_status(409, &[], "no"),
        n => with(&[("cache-control", "max-age=60")], format!("page {n}")),
    })
    .await;
    let fleet = Fleet::start(2, site.address, "unsafe-fails").await;
    assert_eq!(ask(fleet.at(0), get("/page")).await.text(), "page 1");
    assert_eq!(ask(fleet.at(0), request("POST", "/page")).await.status, 409);
    for i in 0..2 {
        assert_eq!(ask(fleet.at(i), get("/page")).await.text(), "page 1");
    }
}

/// A fetch that began before the change must not be stored: here the origin has not answered yet.
#[tokio::test]
async fn a_fetch_overtaken_by_an_unsafe_method_is_not_stored() {
    let origin = Origin::gated();
    let site = site(&origin).await;
    let fleet = Fleet::start(2, site.address, "overtaken").await;
    let began = tokio::spawn(ask(fleet.at(0), get("/page")));
    origin.arrived(1).await;
    assert_eq!(ask(fleet.at(1), request("PUT", "/page")).await.text(), "written");
    origin.open();
    is_whole(&in_time("the answer", began).await.expect("no panic"));
    assert_eq!(ask(fleet.at(1), get("/page")).await.text(), "page      2");
    // The leader learns of it by message; until then requests may join its flight.
    let told = async || ask(fleet.at(0), get("/page")).await.text() == "page      2";
    eventually("the message has come", told).await;
}

/// As above; here only the body is missing.
#[tokio::test]
async fn a_body_overtaken_by_an_unsafe_method_is_not_stored() {
    let (tap, origin) = (Tap::new(), Origin::new());
    let old = tap.clone();
    let site = Site::start(&origin, move |_, n| match n {
        1 => with(&[("cache-control", "max-age=60"), ("content-length", "8")], old.body()),
        _ => with(&[("cache-control", "max-age=60")], "new"),
    })
    .await;
    let fleet = Fleet::start(2, site.address, "overtaken-body").await;
    let began = open(fleet.at(0), get("/page").body(Body::empty()).expect("a request"));
    let body = in_time("the head", began).await.into_body();
    assert_eq!(ask(fleet.at(1), request("PUT", "/page")).await.text(), "new");
    tap.send(b"old page");
    tap.end();
    let body = in_time("the body", body.collect()).await.expect("a body that does not break off");
    assert_eq!(body.to_bytes(), "old page");
    assert_eq!(ask(fleet.at(1), get("/page")).await.text(), "new");
    let told = async || ask(fleet.at(0), get("/page")).await.text() == "new";
    eventually("the message has come", told).await;
}
