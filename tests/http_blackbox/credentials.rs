//! Requests with `Cookie` or `Authorization` share only responses that declare themselves shareable.

use crate::{
    client::{ask, get},
    fleet::{Fleet, Proxy},
    site::{Site, field, with},
    support::Origin,
};
use axum::http::request::Builder;

/// Starts a site that greets each client by its credential.
async fn greeting(origin: &Origin, control: &'static str) -> Site {
    Site::start(origin, move |request, _| {
        let who = field(&request, "cookie") + &field(&request, "authorization");
        with(&[("cache-control", control)][usize::from(control.is_empty())..], format!("hello {who}"))
    })
    .await
}

fn by(credential: &str, who: &str) -> Builder {
    get("/page").header(credential, who)
}

/// RFC 9111 §3.5 lists the directives for `Authorization`. A cookie is a credential too, but `must-revalidate` does not
/// allow sharing for it.
#[tokio::test]
async fn requests_with_credentials_share_public_responses() {
    let cases = [
        ("cookie", "public, max-age=60"),
        ("cookie", "s-maxage=60"),
        ("authorization", "public, max-age=60"),
        ("authorization", "s-maxage=60"),
        ("authorization", "max-age=60, must-revalidate"),
    ];
    for (i, (credential, control)) in cases.into_iter().enumerate() {
        let origin = Origin::new();
        let site = greeting(&origin, control).await;
        let fleet = Fleet::start(2, site.address, &format!("for-everybody-{i}")).await;
        for (i, who) in ["ann", "bob", "cid"].into_iter().enumerate() {
            assert_eq!(ask(fleet.at(i), by(credential, who)).await.text(), "hello ann", "{credential}: {control}");
        }
        assert_eq!(origin.calls(), 1, "{credential}: {control}");
    }
}

/// Users do not get the response to an anonymous client, and an anonymous client does not get theirs.
#[tokio::test]
async fn requests_with_credentials_share_no_other_responses() {
    for credential in ["cookie", "authorization"] {
        for control in ["", "max-age=60", "max-age=60, stale-while-revalidate=60", "max-age=60, immutable"] {
            let site = greeting(&Origin::new(), control).await;
            let proxy = Proxy::start(site.address, &["--fresh-for", "60s"]).await;
            for _ in 0..2 {
                for who in ["ann", "bob"] {
                    let answer = ask(proxy.address, by(credential, who)).await;
                    assert_eq!(answer.text(), format!("hello {who}"), "{credential}: {control}");
                }
                assert_eq!(ask(proxy.address, get("/page")).await.text(), "hello ", "{credential}: {control}");
            }
        }
    }
}

/// RFC 9111 §5.2.2.7: `private` wins, whatever other directives there are.
#[tokio::test]
async fn a_private_response_is_not_shared() {
    for control in [
        "private",
        "PRIVATE, max-age=60",
        "public, private, max-age=60",
        "s-maxage=60, private",
        "no-store, public, s-maxage=60",
    ] {
        let site = Site::start(&Origin::new(), move |request, _| {
            with(&[("cache-control", control)], field(&request, "x-name"))
        })
        .await;
        let proxy = Proxy::start(site.address, &["--fresh-for", "60s"]).await;
        for who in ["ann", "bob", "ann"] {
            assert_eq!(ask(proxy.address, by("x-name", who)).await.text(), who, "{control}");
        }
    }
}
