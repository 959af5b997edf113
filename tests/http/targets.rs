//! Directives for caches of our kind alone (RFC 9213).

use crate::{
    kit::{ask, at_rest, get, on_each_store, site, waiting},
    support::Origin,
};
use axum::http::HeaderName;
use stampede_guard::{CacheVerdict, StampedeGuard, http::Rules};

/// RFC 9213 §2.2, and §2.1 for what is no dictionary.
#[tokio::test]
async fn what_is_said_to_us_comes_before_what_is_said_to_all() {
    for (targeted, control, hits) in [
        ("max-age=60", "no-store", true),
        ("max-age=60", "private, max-age=0", true),
        ("no-store", "public, max-age=60", false),
        ("private", "max-age=60", false),
        ("max-age=\"60\"", "max-age=60", false),
        ("max-age=60;x, ,", "no-store", false),
        ("!", "max-age=60", true),
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
            assert_eq!(next.verdict() == CacheVerdict::Hit, hits, "`{targeted}` before `{control}`");
            assert_eq!((next.header("cdn-cache-control"), next.header("cache-control")), (targeted, control));
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn an_operator_may_name_the_fields_that_are_for_this_cache() {
    let names = ["ours-cache-control", "cdn-cache-control"].map(HeaderName::from_static);
    for (rules, hits) in [(Rules::default().targets(names), true), (Rules::default().targets([]), false)] {
        let (guard, origin) = (StampedeGuard::in_memory().http(rules), Origin::new());
        let fields =
            [("ours-cache-control", "max-age=60"), ("cdn-cache-control", "no-store"), ("cache-control", "no-store")];
        let app = site(&origin, move |_, n| (fields, n.to_string())).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        assert_eq!(ask(&app, get("/page")).await.verdict() == CacheVerdict::Hit, hits);
    }
}

/// It decides who may wait, too.
#[tokio::test]
async fn a_herd_shares_what_only_we_may_keep() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let fields = [("cdn-cache-control", "max-age=60"), ("cache-control", "no-store")];
    let app = site(&origin, move |_, n| (fields, n.to_string())).layer(guard.clone());
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "1"));
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}
