//! Layers that wrap or recode bodies: compression, decompression, timeouts of request bodies.

use crate::kit::{ask, at_rest, get_with, guard, request, site};
use axum::{
    Router,
    body::{Body, Bytes},
    http::Method,
    routing::post,
};
use stampede_guard_support::Origin;
use std::time::Duration;
use tower::{Layer, ServiceExt};
use tower_http::{
    compression::CompressionLayer,
    decompression::{DecompressionLayer, RequestDecompressionLayer},
    timeout::RequestBodyTimeoutLayer,
};

const GZIP: [(&str, &str); 1] = [("accept-encoding", "gzip")];

fn text() -> String {
    "stampede ".repeat(500)
}

/// Inside of the guard, each coding is fetched, compressed once and stored. Outside, one entry serves all clients, and
/// is compressed again for each of them.
#[tokio::test]
async fn compression_in_either_order_serves_each_coding() {
    for (is_outside, calls) in [(true, 1), (false, 2)] {
        let (guard, origin) = (guard(), Origin::new());
        let router = site(&origin, |_, _| text());
        let site = match is_outside {
            true => router.layer(guard.clone()).layer(CompressionLayer::new()),
            false => router.layer(CompressionLayer::new()).layer(guard.clone()),
        };
        for _ in 0..2 {
            let packed = ask(&site, get_with("/news", &GZIP)).await;
            at_rest(&guard).await;
            assert_eq!((packed.header("content-encoding"), packed.body.len() < 200), ("gzip", true));
            let plain = ask(&site, get_with("/news", &[])).await;
            at_rest(&guard).await;
            assert_eq!((plain.header("content-encoding"), plain.text()), ("", &*text()));
        }
        assert_eq!(origin.calls(), calls);
    }
}

/// Outside of the guard, every hit is decompressed again.
#[tokio::test]
async fn decompression_in_either_order_gives_the_plain_text() {
    for is_outside in [true, false] {
        let (guard, origin) = (guard(), Origin::new());
        let upstream = site(&origin, |_, _| text()).layer(CompressionLayer::new());
        for is_hit in [false, true] {
            let answer = match is_outside {
                true => {
                    ask(&DecompressionLayer::new().layer(guard.layer(upstream.clone())), get_with("/news", &[])).await
                }
                false => {
                    ask(&guard.layer(DecompressionLayer::new().layer(upstream.clone())), get_with("/news", &[])).await
                }
            };
            at_rest(&guard).await;
            assert_eq!((answer.is_hit(), answer.header("content-encoding"), answer.text()), (is_hit, "", &*text()));
        }
        assert_eq!(origin.calls(), 1);
    }
}

/// These layers hide whether a body is empty: from a guard inside of them too, for which each request then has one.
#[tokio::test]
async fn request_body_layers_inside_of_the_guard_keep_it_on() {
    for is_outside in [true, false] {
        let (guard, origin) = (guard(), Origin::new());
        let echo = Router::new().route("/echo", post(|body: Bytes| async { body }));
        let router = site(&origin, |_, n| format!("page {n}")).merge(echo);
        let (unpack, timeout) =
            (RequestDecompressionLayer::new(), RequestBodyTimeoutLayer::new(Duration::from_secs(5)));
        let site = match is_outside {
            true => router.layer(guard.clone()).layer(unpack).layer(timeout),
            false => router.layer(unpack).layer(timeout).layer(guard.clone()),
        };
        for n in 1..=3 {
            let n = if is_outside { n } else { 1 };
            assert_eq!(ask(&site, get_with("/news", &[])).await.text(), format!("page {n}"));
            at_rest(&guard).await;
        }

        let packed = Router::new().route("/", post(|| async { text() })).layer(CompressionLayer::new());
        let packed = packed.oneshot(request(Method::POST, "/", &GZIP, Body::empty())).await.expect("an answer");
        let upload = request(Method::POST, "/echo", &[("content-encoding", "gzip")], packed.into_body());
        assert_eq!(ask(&site, upload).await.text(), text());
    }
}
