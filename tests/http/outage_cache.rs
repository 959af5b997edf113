//! The outage cache under HTTP: variants, credentials, and the directives of requests.

use crate::{
    kit::{ask, at_rest, get, get_with, honouring, site},
    support::Origin,
    vary::{languages, speaking},
};
use axum::{Router, extract::Request};
use stampede_guard::{
    CacheStatus, OutageCacheConfig, StampedeGuard,
    testing::{
        FakeRedis, Fault, Node,
        Operation::{Fill, Get, GetOrLease, Invalidate},
    },
};
use std::time::Duration;

/// Returns nodes whose store is silent, and whose store refuses writes.
fn outages() -> [(Node, StampedeGuard); 2] {
    [Fault::Hangs, Fault::Fails].map(|fault| {
        let node = FakeRedis::new().node();
        if matches!(fault, Fault::Hangs) {
            node.always(Get, fault.clone());
        }
        node.always(GetOrLease, fault.clone());
        node.always(Fill, fault);
        let guard = node.guard().outage_cache(OutageCacheConfig::default().ttl(Duration::from_secs(60)));
        (node, guard)
    })
}

fn page(origin: &Origin, control: &'static str) -> Router {
    site(origin, move |_: &Request, n| ([("cache-control", control)], n.to_string()))
}

/// Seen to fail (a call per request) if the outage cache keeps no redirect entries.
#[tokio::test(start_paused = true)]
async fn each_variant_is_fetched_once_during_an_outage() {
    for (_node, guard) in outages() {
        let origin = Origin::new();
        let app = languages(&origin).layer(guard.clone());
        for round in 0..3 {
            for (i, language) in ["de", "en", "fr"].into_iter().enumerate() {
                let answer = ask(&app, speaking(language)).await;
                assert_eq!(answer.text(), format!("{language} {}", i + 1), "round {round}");
                let expected = if round == 0 { CacheStatus::FailOpen } else { CacheStatus::Hit };
                assert_eq!(answer.cache_status(), expected, "round {round}");
            }
        }
        at_rest(&guard).await;
    }
}

/// Seen to fail (the old responses are served) if an invalidation does not end kept results.
#[tokio::test(start_paused = true)]
async fn an_invalidation_ends_all_kept_variants() {
    for fails in [false, true] {
        for (node, guard) in outages() {
            let origin = Origin::new();
            let app = languages(&origin).layer(guard.clone());
            for language in ["de", "en"] {
                ask(&app, speaking(language)).await;
            }
            if fails {
                node.always(Invalidate, Fault::Fails);
            }
            let invalidated = guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await;
            assert_eq!(invalidated.is_err(), fails);
            for (language, expected) in [("de", "de 3"), ("en", "en 4")] {
                assert_eq!(ask(&app, speaking(language)).await.text(), expected);
            }
        }
    }
}

/// Seen to fail (a call per request) without the outage cache.
#[tokio::test(start_paused = true)]
async fn directives_of_requests_hold_for_kept_responses() {
    for (_node, guard) in outages() {
        let (guard, origin) = (honouring(guard), Origin::new());
        let app = page(&origin, "max-age=60").layer(guard.clone());
        let only = || get_with("/page", &[("cache-control", "only-if-cached")]);
        assert_eq!(ask(&app, only()).await.status, 504);
        assert_eq!(ask(&app, get("/page")).await.text(), "1");
        tokio::time::sleep(Duration::from_secs(5)).await;
        let kept = ask(&app, only()).await;
        assert_eq!((kept.text(), kept.header("age")), ("1", "5"));
        assert!(kept.header("cache-status").contains("; hit"), "{kept:?}");
        for (directive, expected) in [("max-age=6", "1"), ("max-age=5", "2"), ("no-cache", "3"), ("no-store", "4")] {
            let answer = ask(&app, get_with("/page", &[("cache-control", directive)])).await;
            assert_eq!(answer.text(), expected, "{directive}");
        }
        at_rest(&guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn responses_to_users_are_not_kept_for_others() {
    for control in ["private", "max-age=60", "no-store", "no-cache"] {
        for (_node, guard) in outages() {
            let origin = Origin::new();
            let app = page(&origin, control).layer(guard.clone());
            let user = |name| get_with("/page", &[("authorization", name)]);
            for (request, expected) in [(user("a"), "1"), (user("b"), "2"), (get("/page"), "3"), (user("a"), "4")] {
                assert_eq!(ask(&app, request).await.text(), expected, "{control}");
                at_rest(&guard).await;
            }
        }
    }
}

/// Each request finds the kept response by way of the kept index, and none calls the origin.
#[tokio::test(start_paused = true)]
async fn concurrent_requests_find_a_kept_variant() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    node.always(GetOrLease, Fault::Fails);
    node.always(Fill, Fault::Fails);
    let guard = node.guard().outage_cache(OutageCacheConfig::default().ttl(Duration::from_secs(60)));
    let app = languages(&origin).layer(guard.clone());
    for _ in 0..2 {
        assert_eq!(ask(&app, speaking("de")).await.text(), "de 1");
    }
    node.always(Get, Fault::ReplyDelayed(Duration::from_millis(1)));
    let asked: Vec<_> = (0..100).map(|_| tokio::spawn(ask(&app, speaking("de")))).collect();
    for asked in asked {
        assert_eq!(asked.await.expect("no panic").text(), "de 1");
    }
    assert_eq!(origin.calls(), 1);
    at_rest(&guard).await;
}
