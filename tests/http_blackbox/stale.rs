//! Stale responses, and when they are served.

use crate::{
    client::{ask, get},
    fleet::{Fleet, Proxy},
    site::{Site, with, with_status},
    support::{Origin, eventually},
};
use std::cell::Cell;

/// RFC 5861 §4, as the response itself allows it: after any failure, the old response is served until it is too old.
#[tokio::test]
async fn stale_if_error_serves_the_old_page_while_the_origin_fails() {
    let origin = Origin::new();
    let site = Site::start(&origin, |_, n| match n {
        1 => with(&[("cache-control", "max-age=1, stale-if-error=60")], "good"),
        _ => with_status(503, &[], "bad"),
    })
    .await;
    let fleet = Fleet::start(2, site.address, "stale-if-error").await;
    eventually("the origin has failed twice", async || {
        for i in 0..2 {
            let answer = ask(fleet.at(i), get("/page")).await;
            assert_eq!((answer.status, answer.text()), (200, "good"), "{answer:?}");
        }
        origin.calls() >= 3
    })
    .await;
}

/// RFC 5861 §3: the stale response is served at once, even while the origin does not answer. A newer response replaces
/// it in the background.
#[tokio::test]
async fn stale_while_revalidate_serves_the_old_page_at_once() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| {
        with(&[("cache-control", "max-age=1, stale-while-revalidate=60")], format!("page {n}"))
    })
    .await;
    let fleet = Fleet::start(2, site.address, "stale-while-revalidate").await;
    origin.release(1);
    let page = async |i| ask(fleet.at(i), get("/page")).await.text().to_owned();
    assert_eq!(page(0).await, "page 1");
    eventually("the refresh has begun", async || page(0).await == "page 1" && origin.calls() == 2).await;
    for i in 0..2 {
        assert_eq!(page(i).await, "page 1");
    }
    origin.open();
    eventually("the newer page is served", async || page(0).await != "page 1").await;
}

/// RFC 5861 §4, by the default of the proxy. The response itself says nothing.
#[tokio::test]
async fn stale_if_error_is_a_minute_unless_set() {
    for (args, status) in [(&[][..], 200), (&["--stale-if-error", "60"], 200), (&["--stale-if-error", "0"], 503)] {
        let origin = Origin::new();
        let site = Site::start(&origin, |_, n| match n {
            1 => with(&[("cache-control", "max-age=1")], "good"),
            _ => with_status(503, &[], "bad"),
        })
        .await;
        let proxy = Proxy::start(site.address, args).await;
        assert_eq!(ask(proxy.address, get("/page")).await.text(), "good");
        let answer = Cell::new(0);
        eventually("the origin has failed", async || {
            answer.set(ask(proxy.address, get("/page")).await.status);
            origin.calls() >= 2
        })
        .await;
        assert_eq!(answer.get(), status, "{args:?}");
    }
}

/// RFC 9111 §3. The lifetime is the origin's own; without one, an error is not stored.
#[tokio::test]
async fn a_server_error_with_a_lifetime_is_stored() {
    let origin = Origin::new();
    let site =
        Site::start(&origin, |_, n| with_status(503, &[("cache-control", "max-age=60")], format!("bad {n}"))).await;
    let fleet = Fleet::start(2, site.address, "stored-error").await;
    assert_eq!(ask(fleet.at(0), get("/page")).await.text(), "bad 1");
    let hit = async || ask(fleet.at(1), get("/page")).await;
    eventually("it is stored", async || hit().await.cache().starts_with("stampede-guard; hit")).await;
    assert_eq!((hit().await.status, hit().await.text(), origin.calls()), (503, "bad 1", 1));
}
