//! Range requests on stored responses (RFC 9110 §14).

use crate::{
    kit::{ask, at_rest, get, get_with, on_each_store, site},
    support::Origin,
    vary::field,
};
use axum::http::StatusCode;
use stampede_guard::{CacheStatus, StampedeGuard};

const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";

#[tokio::test]
async fn a_single_range_is_cut_from_the_stored_response() {
    for guard in on_each_store("ranges") {
        let origin = Origin::new();
        let fields = [("etag", "\"a\""), ("last-modified", MODIFIED), ("cache-control", "max-age=60")];
        let app = site(&origin, move |_, _| (fields, "0123456789")).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        let whole = (200, "0123456789", "");
        for (range, condition, (status, text, place)) in [
            ("bytes=0-0", None, (206, "0", "bytes 0-0/10")),
            ("bytes=8-99", None, (206, "89", "bytes 8-9/10")),
            ("bytes=-3", None, (206, "789", "bytes 7-9/10")),
            ("bytes=5-", None, (206, "56789", "bytes 5-9/10")),
            ("bytes=10-", None, (416, "", "bytes */10")),
            ("bytes=0-0,2-2", None, whole),
            ("lines=0-0", None, whole),
            ("bytes=3-2", None, whole),
            ("bytes=0-0", Some(("if-range", "\"a\"")), (206, "0", "bytes 0-0/10")),
            ("bytes=0-0", Some(("if-range", "\"b\"")), whole),
            ("bytes=0-0", Some(("if-range", "W/\"a\"")), whole),
            ("bytes=0-0", Some(("if-range", "Sun, 06 Nov 1994 08:49:38 GMT")), whole),
            ("bytes=0-0", Some(("if-none-match", "\"a\"")), (304, "", "")),
            ("bytes=0-0", Some(("cache-control", "only-if-cached")), (206, "0", "bytes 0-0/10")),
        ] {
            let fields: Vec<_> = [("range", range)].into_iter().chain(condition).collect();
            let answer = ask(&app, get_with("/page", &fields)).await;
            assert_eq!((answer.status, answer.text()), (status, text), "{fields:?}");
            assert_eq!(
                (answer.header("content-range"), answer.cache_status()),
                (place, CacheStatus::Hit),
                "{fields:?}"
            );
            // `Range` is in no key of a cache in front.
            let control = if status == 416 { "no-store" } else { "max-age=60" };
            assert_eq!(answer.header("cache-control"), control, "{fields:?}");
        }
        assert_eq!(origin.calls(), 1);
    }
}

/// An origin may send a 206 that was not requested.
#[tokio::test]
async fn a_206_is_never_stored_as_the_whole() {
    for guard in on_each_store("ranges-206") {
        let origin = Origin::new();
        let app = site(&origin, |_, n| {
            let fields = [("content-range", "bytes 0-0/7"), ("cache-control", "public, max-age=60")];
            (StatusCode::PARTIAL_CONTENT, fields, n.to_string())
        });
        let app = app.layer(guard.clone());
        for n in ["1", "2"] {
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn a_range_is_cut_from_the_selected_variant() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| {
        ([("vary", "accept-language")], format!("{} page", field(request, "accept-language")))
    });
    let app = app.layer(guard.clone());
    for language in ["de", "en"] {
        ask(&app, get_with("/page", &[("accept-language", language)])).await;
        at_rest(&guard).await;
    }
    for language in ["de", "en"] {
        let part = ask(&app, get_with("/page", &[("accept-language", language), ("range", "bytes=0-1")])).await;
        assert_eq!((part.status, part.text()), (206, language));
    }
    assert_eq!(origin.calls(), 2);
}
