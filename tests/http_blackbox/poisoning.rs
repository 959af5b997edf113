//! Requests that try to give other clients a wrong response.

use crate::{
    client::{SITE, ask, get, raw, send, status},
    fleet::{Fleet, Proxy},
    site::{Site, field, with, with_status},
    support::Origin,
};
use axum::{body::Body, extract::Request};

#[tokio::test]
async fn the_origin_gets_the_host_as_the_cache_key_spells_it() {
    let origin = Origin::new();
    let site = Site::mirror(&origin).await;
    let proxy = Proxy::alone(site.address).await;
    for host in ["Site.EXAMPLE", "site.example", "SITE.example"] {
        let answer = ask(proxy.address, Request::get("/page").header("host", host)).await;
        assert_eq!(answer.text(), "GET site.example /page");
    }
    assert_eq!(origin.calls(), 1);
    let answer = ask(proxy.address, Request::get("/page").header("host", "site.example:8080")).await;
    assert_eq!((answer.text(), origin.calls()), ("GET site.example:8080 /page", 2));
}

/// RFC 9112 §3.2.2: the target's authority wins, and the origin gets it as `Host`.
#[tokio::test]
async fn the_authority_of_the_target_overrides_the_host() {
    let origin = Origin::new();
    let site = Site::mirror(&origin).await;
    let proxy = Proxy::alone(site.address).await;
    let absolute = |target: &str| format!("GET {target} HTTP/1.1\r\nhost: evil\r\nconnection: close\r\n\r\n");
    let answer = proxy.said(absolute("http://Site.Example/page")).await;
    assert!(status(&answer) == 200 && answer.ends_with("GET site.example /page"), "{answer}");
    let calls = origin.calls();
    assert_eq!(ask(proxy.address, get("/page")).await.text(), "GET site.example /page");
    assert_eq!(origin.calls(), calls, "both forms are one key");
    for target in ["http://user:password@site.example/page", "https://site.example/page", "http:///page", "http://"] {
        let answer = proxy.said(absolute(target)).await;
        assert_eq!(status(&answer), 400, "{target}: {answer}");
    }
    let answer = proxy.said("CONNECT site.example:80 HTTP/1.1\r\nhost: site.example:80\r\nconnection: close\r\n\r\n");
    assert_eq!(status(&answer.await), 501);
}

/// An origin that trusts `X-Forwarded-Host` gets the host of the cache key, whichever client asks first.
#[tokio::test]
async fn forwarded_fields_of_a_client_are_in_no_response() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| {
        let clients = ["x-forwarded-host", "x-forwarded-for", "x-forwarded-proto", "x-real-ip", "forwarded"]
            .into_iter()
            .chain(["x_forwarded_host", "x-original-url", "x-rewrite-url", "x-host"]);
        let body = clients.map(|name| field(&request, name)).collect::<Vec<_>>().join("|");
        with(&[("cache-control", "max-age=60")], body)
    })
    .await;
    let fleet = Fleet::start(2, site.address, "reflected").await;
    let evil = get("/page")
        .header("x-forwarded-host", "evil")
        .header("x-forwarded-host", "evil")
        .header("x-forwarded-for", "6.6.6.6")
        .header("x-forwarded-proto", "gopher")
        .header("x-real-ip", "6.6.6.6")
        .header("forwarded", "for=6.6.6.6;host=evil")
        .header("x_forwarded_host", "evil")
        .header("x-original-url", "/admin")
        .header("x-rewrite-url", "/admin")
        .header("x-host", "evil");
    assert_eq!(ask(fleet.at(0), evil).await.text(), "site.example||http||||||");
    assert_eq!(ask(fleet.at(1), get("/page")).await.text(), "site.example||http||||||");
    assert_eq!(origin.calls(), 1);
}

/// A field that `Connection` lists never reaches the origin, so that no client selects a variant by it.
#[tokio::test]
async fn a_field_listed_in_connection_selects_no_variant() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| {
        let body = format!("<{}>", field(&request, "x-lang"));
        with(&[("cache-control", "max-age=60"), ("vary", "X-Lang")], body)
    })
    .await;
    let fleet = Fleet::start(2, site.address, "dropped").await;
    let evil = get("/page").header("x-lang", "de").header("connection", "X-Lang");
    assert_eq!(ask(fleet.at(0), evil).await.text(), "<>");
    for (lang, body) in [("de", "<de>"), ("", "<>")] {
        assert_eq!(ask(fleet.at(1), get("/page").header("x-lang", lang)).await.text(), body);
    }
}

/// Hop-by-hop fields end at the proxy in both directions, and so does an upgrade.
#[tokio::test]
async fn hop_by_hop_fields_are_not_forwarded() {
    let origin = Origin::new();
    let site = Site::start(&origin, |_, _| {
        with(
            &[("connection", "x-hop"), ("x-hop", "1"), ("keep-alive", "timeout=5"), ("cache-control", "max-age=60")],
            "",
        )
    })
    .await;
    let proxy = Proxy::alone(site.address).await;
    for _ in 0..2 {
        let request = get("/page")
            .header("connection", "keep-alive, Upgrade, X-Mine")
            .header("upgrade", "websocket")
            .header("x-mine", "1")
            .header("te", "trailers")
            .header("keep-alive", "timeout=5")
            .header("proxy-authorization", "basic eA==");
        let answer = ask(proxy.address, request).await;
        assert!(!["x-hop", "keep-alive"].iter().any(|name| answer.headers.contains_key(*name)), "{answer:?}");
        assert_eq!(answer.header("via"), "1.1 stampede-guard");
    }
    let seen = site.seen();
    for name in ["connection", "upgrade", "x-mine", "te", "keep-alive", "proxy-authorization"] {
        assert!(!seen[0].headers.contains_key(name), "{name}: {:?}", seen[0].headers);
    }
    assert_eq!(seen[0].headers["via"], "1.1 stampede-guard");
}

#[tokio::test]
async fn a_response_to_a_get_with_a_body_is_not_shared() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| with(&[("cache-control", "max-age=60")], request.into_body())).await;
    let fleet = Fleet::start(2, site.address, "fat").await;
    for (i, body) in ["evil", "worse"].into_iter().enumerate() {
        let fat = get("/page").body(Body::from(body)).expect("a request");
        assert_eq!(send(fleet.at(i), fat).await.text(), body);
    }
    assert_eq!(ask(fleet.at(0), get("/page")).await.text(), "");
    let fat = get("/page").body(Body::from("evil")).expect("a request");
    assert_eq!(send(fleet.at(0), fat).await.text(), "evil");
    assert_eq!(ask(fleet.at(1), get("/page")).await.text(), "");
}

#[tokio::test]
async fn each_spelling_of_a_path_has_its_own_entry() {
    let origin = Origin::new();
    let site = Site::mirror(&origin).await;
    let proxy = Proxy::alone(site.address).await;
    let spellings = [
        "/a/b",
        "//a/b",
        "/a//b",
        "/a/b/",
        "/a%2fb",
        "/a%2Fb",
        "/%61/b",
        "/a/./b",
        "/a/../b",
        "/a/b?",
        "/a/b?x",
        "/a/b?x=",
        "/a/b?x&y",
        "/a/b?y&x",
        "/a;/b",
        "/A/b",
        "/a\\b",
        "/a/b%00",
        "/a/b%0d%0a",
    ];
    for round in 1..=2 {
        for spelling in spellings {
            let bytes = format!("GET {spelling} HTTP/1.1\r\nhost: {SITE}\r\nconnection: close\r\n\r\n");
            let answer = raw(proxy.address, bytes).await;
            let own = format!("GET {SITE} {spelling}");
            assert!(status(&answer) == 200 && answer.ends_with(&own), "{round}: {spelling}: {answer}");
        }
        assert_eq!(origin.calls(), spellings.len());
    }
}

/// An error that one client provokes is for that client alone, even if the operator stores responses without a lifetime.
/// (A 404, 405, 410, 414 or 501 that no client waits for is stored.)
#[tokio::test]
async fn an_error_that_one_client_provokes_is_not_shared() {
    let origin = Origin::new();
    let site = Site::start(&origin, |request, _| match field(&request, "x-status").parse() {
        Ok(status) => with_status(status, &[], "refused"),
        Err(_) => with(&[], "page"),
    })
    .await;
    let proxy = Proxy::start(site.address, &["--fresh-for", "60s"]).await;
    for status in ["400", "403", "406", "412", "413", "415", "416", "417", "429", "431", "500", "502", "503", "504"] {
        let path = format!("/{status}");
        let provoked = ask(proxy.address, get(&path).header("x-status", status)).await;
        assert_eq!((provoked.status.to_string().as_str(), provoked.text()), (status, "refused"));
        assert_eq!(ask(proxy.address, get(&path)).await.text(), "page", "{status}");
    }
}
