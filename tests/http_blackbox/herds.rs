//! Many clients at once, over several proxies.

use crate::{
    client::{Answer, ask, get, in_time},
    fleet::Fleet,
    site::{Site, field, with},
    support::{Origin, herd},
};
use axum::http::request::Builder;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// Starts `n` clients, spread over the fleet, each with its own request.
fn ask_all(
    fleet: &Arc<Fleet>,
    n: usize,
    request: impl Fn(usize) -> Builder + Send + Sync + 'static,
) -> JoinHandle<Vec<Answer>> {
    let fleet = fleet.clone();
    tokio::spawn(async move { herd(n, |i| ask(fleet.at(i), request(i))).await })
}

async fn answers(herd: JoinHandle<Vec<Answer>>) -> Vec<Answer> {
    in_time("the herd", herd).await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cold_herd_over_three_proxies_costs_one_call() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "max-age=60")], format!("page {n}"))).await;
    let fleet = Arc::new(Fleet::start(3, site.address, "cold").await);
    let herd = ask_all(&fleet, 200, |_| get("/page"));
    origin.arrived(1).await;
    origin.open();
    for answer in answers(herd).await {
        assert_eq!((answer.status, answer.text()), (200, "page 1"));
    }
    assert_eq!(origin.calls(), 1);
}

/// Checks that each user gets its own name back, in a cold herd and again when something is stored.
async fn never_mix(name: &str, credential: &'static str, fields: &'static [(&'static str, &'static str)]) {
    let origin = Origin::gated();
    let site = Site::start(&origin, move |request, _| {
        let user = field(&request, credential);
        let cookie = format!("session={user}");
        let fields = fields.iter().map(|&(name, value)| (name, if value == "USER" { &*cookie } else { value }));
        with(&fields.collect::<Vec<_>>(), user)
    })
    .await;
    let fleet = Arc::new(Fleet::start(3, site.address, name).await);
    let user = |i: usize| format!("user-{i}");
    let request = move |i| get("/account").header(credential, user(i));
    let cold = ask_all(&fleet, 60, request);
    origin.arrived(1).await;
    origin.open();
    for herd in [cold, ask_all(&fleet, 60, request)] {
        for (i, answer) in answers(herd).await.into_iter().enumerate() {
            assert_eq!((answer.status, answer.text()), (200, &*user(i)), "{answer:?}");
            let cookie = answer.header("set-cookie");
            assert!(cookie.is_empty() || cookie == format!("session={}", user(i)), "{answer:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn private_answers_never_mix() {
    never_mix("private", "x-name", &[("cache-control", "private, max-age=60")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_set_cookies_never_mix() {
    never_mix("set-cookie", "x-name", &[("set-cookie", "USER"), ("cache-control", "max-age=60")]).await;
    never_mix("public-cookie", "x-name", &[("set-cookie", "USER"), ("cache-control", "public, s-maxage=60")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_authorized_users_never_mix() {
    never_mix("authorization", "authorization", &[("cache-control", "max-age=60")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_to_users_with_cookies_never_mix() {
    never_mix("cookie", "cookie", &[("cache-control", "max-age=60")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_vary_by_cookie_never_mix() {
    never_mix("vary-cookie", "cookie", &[("vary", "Cookie"), ("cache-control", "public, max-age=60")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_vary_by_a_field_never_mix() {
    never_mix("vary-field", "x-name", &[("vary", "X-Name"), ("cache-control", "max-age=60")]).await;
}

/// The head of the first response says that it must not be shared. Then all other requests are at the origin at once,
/// although the origin has not released any of them.
#[tokio::test(flavor = "multi_thread")]
async fn a_herd_for_an_uncacheable_page_does_not_queue() {
    let origin = Origin::gated();
    let site = Site::start(&origin, |_, n| with(&[("cache-control", "no-store")], format!("{n}"))).await;
    let fleet = Arc::new(Fleet::start(3, site.address, "no-queue").await);
    let herd = ask_all(&fleet, 90, |_| get("/page"));
    origin.arrived(1).await;
    origin.release(1);
    origin.arrived(90).await;
    assert!(origin.running() >= 89, "{}", origin.running());
    origin.open();
    let mut bodies: Vec<_> = answers(herd).await.iter().map(|answer| answer.text().to_owned()).collect();
    bodies.sort_unstable();
    bodies.dedup();
    assert_eq!(bodies.len(), 90, "an answer for each");
}
