//! Targeted cache-control fields (RFC 9213).

use crate::{
    kit::{ask, at_rest, get, on_each_store, site, waiting},
    support::Origin,
};
use axum::http::HeaderName;
use stampede_guard::{CacheStatus, StampedeGuard, http::HttpOptions};

/// RFC 9213 §2.2. A targeted field is read as `Cache-Control` is, and ignored without a known directive.
#[tokio::test]
async fn a_targeted_field_overrides_cache_control() {
    for (targeted, control, hits) in [
        ("max-age=60", "no-store", true),
        ("max-age=60", "private, max-age=0", true),
        ("no-store", "public, max-age=60", false),
        ("private", "max-age=60", false),
        ("max-age=\"60\"", "no-store", true),
        ("max-age=60 x", "max-age=60", false),
        ("max-age=60 no-store", "max-age=60", false),
        ("!", "max-age=60", true),
        ("unknown", "no-store", false),
        ("", "no-store", false),
    ] {
        for guard in on_each_store(&format!("targeted {targeted} {control}")) {
            let origin = Origin::new();
            let app = site(&origin, move |_, n| {
                ([("cdn-cache-control", targeted), ("cache-control", control)], n.to_string())
            });
            let app = app.layer(guard.clone());
            let first = ask(&app, get("/page")).await;
            assert_eq!((first.header("cdn-cache-control"), first.header("cache-control")), (targeted, control));
            at_rest(&guard).await;
            let next = ask(&app, get("/page")).await;
            assert_eq!(next.cache_status() == CacheStatus::Hit, hits, "`{targeted}` before `{control}`");
            assert_eq!((next.header("cdn-cache-control"), next.header("cache-control")), (targeted, control));
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn an_operator_may_name_the_targeted_fields() {
    let names = ["ours-cache-control", "cdn-cache-control"].map(HeaderName::from_static);
    for (options, hits) in
        [(HttpOptions::default().targeted_fields(names), true), (HttpOptions::default().targeted_fields([]), false)]
    {
        let (guard, origin) = (StampedeGuard::in_memory().http(options), Origin::new());
        let fields =
            [("ours-cache-control", "max-age=60"), ("cdn-cache-control", "no-store"), ("cache-control", "no-store")];
        let app = site(&origin, move |_, n| (fields, n.to_string())).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        assert_eq!(ask(&app, get("/page")).await.cache_status() == CacheStatus::Hit, hits);
    }
}

/// The targeted field also decides whether waiters may share the response.
#[tokio::test]
async fn a_herd_shares_a_response_by_its_targeted_field() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let fields = [("cdn-cache-control", "max-age=60"), ("cache-control", "no-store")];
    let app = site(&origin, move |_, n| (fields, n.to_string())).layer(guard.clone());
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "1"));
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}
