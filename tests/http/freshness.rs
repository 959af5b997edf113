//! For how long an answer is used, and what is said of it.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, over_redis, request, site, taps, waiting},
    support::{Origin, RedisServer},
};
use axum::{extract::Request, http::Method, response::AppendHeaders};
use stampede_guard::{CacheVerdict, Policy, StampedeGuard};
use std::time::Duration;
use tokio::time;
use tower::ServiceExt;

const MS: Duration = Duration::from_millis(1);

/// Fresh for that long where the answer itself is silent.
fn fresh_for(span: Duration) -> StampedeGuard {
    StampedeGuard::in_memory().policy(Policy::fresh_for(span).jitter(0.0))
}

#[tokio::test(start_paused = true)]
async fn an_answers_own_lifetime_wins_over_the_policy() {
    let hour = Duration::from_secs(3600);
    for (control, policy, lifetime) in [
        ("max-age=2", hour, 2),
        ("max-age=100", MS, 100),
        ("max-age=2, s-maxage=100", MS, 100),
        ("s-maxage=2, max-age=100", hour, 2),
        ("public", Duration::from_secs(7), 7),
    ] {
        let (guard, origin) = (fresh_for(policy), Origin::new());
        let app = site(&origin, move |_, n| ([("cache-control", control)], n.to_string())).layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.text(), "1");
        time::advance(Duration::from_secs(lifetime) - MS).await;
        let last = ask(&app, get("/page")).await;
        assert_eq!((last.text(), last.header("age")), ("1", &*(lifetime - 1).to_string()), "{control}");
        time::advance(MS).await;
        assert_eq!(ask(&app, get("/page")).await.text(), "2", "{control}");
        at_rest(&guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_with_which_an_answer_came_counts() {
    let (guard, origin) = (fresh_for(MS), Origin::gated());
    let respond = |_: &Request, n: usize| ([("cache-control", "max-age=60"), ("age", "50")], n.to_string());
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 3, |_| get("/page")).await;
    origin.open();
    for answer in asked.answers().await {
        assert_eq!((answer.text(), answer.header("age")), ("1", "50"), "{:?}", answer.verdict());
    }
    time::advance(Duration::from_secs(9)).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!((hit.text(), hit.header("age"), hit.header("cache-status")), ("1", "59", "stampede-guard; hit; ttl=1"));
    at_rest(&guard).await;
}

/// RFC 9111 §5.2.1.1 is about the age that the client is told. Seen to fail when only the time in this cache was
/// compared.
#[tokio::test]
async fn a_clients_max_age_counts_the_age_with_which_an_answer_came() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let respond = |_: &Request, n: usize| ([("cache-control", "max-age=60"), ("age", "40")], n.to_string());
    let app = site(&origin, respond).layer(guard.clone());
    for (max_age, n) in [("max-age=50", "1"), ("max-age=50", "1"), ("max-age=30", "2"), ("max-age=50", "2")] {
        assert_eq!(ask(&app, get_with("/page", &[("cache-control", max_age)])).await.text(), n, "{max_age}");
        at_rest(&guard).await;
    }
}

/// RFC 9111 §5.1: who waited is told of it as the leader is. Seen to fail while the body grows: the field was dropped
/// with those that are said anew.
#[tokio::test]
async fn those_who_wait_are_told_the_age_with_which_an_answer_came() {
    let ((mut taps, bodies), guard, origin) = (taps(1, Some(4)), StampedeGuard::in_memory(), Origin::new());
    let respond = move |_: &Request, _| ([("cache-control", "max-age=60"), ("age", "40")], bodies());
    let app = site(&origin, respond).layer(guard.clone());
    let ask = || app.clone().oneshot(get("/page"));
    let (leader, waiter) = tokio::join!(ask(), ask());
    for response in [leader, waiter] {
        assert_eq!(response.expect("an answer").headers()["age"], "40");
    }
    taps.remove(0).send("done");
    drop(taps);
    at_rest(&guard).await;
}

fn status(answer: &Answer) -> (&str, CacheVerdict) {
    (answer.header("cache-status"), answer.verdict())
}

#[tokio::test(start_paused = true)]
async fn the_cache_status_says_how_it_was_answered() {
    let (guard, origin) = (fresh_for(Duration::from_secs(60)), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let asked = waiting(&app, 2, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert_eq!(status(&answers[0]), ("stampede-guard; fwd=uri-miss; fwd-status=200; stored", CacheVerdict::Filled));
    assert_eq!(status(&answers[1]), ("stampede-guard; fwd=miss; collapsed", CacheVerdict::Coalesced));
    at_rest(&guard).await;

    time::advance(Duration::from_secs(20)).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!(status(&hit), ("stampede-guard; hit; ttl=40", CacheVerdict::Hit));
    let own = ask(&app, get_with("/page", &[("cookie", "a=b")])).await;
    assert_eq!(status(&own), ("stampede-guard; fwd=bypass; fwd-status=200", CacheVerdict::Bypassed));
    let unstored = ask(&app, get_with("/page", &[("cache-control", "no-store")])).await;
    assert_eq!(status(&unstored), ("stampede-guard; fwd=request; fwd-status=200", CacheVerdict::Bypassed));
    let forced = ask(&app, get_with("/page", &[("cache-control", "no-cache")])).await;
    assert_eq!(status(&forced), ("stampede-guard; fwd=request; fwd-status=200; stored", CacheVerdict::Filled));
    at_rest(&guard).await;
    let post = ask(&app, request(Method::POST, "/page", &[])).await;
    assert_eq!(status(&post), ("stampede-guard; fwd=method; fwd-status=200", CacheVerdict::Bypassed));
    let absent = ask(&app, get_with("/page", &[("cache-control", "only-if-cached")])).await;
    assert_eq!(status(&absent), ("stampede-guard; detail=only-if-cached", CacheVerdict::Refused));
    let part = ask(&app, get_with("/page", &[("range", "bytes=0-0")])).await;
    assert_eq!(status(&part), ("stampede-guard; fwd=miss; fwd-status=200", CacheVerdict::Bypassed));
}

#[tokio::test]
async fn the_cache_status_says_when_it_is_not_stored() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| ([("cache-control", "no-store")], n.to_string())).layer(guard.clone());
    let asked = waiting(&app, 2, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert_eq!(status(&answers[0]), ("stampede-guard; fwd=uri-miss; fwd-status=200", CacheVerdict::Filled));
    assert_eq!(status(&answers[1]), ("stampede-guard; fwd=bypass; fwd-status=200", CacheVerdict::Bypassed));
    at_rest(&guard).await;
}

/// The status of an inner cache is kept on the way, and is not replayed.
#[tokio::test]
async fn the_cache_status_of_an_inner_cache_is_kept_but_not_stored() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let said = AppendHeaders([("cache-status", ""), ("cache-status", "inner; hit")]);
    let app = site(&origin, move |_, n| (said, n.to_string())).layer(guard.clone());
    let first = ask(&app, get("/page")).await;
    let values: Vec<_> = first.headers.get_all("cache-status").iter().collect();
    assert_eq!(values, ["", "inner; hit", "stampede-guard; fwd=uri-miss; fwd-status=200; stored"]);
    at_rest(&guard).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!((hit.headers.get_all("cache-status").iter().count(), hit.verdict()), (1, CacheVerdict::Hit));
}

#[tokio::test]
async fn without_redis_it_is_answered_by_the_origin_and_says_so() {
    let server = RedisServer::start();
    let guard = StampedeGuard::new(server.client());
    server.kill();
    let origin = Origin::new();
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let answer = ask(&app, get("/page")).await;
    let expected = "stampede-guard; fwd=uri-miss; fwd-status=200; detail=fail-open";
    assert_eq!(status(&answer), (expected, CacheVerdict::FailedOpen));
    at_rest(&guard).await;
}

/// Stale from the beginning: served at once, while one of those who ask refreshes it.
#[tokio::test(start_paused = true)]
async fn a_stale_answer_is_served_while_it_is_refreshed_behind() {
    let policy = Policy::fresh_for(Duration::from_secs(1)).stale_while_revalidate(Duration::from_secs(60)).jitter(0.0);
    let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    at_rest(&guard).await;

    time::advance(Duration::from_secs(3)).await;
    for _ in 0..20 {
        let answer = ask(&app, get("/page")).await;
        assert_eq!((answer.text(), answer.header("age")), ("1", "3"), "it does not wait for the origin");
        assert_eq!(status(&answer), ("stampede-guard; hit; ttl=-2", CacheVerdict::Stale));
    }
    origin.arrived(2).await;
    origin.open();
    at_rest(&guard).await;
    let refreshed = ask(&app, get("/page")).await;
    assert_eq!((refreshed.text(), refreshed.verdict(), origin.calls()), ("2", CacheVerdict::Hit, 2));
}

#[tokio::test]
async fn another_process_is_served_from_what_the_first_one_stored() {
    let guards = [over_redis("other-process"), over_redis("other-process")];
    let origin = Origin::new();
    let [one, two] = guards.clone().map(|guard| site(&origin, |_, n| n.to_string()).layer(guard));
    assert_eq!(ask(&one, get("/page")).await.verdict(), CacheVerdict::Filled);
    at_rest(&guards[0]).await;
    let hit = ask(&two, get("/page")).await;
    assert_eq!((hit.text(), hit.verdict(), hit.header("age")), ("1", CacheVerdict::Hit, "0"));
    at_rest(&guards[1]).await;
}

#[tokio::test]
async fn an_invalidation_is_heard_of_by_the_layer() {
    for guard in on_each_store("invalidated") {
        let origin = Origin::new();
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        for n in ["1", "2", "3"] {
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            at_rest(&guard).await;
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            guard.invalidate("GET http://example.test/page").await.expect("the store answers");
        }
    }
}
