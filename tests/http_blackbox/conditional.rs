//! Conditional and range requests, from clients to the cache and from the cache to the origin.

use crate::{
    client::{Answer, ask, get},
    fleet::{Fleet, is_stored},
    site::{MODIFIED, PAGE, Site, field, with, with_status},
    support::{Origin, eventually},
};
use axum::http::{HeaderValue, request::Builder};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Starts proxies that have `/page` stored.
async fn stored(site: &Site, name: &str) -> Fleet {
    let fleet = Fleet::start(2, site.address, name).await;
    assert_eq!(ask(fleet.at(0), get("/page")).await.text(), PAGE);
    is_stored(&fleet, || get("/page")).await;
    fleet
}

fn is_not_modified(answer: &Answer) {
    assert_eq!((answer.status, answer.header("etag"), answer.text()), (304, "\"1\"", ""), "{answer:?}");
}

#[tokio::test]
async fn conditions_are_answered_from_the_stored_response() {
    let origin = Origin::new();
    let site = Site::with_validators(&origin).await;
    let fleet = stored(&site, "conditions").await;
    let unmodified: [&[(&str, &str)]; 7] = [
        &[("if-none-match", "\"1\"")],
        &[("if-none-match", "W/\"1\"")],
        &[("if-none-match", "\"x\", \"1\"")],
        &[("if-none-match", "*")],
        &[("if-modified-since", MODIFIED)],
        &[("if-modified-since", LATER)],
        // RFC 9110 §13.1.3: `If-Modified-Since` is ignored if there is an `If-None-Match`.
        &[("if-none-match", "\"1\""), ("if-modified-since", EARLIER)],
    ];
    let modified: [&[(&str, &str)]; 5] = [
        &[("if-none-match", "\"2\"")],
        &[("if-modified-since", EARLIER)],
        &[("if-modified-since", "yesterday")],
        &[("if-none-match", "\"2\""), ("if-modified-since", LATER)],
        &[],
    ];
    for (i, fields) in unmodified.into_iter().enumerate() {
        is_not_modified(&ask(fleet.at(i), with_fields(get("/page"), fields)).await);
    }
    for (i, fields) in modified.into_iter().enumerate() {
        let answer = ask(fleet.at(i), with_fields(get("/page"), fields)).await;
        assert_eq!((answer.status, answer.text()), (200, PAGE), "{fields:?}");
    }
    assert_eq!(origin.calls(), 1);
}

/// The origin would answer the first client with a 304, which is no response for the second client.
#[tokio::test]
async fn a_condition_on_a_miss_stores_a_full_page() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| match &*field(&request, "if-none-match") {
        "\"1\"" => with_status(304, &[("etag", "\"1\"")], ""),
        _ => with(&[("cache-control", "max-age=60"), ("etag", "\"1\"")], PAGE),
    })
    .await;
    let fleet = Fleet::start(2, site.address, "cold-condition").await;
    let answer = ask(fleet.at(0), get("/page").header("if-none-match", "\"1\"")).await;
    assert!(answer.status == 304 || answer.text() == PAGE, "{answer:?}");
    for i in 0..2 {
        assert_eq!(ask(fleet.at(i), get("/page")).await.text(), PAGE);
        is_not_modified(&ask(fleet.at(i), get("/page").header("if-none-match", "\"1\"")).await);
    }
}

/// RFC 9110 §14.2: a range request gets exactly that range, or the whole page.
#[tokio::test]
async fn a_range_request_gets_its_range_or_the_whole_page() {
    let origin = Origin::new();
    let site = Site::with_validators(&origin).await;
    let fleet = stored(&site, "ranges").await;
    let ranges = [
        ("bytes=0-3", Some("0-3")),
        ("bytes=4-4", Some("4-4")),
        ("bytes=6-", Some("6-9")),
        ("bytes=-3", Some("7-9")),
        ("bytes=0-99", Some("0-9")),
        ("bytes=0-1, 3-4", None),
        ("bytes=3-2", None),
        ("lines=0-1", None),
    ];
    let mut parts = 0;
    for (i, (range, part)) in ranges.into_iter().enumerate() {
        let answer = ask(fleet.at(i), get("/page").header("range", range)).await;
        match (answer.status, part) {
            (200, _) => assert_eq!(answer.text(), PAGE, "{range}"),
            (206, Some(part)) => {
                let (first, last) = part.split_once('-').expect("two ends");
                let (first, last): (usize, usize) = (first.parse().expect("one"), last.parse().expect("the other"));
                assert_eq!(answer.text(), &PAGE[first..=last], "{range}");
                assert_eq!(answer.header("content-range"), format!("bytes {part}/10"));
                parts += 1;
            }
            other => panic!("{range}: {other:?} {answer:?}"),
        }
    }
    assert!(parts >= 4, "single ranges get a 206");
    let beyond = ask(fleet.at(0), get("/page").header("range", "bytes=10-")).await;
    assert!(
        beyond.status == 416 && beyond.header("content-range") == "bytes */10" || beyond.text() == PAGE,
        "{beyond:?}"
    );
    assert_eq!(origin.calls(), 1);
}

/// RFC 9110 §13.1.5.
#[tokio::test]
async fn if_range_with_another_version_gets_the_whole_page() {
    let origin = Origin::new();
    let site = Site::with_validators(&origin).await;
    let fleet = stored(&site, "if-range").await;
    for (condition, status) in [("\"1\"", 206), (MODIFIED, 206), ("\"2\"", 200), ("W/\"1\"", 200), (EARLIER, 200)] {
        let answer = ask(fleet.at(1), get("/page").header("range", "bytes=0-3").header("if-range", condition)).await;
        let expected = if status == 206 { &PAGE[..4] } else { PAGE };
        // `Last-Modified` is a strong validator only if it is known to be old enough (RFC 9110 §8.8.2.2).
        let may_be_weak = condition == MODIFIED && (answer.status, answer.text()) == (200, PAGE);
        assert!(may_be_weak || (answer.status, answer.text()) == (status, expected), "{condition}: {answer:?}");
    }
    assert_eq!(origin.calls(), 1);
}

/// RFC 9111 §3.3: a part must not be served as the whole.
#[tokio::test]
async fn a_206_from_the_origin_is_not_stored() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| match &*field(&request, "range") {
        "" => with(&[("cache-control", "max-age=60")], PAGE),
        _ => with_status(206, &[("cache-control", "max-age=60"), ("content-range", "bytes 0-3/10")], &PAGE[..4]),
    })
    .await;
    let fleet = Fleet::start(2, site.address, "part").await;
    for i in 0..2 {
        let part = ask(fleet.at(i), get("/page").header("range", "bytes=0-3")).await;
        assert!(matches!((part.status, part.text()), (206, "0123") | (200, PAGE)), "{part:?}");
        let whole = ask(fleet.at(i), get("/page")).await;
        assert_eq!((whole.status, whole.text()), (200, PAGE));
    }
}

/// RFC 9111 §4.3: `no-cache` requires a validation before each use. The origin's 304 freshens the stored response
/// (§3.2, §4.3.4).
#[tokio::test]
async fn a_no_cache_page_is_sent_by_the_origin_once() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, n| {
        let revision = n.to_string();
        let fields = [("cache-control", "no-cache"), ("etag", "\"1\""), ("x-revision", &*revision)];
        match &*field(&request, "if-none-match") {
            "\"1\"" => with_status(304, &fields, ""),
            "" => with(&fields, PAGE),
            other => with_status(500, &[], other.to_owned()),
        }
    })
    .await;
    let fleet = Fleet::start(2, site.address, "validate").await;
    for n in 1..=4 {
        // A response is served before it is stored. Until it is, another process waits for its leader, and gets it too.
        eventually("the response before is stored", async || {
            let answer = ask(fleet.at(n), get("/page")).await;
            assert_eq!((answer.status, answer.text()), (200, PAGE), "{answer:?}");
            answer.header("x-revision") == n.to_string()
        })
        .await;
    }
    let bodies = site.seen().iter().filter(|head| !head.headers.contains_key("if-none-match")).count();
    assert_eq!((bodies, origin.calls()), (1, 4));
}

/// A response is served before it is stored. If the next request finds the page before it in the store, or none, it is
/// right not to name the last page. So each round waits until the other process has found the last page.
#[tokio::test]
async fn a_changed_page_replaces_the_stored_one() {
    let origin = Origin::new();
    let version = Arc::new(AtomicUsize::new(0));
    let current = version.clone();
    let site = Site::start(&origin, move |_, _| {
        let n = current.load(Relaxed);
        with(&[("cache-control", "no-cache"), ("etag", &*format!("\"{n}\""))], format!("page {n}"))
    })
    .await;
    let fleet = Fleet::start(2, site.address, "changed").await;
    let validated = || site.seen().last().and_then(|head| head.headers.get("if-none-match").cloned());
    for n in 1..=4 {
        let (before, etag) = (format!("\"{}\"", n - 1), format!("\"{n}\""));
        version.store(n, Relaxed);
        let answer = ask(fleet.at(n), get("/page")).await;
        assert_eq!((answer.text(), answer.header("etag")), (&*format!("page {n}"), &*etag));
        assert_eq!(validated(), (n > 1).then(|| HeaderValue::try_from(before).expect("a value")));
        eventually("the page is stored", async || {
            assert_eq!(ask(fleet.at(n + 1), get("/page")).await.text(), format!("page {n}"));
            validated().is_some_and(|validated| validated == etag)
        })
        .await;
    }
}

fn with_fields(request: Builder, fields: &[(&str, &str)]) -> Builder {
    fields.iter().fold(request, |request, (name, value)| request.header(*name, *value))
}

const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";
