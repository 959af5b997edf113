//! Variants: responses that depend on more than the URL (RFC 9111 §4.1).

use crate::{
    client::{Answer, ask, get, in_time, request},
    fleet::Fleet,
    site::{Site, field, with},
    support::{Origin, herd},
};
use std::sync::Arc;

/// Starts a site whose responses depend on one field and repeat its value.
async fn site(origin: &Origin, name: &'static str) -> Site {
    Site::start(origin, move |request, n| {
        let body = format!("{}={} call {n}", name, field(&request, name));
        with(&[("cache-control", "max-age=60"), ("vary", name)], body)
    })
    .await
}

async fn variant(fleet: &Fleet, i: usize, name: &str, value: &str) -> Answer {
    let request = get("/page");
    let answer = ask(fleet.at(i), if value.is_empty() { request } else { request.header(name, value) }).await;
    assert!(answer.text().starts_with(&format!("{name}={value} ")), "{answer:?}");
    answer
}

#[tokio::test]
async fn each_variant_is_stored_for_all_processes() {
    for (name, values) in [
        ("accept-language", ["de", "en", ""]),
        ("accept-encoding", ["gzip", "br, gzip;q=0.5", ""]),
        ("origin", ["https://a.example", "https://b.example", ""]),
    ] {
        let origin = Origin::new();
        let site = site(&origin, name).await;
        let fleet = Fleet::start(3, site.address, &format!("variants-{name}")).await;
        for round in 0..3 {
            for (i, value) in values.into_iter().enumerate() {
                variant(&fleet, i + round, name, value).await;
            }
        }
        assert_eq!(origin.calls(), 3, "{name}");
    }
}

/// On the first contact it is not known that the responses vary.
#[tokio::test(flavor = "multi_thread")]
async fn a_cold_herd_of_three_languages_costs_three_calls() {
    let origin = Origin::gated();
    let site = site(&origin, "accept-language").await;
    let fleet = Arc::new(Fleet::start(3, site.address, "vary-herd").await);
    let asked = fleet.clone();
    let herd = tokio::spawn(async move {
        herd(90, |i| ask(asked.at(i / 3), get("/page").header("accept-language", LANGUAGES[i % 3]))).await
    });
    origin.arrived(1).await;
    origin.open();
    for (i, answer) in in_time("the herd", herd).await.expect("no panic").iter().enumerate() {
        assert!(answer.text().starts_with(&format!("accept-language={} ", LANGUAGES[i % 3])), "{answer:?}");
    }
    assert_eq!(origin.calls(), 3);
}

/// `*` matches no request, alone or in a list, and in any line.
#[tokio::test]
async fn a_star_in_vary_makes_every_request_a_miss() {
    for (i, vary) in ["*", "Accept, *", " * , Accept"].into_iter().enumerate() {
        let origin = Origin::new();
        let site = Site::start(&origin, move |_, n| {
            with(&[("cache-control", "public, max-age=60"), ("vary", "Accept"), ("vary", vary)], format!("{n}"))
        })
        .await;
        let fleet = Fleet::start(2, site.address, &format!("vary-star-{i}")).await;
        for n in 1..=3 {
            assert_eq!(ask(fleet.at(n), get("/page")).await.text(), n.to_string(), "{vary}");
        }
    }
}

/// Several fields select together, in any line and any case.
#[tokio::test]
async fn every_field_in_vary_selects() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| {
        let body = format!("{}/{}", field(&request, "accept"), field(&request, "accept-language"));
        with(&[("cache-control", "max-age=60"), ("vary", "ACCEPT"), ("vary", "accept-Language,")], body)
    })
    .await;
    let fleet = Fleet::start(2, site.address, "vary-two").await;
    for round in 0..2 {
        for (i, (accept, language)) in [("a", "b"), ("a", "c"), ("d", "b"), ("ab", "")].into_iter().enumerate() {
            let asked = get("/page").header("accept", accept).header("accept-language", language);
            assert_eq!(ask(fleet.at(i + round), asked).await.text(), format!("{accept}/{language}"));
        }
    }
    assert_eq!(origin.calls(), 4);
}

#[tokio::test]
async fn a_head_is_answered_by_its_own_variant() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| {
        let language = field(&request, "accept-language");
        with(&[("cache-control", "max-age=60"), ("vary", "accept-language"), ("content-language", &*language)], "page")
    })
    .await;
    let fleet = Fleet::start(2, site.address, "vary-head").await;
    for (i, language) in LANGUAGES.into_iter().enumerate() {
        ask(fleet.at(i), get("/page").header("accept-language", language)).await;
        crate::fleet::is_stored(&fleet, || get("/page").header("accept-language", language)).await;
    }
    for (i, language) in LANGUAGES.into_iter().enumerate() {
        let answer = ask(fleet.at(i + 1), request("HEAD", "/page").header("accept-language", language)).await;
        assert_eq!((answer.header("content-language"), answer.text()), (language, ""));
    }
    assert_eq!(origin.calls(), 3);
}

/// A successful PUT invalidates the page in every language.
#[tokio::test]
async fn a_put_invalidates_all_variants() {
    let origin = Origin::new();
    let site = site(&origin, "accept-language").await;
    let fleet = Fleet::start(1, site.address, "vary-change").await;
    for language in LANGUAGES {
        variant(&fleet, 0, "accept-language", language).await;
    }
    ask(fleet.at(0), request("PUT", "/page")).await;
    for (i, language) in LANGUAGES.into_iter().enumerate() {
        let answer = variant(&fleet, 0, "accept-language", language).await;
        assert!(answer.text().ends_with(&format!("call {}", i + 4)), "{answer:?}");
    }
}

const LANGUAGES: [&str; 3] = ["de", "en", "fr"];
