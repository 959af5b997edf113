//! The life of a Vary index: as long as that of the longest variant that it leads to.

use crate::{
    kit::{ask, at_rest, get_with, over_redis, site},
    support::{Origin, RedisServer, eventually, herd},
    vary::{field, speaking},
};
use axum::{Router, body::Body, extract::Request, http::Uri, routing};
use futures_util::stream;
use redis::aio::MultiplexedConnection;
use stampede_guard::{CacheStatus, Policy, StampedeGuard, testing::FakeRedis};
use std::{convert::Infallible, time::Duration};
use tokio::time;

/// Returns a site whose English pages are fresh for a minute, and all others for a second. English varies by the tier
/// as well.
fn short_and_long(origin: &Origin) -> Router {
    site(origin, |request: &Request, n| {
        let (language, tier) = (field(request, "accept-language"), field(request, "x-tier"));
        let (vary, control) = match language {
            "en" => ("accept-language, x-tier", "public, max-age=60"),
            _ => ("accept-language", "public, max-age=1"),
        };
        ([("vary", vary), ("cache-control", control)], format!("{language} {tier} {n}"))
    })
}

fn english(tier: &str) -> Request {
    get_with("/page", &[("accept-language", "en"), ("x-tier", tier)])
}

async fn size(redis: &mut MultiplexedConnection) -> usize {
    redis::cmd("DBSIZE").query_async(redis).await.expect("up")
}

async fn names(redis: &mut MultiplexedConnection) -> Vec<String> {
    redis::cmd("KEYS").arg("*").query_async(redis).await.expect("up")
}

/// Returns a policy whose entries end with their freshness.
fn never_stale() -> Policy {
    Policy::default().stale_if_error(Duration::ZERO)
}

/// Seen to fail when an index lived for at least ten minutes: 20 keys were left.
#[tokio::test]
async fn vary_indexes_do_not_outlive_their_variants() {
    let (server, origin) = (RedisServer::start(), Origin::new());
    let guard = StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(5)).policy(never_stale());
    let app = short_and_long(&origin).layer(guard.clone());
    herd(20, |i| ask(&app, get_with(&format!("/{i}"), &[("accept-language", "de")]))).await;
    at_rest(&guard).await;
    let mut redis = server.connection().await;
    let mut names = names(&mut redis).await;
    names.retain(|name| name.contains(":v3.") && name.ends_with(".get-http"));
    assert_eq!(names.len(), 20, "the indexes");
    eventually("no key is left", async || size(&mut redis.clone()).await == 0).await;
}

/// Both processes follow the same indexes, one of them from memory. Seen to fail without the extension of a fill: the
/// first index had two seconds left.
#[tokio::test]
async fn a_later_variant_keeps_every_vary_index_on_its_way() {
    let (server, origin) = (RedisServer::start(), Origin::new());
    let guards = [(); 2].map(|()| StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(5)));
    let guards = guards.map(|guard| guard.policy(never_stale()));
    let apps = guards.clone().map(|guard| short_and_long(&origin).layer(guard));
    for (i, request) in [speaking("de"), speaking("de"), english("gold"), english("tin")].into_iter().enumerate() {
        ask(&apps[i % 2], request).await;
        at_rest(&guards[i % 2]).await;
    }
    let mut redis = server.connection().await;
    // Two indexes and two English pages; the German page ends.
    eventually("the German page is gone", async || size(&mut redis.clone()).await == 4).await;
    for name in names(&mut redis).await {
        let left: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut redis).await.expect("up");
        assert!(left > 30_000, "{name} has {left} ms left");
    }
    for app in &apps {
        for tier in ["gold", "tin"] {
            assert_eq!(ask(app, english(tier)).await.cache_status(), CacheStatus::Hit, "{tier}");
        }
    }
}

/// The fill of a variant extends the index that its request has followed, but does not restore it.
#[tokio::test]
async fn a_fill_does_not_restore_an_invalidated_vary_index() {
    let (guards, origin) = ([over_redis("vary-gone"), over_redis("vary-gone")], Origin::gated());
    let apps = guards.clone().map(|guard| short_and_long(&origin).layer(guard));
    origin.release(1);
    ask(&apps[0], speaking("de")).await;
    at_rest(&guards[0]).await;
    let fetch = tokio::spawn(ask(&apps[0], english("gold")));
    origin.arrived(2).await;
    guards[1].invalidate_url(&Uri::from_static("http://example.test/page")).await.expect("the server is up");
    origin.open();
    assert_eq!(fetch.await.expect("no panic").text(), "en gold 2");
    at_rest(&guards[0]).await;
    for (i, calls) in [(0, 3), (1, 3)] {
        assert_eq!(ask(&apps[i], english("gold")).await.text(), "en gold 3", "{i}");
        at_rest(&guards[i]).await;
        assert_eq!(origin.calls(), calls);
    }
}

/// A variant becomes stale before its retention ends, because the head of a response arrives before its body. The next
/// fetch then begins at the variant, and ends after the retention of the first. Seen to fail when an index ended together
/// with its variant: the second response was stored out of reach, beside no index.
#[tokio::test]
async fn a_fetch_that_outlasts_its_variant_still_finds_the_index() {
    let (server, origin) = (RedisServer::start(), Origin::new());
    let guard = StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(5));
    let app = site(&origin, |_, n| {
        let time = Duration::from_secs(if n == 1 { 1 } else { 2 });
        let body = stream::once(async move {
            time::sleep(time).await;
            Ok::<_, Infallible>("page")
        });
        ([("vary", "accept-language"), ("cache-control", "max-age=3")], Body::from_stream(body))
    });
    let app = app.layer(guard.clone());
    ask(&app, speaking("de")).await;
    at_rest(&guard).await;
    let only = [("accept-language", "de"), ("cache-control", "only-if-cached")];
    eventually("it is stale", async || ask(&app, get_with("/page", &only)).await.status == 504).await;
    ask(&app, speaking("de")).await;
    at_rest(&guard).await;
    assert_eq!(size(&mut server.connection().await).await, 2, "the page and its index");
    assert_eq!(origin.calls(), 2);
}

/// Seen to fail without the extension of a fill: the third fetch ended after its index.
#[tokio::test(start_paused = true)]
async fn a_slow_page_keeps_its_vary_index() {
    let (node, origin) = (FakeRedis::new().node(), Origin::new());
    let asked = origin.clone();
    let handler = async move || {
        let call = asked.work(Duration::from_secs(5)).await;
        ([("vary", "accept-language"), ("cache-control", "max-age=1")], call.to_string())
    };
    let guard = node.guard();
    let app = Router::new().route("/page", routing::get(handler)).layer(guard.clone());
    for calls in 1..=4 {
        assert_eq!(ask(&app, speaking("de")).await.cache_status(), CacheStatus::Miss);
        at_rest(&guard).await;
        assert_eq!(ask(&app, speaking("de")).await.cache_status(), CacheStatus::Hit);
        assert_eq!(origin.calls(), calls);
        time::sleep(Duration::from_millis(1_001)).await;
    }
}

/// A request whose fields contradict its host comes first, and leaves an index without a `Vary`. The page of later requests
/// is stored under it.
///
/// Seen to fail if such an index counts as one that the page does not need: it had a second left.
#[tokio::test]
async fn a_page_keeps_the_index_of_a_contradicting_request() {
    let (server, origin) = (RedisServer::start(), Origin::new());
    let guard = StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(5)).policy(never_stale());
    let app = site(&origin, |_, n| ([("cache-control", "public, max-age=60")], n.to_string())).layer(guard.clone());
    for fields in [&[("x-forwarded-host", "other.test")][..], &[]] {
        assert_eq!(ask(&app, get_with("/page", fields)).await.cache_status(), CacheStatus::Miss);
        at_rest(&guard).await;
    }
    let mut redis = server.connection().await;
    eventually("only the page and its index are left", async || size(&mut redis.clone()).await == 2).await;
    for name in names(&mut redis).await {
        let left: i64 = redis::cmd("PTTL").arg(&name).query_async(&mut redis).await.expect("up");
        assert!(left > 30_000, "{name} has {left} ms left");
    }
}

/// Seen to fail when every fill extended the index: it never ended.
#[tokio::test(start_paused = true)]
async fn an_index_that_responses_no_longer_name_ends() {
    let (guard, origin) = (StampedeGuard::in_memory().policy(never_stale()), Origin::new());
    let app = site(&origin, |_, n| {
        let vary = if n == 1 { "accept-language" } else { "" };
        ([("vary", vary), ("cache-control", "max-age=10")], n.to_string())
    });
    let app = app.layer(guard.clone());
    let page = |language| ask(&app, get_with("/page", &[("accept-language", language)]));
    for expected in ["1", "2", "3"] {
        assert_eq!(page("de").await.text(), expected);
        at_rest(&guard).await;
        time::advance(Duration::from_millis(10_100)).await;
    }
    assert_eq!(page("de").await.cache_status(), CacheStatus::Miss);
    at_rest(&guard).await;
    assert_eq!(page("en").await.cache_status(), CacheStatus::Hit, "one page for all languages again");
}
