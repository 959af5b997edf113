//! How long a response is reused, and the `Age` and `Cache-Status` fields that it gets.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, honouring, on_each_store, over_redis, request, site, taps, waiting},
    support::{Origin, RedisServer, herd},
};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderValue, Method, StatusCode},
    response::{AppendHeaders, IntoResponse},
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::time::{Duration, SystemTime};
use tokio::time;
use tower::ServiceExt;

const MS: Duration = Duration::from_millis(1);

/// Returns a guard whose default freshness is `span`, without jitter.
fn fresh_for(span: Duration) -> StampedeGuard {
    StampedeGuard::in_memory().policy(Policy::fresh_for(span).jitter(0.0))
}

#[tokio::test(start_paused = true)]
async fn a_responses_own_lifetime_overrides_the_policy() {
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
        assert_eq!((last.text(), last.header("age")), ("1", &*lifetime.to_string()), "{control}");
        time::advance(MS).await;
        assert_eq!(ask(&app, get("/page")).await.text(), "2", "{control}");
        at_rest(&guard).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_age_from_upstream_counts_toward_the_lifetime() {
    let (guard, origin) = (fresh_for(MS), Origin::gated());
    let respond = |_: &Request, n: usize| ([("cache-control", "max-age=60"), ("age", "50")], n.to_string());
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 3, |_| get("/page")).await;
    origin.open();
    for answer in asked.answers().await {
        assert_eq!((answer.text(), answer.header("age")), ("1", "50"), "{:?}", answer.cache_status());
    }
    time::advance(Duration::from_secs(9)).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!((hit.text(), hit.header("age"), hit.header("cache-status")), ("1", "59", "stampede-guard; hit"));
    at_rest(&guard).await;
}

/// RFC 9111 §5.2.1.1 is about the age that the client receives. Seen to fail when only the time in this cache was
/// compared.
#[tokio::test]
async fn a_request_max_age_counts_the_age_from_upstream() {
    let (guard, origin) = (honouring(StampedeGuard::in_memory()), Origin::new());
    let respond = |_: &Request, n: usize| ([("cache-control", "max-age=60"), ("age", "40")], n.to_string());
    let app = site(&origin, respond).layer(guard.clone());
    for (max_age, n) in [("max-age=50", "1"), ("max-age=50", "1"), ("max-age=30", "2"), ("max-age=50", "2")] {
        assert_eq!(ask(&app, get_with("/page", &[("cache-control", max_age)])).await.text(), n, "{max_age}");
        at_rest(&guard).await;
    }
}

/// RFC 9111 §5.1: waiters get the same `Age` as the leader's caller. Seen to fail while the body grows: the field was
/// dropped together with the fields that the cache writes itself.
#[tokio::test(start_paused = true)]
async fn waiters_get_the_age_from_upstream() {
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

fn status(answer: &Answer) -> (&str, CacheStatus) {
    (answer.header("cache-status"), answer.cache_status())
}

#[tokio::test(start_paused = true)]
async fn cache_status_states_how_a_request_was_answered() {
    let (guard, origin) = (honouring(fresh_for(Duration::from_secs(60))), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let asked = waiting(&app, 2, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert_eq!(status(&answers[0]), ("stampede-guard; fwd=uri-miss; fwd-status=200; stored", CacheStatus::Miss));
    assert_eq!(status(&answers[1]), ("stampede-guard; fwd=miss; collapsed", CacheStatus::Coalesced));
    at_rest(&guard).await;

    time::advance(Duration::from_secs(20)).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!(status(&hit), ("stampede-guard; hit", CacheStatus::Hit));
    let own = ask(&app, get_with("/page", &[("cookie", "a=b")])).await;
    assert_eq!(status(&own), ("stampede-guard; fwd=bypass; fwd-status=200; detail=cookie", CacheStatus::Bypass));
    let unstored = ask(&app, get_with("/page", &[("cache-control", "no-store")])).await;
    let expected = "stampede-guard; fwd=request; fwd-status=200; detail=request-no-store";
    assert_eq!(status(&unstored), (expected, CacheStatus::Bypass));
    let forced = ask(&app, get_with("/page", &[("cache-control", "no-cache")])).await;
    assert_eq!(status(&forced), ("stampede-guard; fwd=request; fwd-status=200; stored", CacheStatus::Miss));
    at_rest(&guard).await;
    let post = ask(&app, request(Method::POST, "/page", &[])).await;
    assert_eq!(status(&post), ("stampede-guard; fwd=method; fwd-status=200; detail=method", CacheStatus::Bypass));
    let absent = ask(&app, get_with("/page", &[("cache-control", "only-if-cached")])).await;
    assert_eq!(status(&absent), ("stampede-guard; detail=only-if-cached", CacheStatus::Rejected));
    let upgrade = ask(&app, get_with("/page", &[("upgrade", "websocket")])).await;
    assert_eq!(status(&upgrade), ("stampede-guard; fwd=request; fwd-status=200; detail=upgrade", CacheStatus::Bypass));
}

#[tokio::test]
async fn cache_status_omits_stored_for_an_uncacheable_response() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| ([("cache-control", "no-store")], n.to_string())).layer(guard.clone());
    let asked = waiting(&app, 2, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    let expected = "stampede-guard; fwd=uri-miss; fwd-status=200; detail=no-store";
    assert_eq!(status(&answers[0]), (expected, CacheStatus::Miss));
    let expected = "stampede-guard; fwd=bypass; fwd-status=200; detail=not-shared";
    assert_eq!(status(&answers[1]), (expected, CacheStatus::Bypass));
    at_rest(&guard).await;
}

/// The status of an inner cache is passed on with the first response, and is not replayed.
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
    assert_eq!((hit.headers.get_all("cache-status").iter().count(), hit.cache_status()), (1, CacheStatus::Hit));
}

#[tokio::test]
async fn cache_status_states_fail_open_without_redis() {
    let server = RedisServer::start();
    let guard = StampedeGuard::new(server.client());
    server.kill();
    let origin = Origin::new();
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    let answer = ask(&app, get("/page")).await;
    let expected = "stampede-guard; fwd=uri-miss; fwd-status=200; detail=fail-open";
    assert_eq!(status(&answer), (expected, CacheStatus::FailOpen));
    at_rest(&guard).await;
}

/// The stale response is served at once, while one of the requests refreshes it in the background.
#[tokio::test(start_paused = true)]
async fn a_stale_response_is_served_while_it_is_refreshed() {
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
        assert_eq!(status(&answer), ("stampede-guard; hit; ttl=-2", CacheStatus::Stale));
    }
    origin.arrived(2).await;
    origin.open();
    at_rest(&guard).await;
    let refreshed = ask(&app, get("/page")).await;
    assert_eq!((refreshed.text(), refreshed.cache_status(), origin.calls()), ("2", CacheStatus::Hit, 2));
}

/// RFC 9111 §5.1. Seen to fail when the age of a reply was rounded down.
#[tokio::test(start_paused = true)]
async fn the_age_of_a_reply_is_never_understated() {
    let (guard, origin) = (fresh_for(Duration::from_secs(60)), Origin::new());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    ask(&app, get("/page")).await;
    at_rest(&guard).await;
    let mut aged = Duration::ZERO;
    for (age, expected) in [(2, "1"), (990, "1"), (1_002, "2"), (4_200, "5")] {
        time::advance(MS * age - aged).await;
        aged = MS * age;
        assert_eq!(ask(&app, get("/page")).await.header("age"), expected, "{age} ms");
    }
}

/// RFC 9111 §4.2.3. Seen to fail when the age counted from the end of the second of every `Date`: with five seconds, the
/// second request was a hit with `Age: 4`.
#[tokio::test]
async fn a_date_of_an_earlier_second_counts_in_whole() {
    for (ago, calls) in [(5, 2), (0, 1)] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let respond = move |_: &Request, n: usize| {
            let date = SystemTime::now() - Duration::from_secs(ago);
            ([("cache-control", "max-age=5"), ("date", &httpdate::fmt_http_date(date))], n.to_string()).into_response()
        };
        let app = site(&origin, respond).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        assert_eq!((ask(&app, get("/page")).await.status, origin.calls()), (200, calls), "{ago} s");
    }
}

#[tokio::test]
async fn another_process_hits_the_response_of_the_first_one() {
    let guards = [over_redis("other-process"), over_redis("other-process")];
    let origin = Origin::new();
    let [one, two] = guards.clone().map(|guard| site(&origin, |_, n| n.to_string()).layer(guard));
    assert_eq!(ask(&one, get("/page")).await.cache_status(), CacheStatus::Miss);
    at_rest(&guards[0]).await;
    let hit = ask(&two, get("/page")).await;
    assert_eq!((hit.text(), hit.cache_status()), ("1", CacheStatus::Hit));
    assert!(hit.header("age").parse::<u64>().is_ok_and(|age| age < 60), "{hit:?}");
    at_rest(&guards[1]).await;
}

#[tokio::test]
async fn an_invalidation_of_the_url_reaches_the_layer() {
    for guard in on_each_store("invalidated") {
        let origin = Origin::new();
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        for n in ["1", "2", "3"] {
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            at_rest(&guard).await;
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("the store answers");
        }
    }
}

/// RFC 9111 §4.2.4. The body takes longer than its lifetime, and its response can be joined until its end. Seen to fail
/// (every request waits for the old body) when the lifetime of a response on its way was not asked.
#[tokio::test(start_paused = true)]
async fn a_response_on_its_way_is_not_joined_once_it_is_stale() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let (bodies, body) = taps(1, Some(3));
    let respond = move |_: &Request, n| {
        let body = if n == 1 { body() } else { Body::from("new") };
        ([("cache-control", "max-age=2")], body)
    };
    let app = site(&origin, respond).layer(guard.clone());
    let head = async || app.clone().oneshot(get("/page")).await.expect("a head");
    let first = head().await;
    time::sleep(Duration::from_secs(1)).await;
    let joined = head().await;
    assert_eq!((&joined.headers()["age"], origin.calls()), (&HeaderValue::from_static("1"), 1));

    time::sleep(Duration::from_secs(10)).await; // the lease is extended meanwhile
    for late in herd(50, |_| ask(&app, get("/page"))).await {
        assert_eq!(late.text(), "new", "with age {}", late.header("age"));
    }
    assert_eq!(origin.calls(), 2, "the requests share a new fetch");
    bodies.into_iter().for_each(|tap| tap.send("old"));
    for joined in [first, joined] {
        assert_eq!(Answer::of(joined).await.text(), "old");
    }
    at_rest(&guard).await;
}

/// Seen to fail for 410 when only 404 counts as absent.
#[tokio::test(start_paused = true)]
async fn absent_for_is_the_lifetime_of_404_and_410() {
    let seconds = Duration::from_secs;
    for (status, control, lifetime) in
        [(404, "public", 5), (410, "public", 5), (404, "max-age=9", 9), (200, "public", 60), (405, "public", 60)]
    {
        let guard =
            StampedeGuard::in_memory().policy(Policy::fresh_for(seconds(60)).absent_for(seconds(5)).jitter(0.0));
        let origin = Origin::new();
        let respond = move |_: &Request, n: usize| {
            (StatusCode::from_u16(status).expect("a status"), [("cache-control", control)], n.to_string())
        };
        let app = site(&origin, respond).layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.text(), "1");
        time::advance(seconds(lifetime) - MS).await;
        assert_eq!(ask(&app, get("/page")).await.text(), "1", "{status} {control}");
        time::advance(MS).await;
        assert_eq!(ask(&app, get("/page")).await.text(), "2", "{status} {control}");
        at_rest(&guard).await;
    }
}

/// Of the request whose fetch it is, and of one that waits for it. Seen to fail (both wait for the origin) without the
/// soft timeout.
#[tokio::test(start_paused = true)]
async fn stale_page_is_served_after_the_soft_timeout() {
    let policy = Policy::fresh_for(10 * MS).stale_if_error(Duration::from_secs(60)).soft_timeout(500 * MS);
    let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::gated());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    at_rest(&guard).await;
    time::advance(Duration::from_secs(1)).await;
    let asked = time::Instant::now();
    for answer in waiting(&app, 2, |_| get("/page")).await.answers().await {
        assert_eq!((answer.text(), answer.cache_status()), ("1", CacheStatus::Stale));
    }
    assert_eq!((asked.elapsed(), origin.calls()), (500 * MS, 2));
    origin.open();
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.text(), "2", "the fetch went on");
}
