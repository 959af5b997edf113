//! Request directives, and the operator's settings for responses without a lifetime.

use crate::{
    client::{ask, get, request},
    fleet::{Fleet, Proxy},
    site::{MODIFIED, PAGE, Site, with},
    support::{Origin, eventually},
};

/// RFC 9111 §5.2.1.7.
#[tokio::test]
async fn only_if_cached_never_goes_to_the_origin() {
    let origin = Origin::new();
    let site = Site::with_validators(&origin).await;
    let fleet = Fleet::start(2, site.address, "only-if-cached").await;
    let only = |method: &str| request(method, "/page").header("cache-control", "only-if-cached");
    for method in ["GET", "HEAD"] {
        assert_eq!(ask(fleet.at(0), only(method)).await.status, 504, "{method}");
    }
    assert_eq!(origin.calls(), 0);
    ask(fleet.at(0), get("/page")).await;
    crate::fleet::is_stored(&fleet, || get("/page")).await;
    for i in 0..2 {
        assert_eq!(ask(fleet.at(i), only("GET")).await.text(), PAGE);
    }
    assert_eq!(origin.calls(), 1);
}

/// RFC 9111 §5.2.1: the stored response is fresh for a minute, but not good enough for these requests.
#[tokio::test]
async fn a_request_may_demand_a_newer_response() {
    for wish in ["no-cache", "max-age=0", "min-fresh=100", "No-Cache"] {
        let origin = Origin::new();
        let site = Site::with_validators(&origin).await;
        let proxy = Proxy::start(site.address, &["--honour-request-directives"]).await;
        ask(proxy.address, get("/page")).await;
        let answer = ask(proxy.address, get("/page").header("cache-control", wish)).await;
        assert_eq!((answer.text(), origin.calls()), (PAGE, 2), "{wish}");
    }
}

/// RFC 9111 §5.2.1.5.
#[tokio::test]
async fn a_request_with_no_store_stores_nothing() {
    let origin = Origin::new();
    let site = Site::with_validators(&origin).await;
    let proxy = Proxy::start(site.address, &["--honour-request-directives"]).await;
    ask(proxy.address, get("/page").header("cache-control", "no-store")).await;
    assert_eq!(ask(proxy.address, get("/page")).await.header("etag"), "\"2\"");
    assert_eq!(origin.calls(), 2);
}

/// RFC 9111 §5.1 and RFC 9211: a response states its age and its origin.
#[tokio::test]
async fn a_response_states_its_age_and_cache_status() {
    let origin = Origin::new();
    let site = Site::start(&origin, |_, _| with(&[("cache-control", "max-age=60"), ("age", "20")], PAGE)).await;
    let fleet = Fleet::start(2, site.address, "says").await;
    let first = ask(fleet.at(0), get("/page")).await;
    assert!(first.cache().starts_with("stampede-guard; fwd=uri-miss; fwd-status=200"), "{first:?}");
    // A request before the fill is stored joins the flight.
    let stored = async || ask(fleet.at(0), get("/page")).await.cache().starts_with("stampede-guard; hit");
    eventually("it is stored", stored).await;
    for i in 0..2 {
        let hit = ask(fleet.at(i), get("/page")).await;
        assert_eq!(hit.cache(), "stampede-guard; hit");
        let age: u64 = hit.header("age").parse().expect("a number");
        assert!((20..40).contains(&age), "{hit:?}");
        assert_eq!(hit.headers.get_all("age").iter().count(), 1);
    }
}

/// Without `--fresh-for`, a response without a lifetime is not stored.
#[tokio::test]
async fn a_response_without_lifetime_follows_fresh_for() {
    let origin = Origin::new();
    let site = Site::start(&origin, |_, n| with(&[], format!("page {n}"))).await;
    let (alone, fresh) = (Proxy::alone(site.address).await, Proxy::start(site.address, &["--fresh-for", "60s"]).await);
    for n in 1..=2 {
        assert_eq!(ask(alone.address, get("/page")).await.text(), format!("page {n}"));
    }
    for _ in 0..2 {
        assert_eq!(ask(fresh.address, get("/page")).await.text(), "page 3");
    }
}

/// RFC 9111 §4.2.2: a tenth of the time since the last modification, at most a day.
#[tokio::test]
async fn a_response_with_last_modified_follows_heuristic() {
    for (args, calls) in [(&[][..], 1), (&["--heuristic", "0.5"], 1), (&["--heuristic", "0"], 2)] {
        let origin = Origin::new();
        let site = Site::start(&origin, |_, n| with(&[("last-modified", MODIFIED)], format!("page {n}"))).await;
        let proxy = Proxy::start(site.address, args).await;
        for _ in 0..2 {
            assert_eq!(ask(proxy.address, get("/page")).await.status, 200);
        }
        assert_eq!(origin.calls(), calls, "{args:?}");
    }
}
