//! Answers that are too old, and when they are given all the same.

use crate::{
    client::{ask, get},
    fleet::Fleet,
    site::{Site, with, with_status},
    support::{Origin, eventually},
};

/// RFC 5861 §4, in the response's own words: whatever it is that fails, the old answer is given until it is too old.
#[tokio::test]
async fn an_origin_that_fails_leaves_the_old_answer_that_may_be_given() {
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

/// RFC 5861 §3: it is given at once, also while the origin does not answer, and a newer one takes its place behind.
#[tokio::test]
async fn a_stale_answer_is_given_while_a_newer_one_is_fetched() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| {
        with(&[("cache-control", "max-age=1, stale-while-revalidate=60")], format!("page {n}"))
    })
    .await;
    let fleet = Fleet::start(2, site.address, "stale-while-revalidate").await;
    origin.release(1);
    let page = async |i| ask(fleet.at(i), get("/page")).await.text().to_owned();
    assert_eq!(page(0).await, "page 1");
    eventually("it is refreshed", async || page(0).await == "page 1" && origin.calls() == 2).await;
    for i in 0..2 {
        assert_eq!(page(i).await, "page 1");
    }
    origin.open();
    eventually("the newer one is there", async || page(0).await != "page 1").await;
}
