//! Malformed requests, and two requests in one. Each is rejected, and the next client is still answered.

use crate::{
    client::{SITE, status},
    fleet::Proxy,
    site::{Site, with},
    support::Origin,
};
use axum::http::request::Parts;

#[tokio::test]
async fn an_invalid_host_is_rejected() {
    let site = Site::mirror(&Origin::new()).await;
    let proxy = Proxy::alone(site.address).await;
    let hosts: [&[u8]; 17] = [
        b"",
        b"host:\r\n",
        b"host: a\r\nhost: a\r\n",
        b"host: a\r\nHOST: b\r\n",
        b"host: a b\r\n",
        b"host: a/b\r\n",
        b"host: a?b\r\n",
        b"host: a#b\r\n",
        b"host: a\\b\r\n",
        b"host: a,b\r\n\r\n",
        b"host: user@a\r\n",
        b"host: http://a\r\n",
        b"host: a:\r\n",
        b"host: a:http\r\n",
        b"host: a:99999\r\n",
        b"host: a\xc3\xa9\r\n",
        b"host: a\x01b\r\n",
    ];
    for host in hosts {
        let request = [b"GET /fine HTTP/1.1\r\nconnection: close\r\n", host, b"\r\n"].concat();
        let shown = String::from_utf8_lossy(host);
        let answer = proxy.said(&request).await;
        // A comma is a sub-delim, which a registered name may contain (RFC 3986 §3.2.2): `a,b` may be a host of its
        // own.
        let expected: &[u16] = if host.contains(&b',') { &[200, 400] } else { &[400] };
        assert!(expected.contains(&status(&answer)), "{shown:?}: {answer}");
    }
    let others =
        site.seen().iter().filter(|head| head.headers["host"] != SITE && head.headers["host"] != "a,b").count();
    assert_eq!(others, 0, "nothing malformed gets to the origin");
    proxy.ends_well().await;
}

#[tokio::test]
async fn control_characters_are_rejected() {
    let site = Site::mirror(&Origin::new()).await;
    let proxy = Proxy::alone(site.address).await;
    let refused: [&[u8]; 11] = [
        b"GET /a\0b HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a\rb HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a\nb HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a\x7fb HTTP/1.1\r\nhost: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nx: a\rb\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nx\0y: a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nx : a\r\n\r\n",
        b"GET /a HTTP/1.1\r\nhost: a\r\nx: a\r\n folded: b\r\n\r\n",
        b"G\0T /a HTTP/1.1\r\nhost: a\r\n\r\n",
    ];
    for request in refused {
        let answer = proxy.said(request).await;
        assert_eq!(status(&answer), 400, "{:?}: {answer}", String::from_utf8_lossy(request));
    }
    assert!(site.seen().iter().all(|head| head.uri.path() == "/fine"), "nothing malformed gets to the origin");
    proxy.ends_well().await;
}

/// Old versions, new versions and bytes that are not HTTP: the proxy owes no response, but must answer the next client.
#[tokio::test]
async fn bytes_other_than_http_1_do_no_harm() {
    let site = Site::mirror(&Origin::new()).await;
    let proxy = Proxy::alone(site.address).await;
    let strange: [&[u8]; 6] = [
        b"GET /\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/3.0\r\nhost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\r\n\r\n\0\0\0\0\r\n\r\n",
        &[0xff; 4096],
    ];
    for bytes in strange {
        let answer = proxy.said(bytes).await;
        assert!(answer.is_empty() || status(&answer) >= 400, "{answer}");
    }
    proxy.ends_well().await;
}

#[tokio::test]
async fn an_overlong_target_is_a_414_and_an_overlong_head_a_431() {
    let site = Site::mirror(&Origin::new()).await;
    let proxy = Proxy::alone(site.address).await;
    let target = "a".repeat(64 << 10);
    let fields: String = (0..200).map(|i| format!("x-{i}: {i}\r\n")).collect();
    let value = "a".repeat(1 << 20);
    for (request, expected) in [
        (format!("GET /{target} HTTP/1.1\r\nhost: a\r\n\r\n"), 414),
        (format!("GET / HTTP/1.1\r\nhost: a\r\n{fields}\r\n"), 431),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx: {value}\r\n\r\n"), 431),
    ] {
        let answer = proxy.said(request).await;
        // A client that is still writing may miss the response, because its connection is reset.
        assert!(answer.is_empty() && expected == 431 || status(&answer) == expected, "{expected}: {answer}");
    }
    proxy.ends_well().await;
}

/// RFC 9112 §6.3: conflicting lengths must not hide a second request in the body of the first one.
#[tokio::test]
async fn no_request_is_smuggled_in_a_body() {
    let site = Site::mirror(&Origin::new()).await;
    let proxy = Proxy::alone(site.address).await;
    let hidden = "GET /smuggled HTTP/1.1\r\nhost: site.example\r\n\r\n";
    let lengths = [
        ("content-length: 4\r\ntransfer-encoding: chunked\r\n", &[200, 400][..]),
        ("transfer-encoding: chunked\r\ncontent-length: 4\r\n", &[200, 400]),
        ("transfer-encoding: chunked\r\ncontent-length: 4\r\nconnection: content-length\r\n", &[200, 400]),
        ("content-length: 4\r\ncontent-length: 5\r\n", &[400]),
        ("content-length: +4\r\n", &[400]),
        ("content-length: 4, 5\r\n", &[400]),
        ("transfer-encoding: identity\r\n", &[400]),
        ("transfer-encoding: chunked, identity\r\n", &[400]),
        ("transfer-encoding: xchunked\r\n", &[400]),
        ("transfer-encoding : chunked\r\n", &[400]),
    ];
    for (lines, expected) in lengths {
        let request = format!("POST /form HTTP/1.1\r\nhost: site.example\r\n{lines}\r\n0\r\n\r\n{hidden}");
        let answer = proxy.said(request).await;
        assert!(expected.contains(&status(&answer)), "{lines}: {answer}");
        assert_eq!(answer.matches("HTTP/1.1 ").count(), 1, "{lines}: {answer}");
    }
    let seen = site.seen();
    let fine = |path: &str| path == "/fine" || path == "/form";
    assert!(seen.iter().all(|head| fine(head.uri.path())), "{seen:?}");
    let both =
        |head: &&Parts| head.headers.contains_key("content-length") && head.headers.contains_key("transfer-encoding");
    assert_eq!(seen.iter().filter(both).count(), 0);
    proxy.ends_well().await;
}

/// A body with malformed chunks never arrives as a whole one.
#[tokio::test]
async fn a_malformed_chunk_ends_the_request() {
    let site = Site::start(&Origin::new(), |request, _| match request.uri().path() {
        "/fine" => with(&[("cache-control", "max-age=60")], "GET site.example /fine"),
        _ => with(&[], request.into_body()),
    })
    .await;
    let proxy = Proxy::alone(site.address).await;
    for chunks in ["zz\r\nhello\r\n0\r\n\r\n", "ffffffffffffffffff\r\n", "-1\r\n\r\n", "5\r\nhelloX0\r\n\r\n"] {
        let request = format!(
            "POST /echo HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n{chunks}"
        );
        let answer = proxy.said(request).await;
        let whole = answer.ends_with("0\r\n\r\n") && status(&answer) == 200;
        assert!(!whole, "{chunks:?}: {answer}");
    }
    proxy.ends_well().await;
}
