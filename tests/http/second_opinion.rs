//! Answers that may be due to one request alone: a client error, a 500. One waiter leads again, once in the fleet.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, over_redis, site, waiting},
    support::Origin,
};
use axum::{
    Router,
    extract::Request,
    http::{HeaderMap, StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse, Response},
};
use futures_util::future::join_all;
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::time::Duration;
use tokio::time;

/// Returns a site whose handler answers `code` to requests with the field `x-odd`, and a public page to all others.
fn odd_site(origin: &Origin, code: u16) -> Router {
    site(origin, move |request, n| match request.headers().contains_key("x-odd") {
        true => StatusCode::from_u16(code).expect("a status").into_response(),
        false => public(n),
    })
}

fn public(n: usize) -> Response {
    ([(CACHE_CONTROL, "public, max-age=60")], format!("page {n}")).into_response()
}

/// Lets all tasks run that can run.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

fn odd() -> Request {
    get_with("/page", &[("x-odd", "1")])
}

async fn herd(app: &Router, origin: &Origin, n: usize, request: impl Fn(usize) -> Request) -> Vec<Answer> {
    let asked = waiting(app, n, request).await;
    origin.open();
    asked.answers().await
}

/// Seen to fail before a second opinion was asked for: 301 calls for a 400, and for a 500 all 300 clients got the 500.
#[tokio::test]
async fn a_herd_gets_the_page_although_its_leader_gets_an_error() {
    for code in [400, 401, 403, 406, 409, 422, 428, 431, 500] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = odd_site(&origin, code).layer(guard.clone());
        let answers = herd(&app, &origin, 301, |i| if i == 0 { odd() } else { get("/page") }).await;
        assert_eq!(answers[0].status, code);
        assert!(answers[1..].iter().all(|answer| (answer.status, answer.text()) == (200, "page 2")), "{code}");
        assert_eq!(origin.calls(), 2, "{code}");
        at_rest(&guard).await;
        assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit, "{code}");
    }
}

/// Seen to fail before a second opinion was asked for: 301 calls.
#[tokio::test]
async fn authorized_waiters_share_a_page_refused_to_a_stranger() {
    for guard in on_each_store("refused-to-a-stranger") {
        let origin = Origin::gated();
        let app = site(&origin, |request, n| match request.headers().contains_key("authorization") {
            true => public(n),
            false => StatusCode::UNAUTHORIZED.into_response(),
        });
        let app = app.layer(guard.clone());
        let user = |i| if i == 0 { get("/page") } else { get_with("/page", &[("authorization", "Bearer t")]) };
        let asked: Vec<_> = (0..301).map(|i| tokio::spawn(ask(&app, user(i)))).collect();
        while guard.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
        origin.open();
        let answers: Vec<_> = join_all(asked).await.into_iter().map(|answer| answer.expect("no panic")).collect();
        assert!(answers[1..].iter().all(|answer| answer.status == 200), "{answers:?}");
        assert!(origin.calls() <= 2, "{}", origin.calls());
        at_rest(&guard).await;
    }
}

/// Seen to fail before 408, 425 and 429 counted as failures of the origin: 300, 300 and 200 calls.
#[tokio::test(start_paused = true)]
async fn timeouts_and_rate_limits_of_the_origin_cost_one_call() {
    for code in [408, 425, 429, 502, 503, 504] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = odd_site(&origin, code).layer(guard.clone());
        let answers = herd(&app, &origin, 300, |_| odd()).await;
        assert!(answers.iter().all(|answer| answer.status == code), "{code}");
        assert_eq!(origin.calls(), 1, "{code}");
        at_rest(&guard).await;
        let blocked = ask(&app, get("/page")).await;
        assert_eq!((blocked.status, blocked.header("retry-after")), (code, "1"), "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_500_for_all_clients_costs_two_calls_and_then_blocks() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = odd_site(&origin, 500).layer(guard.clone());
    let answers = herd(&app, &origin, 300, |_| odd()).await;
    assert!(answers.iter().all(|answer| answer.status == 500));
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
    let blocked = ask(&app, odd()).await;
    assert_eq!((blocked.status, blocked.cache_status()), (500, CacheStatus::Rejected));
    assert_eq!(origin.calls(), 2);
}

/// Seen to fail with 4 calls when the lease did not carry the number of failures.
#[tokio::test]
async fn a_500_for_all_clients_costs_two_calls_in_the_fleet() {
    let (guards, origin) = ([(); 3].map(|()| over_redis("second-opinion-fleet")), Origin::gated());
    let apps = guards.clone().map(|guard| odd_site(&origin, 500).layer(guard));
    let asked: Vec<_> = (0..90).map(|i| tokio::spawn(ask(&apps[i % 3], odd()))).collect();
    origin.arrived(1).await;
    for guard in &guards {
        while guard.in_flight() == 0 {
            tokio::task::yield_now().await;
        }
    }
    origin.open();
    for answer in join_all(asked).await {
        assert_eq!(answer.expect("no panic").status, 500);
    }
    assert_eq!(origin.calls(), 2);
    for guard in &guards {
        at_rest(guard).await;
    }
}

/// Two client errors in a row release the waiters of that audience, and for a while spare its next requests the wait.
#[tokio::test(start_paused = true)]
async fn two_client_errors_release_the_herd_of_one_audience() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, n| match request.headers().contains_key("authorization") {
        true => public(n),
        false => StatusCode::UNAUTHORIZED.into_response(),
    });
    let app = app.layer(guard.clone());
    let asked = waiting(&app, 20, |_| get("/page")).await;
    let answers = tokio::spawn(asked.answers());
    for call in 1..=2 {
        origin.arrived(call).await;
        settle().await;
        assert_eq!(origin.calls(), call, "one after the other");
        origin.release(1);
    }
    origin.arrived(20).await; // the others at once
    origin.open();
    assert!(answers.await.expect("no panic").iter().all(|answer| answer.status == 401));
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Bypass, "under the marker");

    let user = get_with("/page", &[("authorization", "Bearer t")]);
    assert_eq!(ask(&app, user).await.cache_status(), CacheStatus::Miss, "the marker is not for this request");
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit);
}

#[tokio::test(start_paused = true)]
async fn the_marker_of_client_errors_ends_with_the_failure_ttl() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = odd_site(&origin, 400).layer(guard.clone());
    for expected in [CacheStatus::Miss, CacheStatus::Miss, CacheStatus::Bypass] {
        assert_eq!(ask(&app, odd()).await.cache_status(), expected);
        at_rest(&guard).await;
    }
    time::advance(Duration::from_millis(1001)).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Miss);
}

/// `private`, `no-store` and `Set-Cookie` say that the response is for its client alone: there is nothing to find out.
#[tokio::test]
async fn a_client_error_that_is_private_releases_the_herd_at_once() {
    for field in [("cache-control", "private"), ("cache-control", "no-store"), ("set-cookie", "a=b")] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |_, _| (StatusCode::BAD_REQUEST, [field])).layer(guard.clone());
        let answers = tokio::spawn(waiting(&app, 20, |_| get("/page")).await.answers());
        origin.release(1);
        origin.arrived(20).await;
        origin.open();
        assert!(answers.await.expect("no panic").iter().all(|answer| answer.status == 400));
        at_rest(&guard).await;
    }
}

/// A second opinion without a failure marker: the waiters themselves know that one fetch has failed.
#[tokio::test]
async fn a_500_costs_two_calls_without_failure_markers() {
    for guard in on_each_store("no-markers").map(|guard| guard.failure_ttl(Duration::ZERO)) {
        let origin = Origin::gated();
        let app = odd_site(&origin, 500).layer(guard.clone());
        let asked = join_all((0..30).map(|_| ask(&app, odd())));
        let (answers, ()) = tokio::join!(asked, async {
            origin.arrived(1).await;
            origin.open();
        });
        assert!(answers.iter().all(|answer| answer.status == 500));
        assert!(origin.calls() <= 3, "{} calls", origin.calls());
        at_rest(&guard).await;
    }
}

/// The failures of a page that was good a moment ago are not counted, so the waiters themselves must know. Seen to fail
/// otherwise: the waiters led one after another, and at last each made a call of its own.
#[tokio::test(start_paused = true)]
async fn a_500_of_a_page_that_was_good_costs_two_calls() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, n| match n {
        1 => ([(CACHE_CONTROL, "max-age=1")], "page").into_response(),
        _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    });
    let app = app.layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.status, 200);
    at_rest(&guard).await;
    time::advance(Duration::from_millis(1200)).await;
    let answers = herd(&app, &origin, 100, |_| get("/page")).await;
    assert!(answers.iter().all(|answer| answer.status == 500));
    assert_eq!(origin.calls(), 3, "the first call was good");
    at_rest(&guard).await;
}

/// Seen to fail before: a marker of one second held off all clients.
#[tokio::test(start_paused = true)]
async fn the_first_failure_blocks_nobody_if_an_entry_was_at_hand() {
    let policy = Policy::fresh_for(Duration::from_secs(60));
    for (control, reload) in [("public, max-age=1", false), ("public, max-age=60", true)] {
        let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::new());
        let app = site(&origin, move |request, n| match request.headers().contains_key("x-odd") {
            true => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            false => ([("cache-control", control), ("etag", "\"e\"")], n.to_string()).into_response(),
        });
        let app = app.layer(guard.clone());
        assert_eq!(ask(&app, get("/page")).await.status, 200);
        at_rest(&guard).await;
        time::advance(Duration::from_secs(2)).await;
        for _ in 0..if reload { 20 } else { 1 } {
            let fields = [("x-odd", "1"), ("cache-control", "no-cache")];
            let attack = get_with("/page", &fields[..if reload { 2 } else { 1 }]);
            let status = ask(&app, attack).await.status;
            assert_eq!(status, if reload { 200 } else { 503 }, "a fresh entry may replace a failure");
            at_rest(&guard).await;
        }
        time::advance(Duration::from_secs(if reload { 60 } else { 0 })).await;
        assert_eq!(ask(&app, get("/page")).await.status, 200, "{control}");
    }
}

/// Seen to fail when the marker of other clients counted as a page: the block was longer.
#[tokio::test(start_paused = true)]
async fn a_failure_blocks_beside_the_marker_of_other_clients() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| match request.headers().contains_key("cookie") {
        true => ([(CACHE_CONTROL, "private")], "own page").into_response(),
        false => StatusCode::SERVICE_UNAVAILABLE.into_response(),
    });
    let app = app.layer(guard.clone());
    assert_eq!(ask(&app, get_with("/page", &[("cookie", "a=b")])).await.text(), "own page");
    at_rest(&guard).await;
    for (pause, expected) in [(0, CacheStatus::Miss), (0, CacheStatus::Rejected), (101, CacheStatus::Miss)] {
        time::advance(Duration::from_millis(pause)).await;
        assert_eq!(ask(&app, get("/page")).await.cache_status(), expected);
        at_rest(&guard).await;
    }
}

/// Seen to fail when a leader that may have the stale page ended the matter for all waiters: each got the 500.
#[tokio::test(start_paused = true)]
async fn a_leader_with_a_stale_page_does_not_speak_for_its_waiters() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, n| match request.headers().contains_key("x-odd") {
        true => (StatusCode::INTERNAL_SERVER_ERROR, [(CACHE_CONTROL, "no-store")]).into_response(),
        false => ([(CACHE_CONTROL, "public, max-age=60")], n.to_string()).into_response(),
    });
    let app = app.layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    at_rest(&guard).await;
    time::advance(Duration::from_millis(60_500)).await;
    let odd = || get_with("/page", &[("x-odd", "1"), ("cache-control", "stale-if-error=600")]);
    let answers = herd(&app, &origin, 20, |i| if i == 0 { odd() } else { get("/page") }).await;
    assert_eq!((answers[0].text(), answers[0].cache_status()), ("1", CacheStatus::Stale));
    assert!(answers[1..].iter().all(|answer| (answer.status, answer.text()) == (200, "3")), "{answers:?}");
}

/// Seen to fail when a client error left a marker in place of the page or blocked its key, and when it was the last word
/// after a failure of the origin: then the waiters called the origin, and got its 503.
#[tokio::test(start_paused = true)]
async fn client_errors_keep_a_page_that_replaces_failures() {
    for (code, control) in [("400", ""), ("500", ""), ("400", "no-store"), ("403", "private"), ("403", "max-age=60")] {
        for is_failing in [false, true] {
            let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
            let app = site(&origin, move |request, n| match request.headers().get("x-odd") {
                Some(code) => {
                    let control = (!control.is_empty()).then_some([(CACHE_CONTROL, control)]);
                    let fields: HeaderMap =
                        control.into_iter().flatten().map(|(n, v)| (n, v.parse().expect("v"))).collect();
                    (StatusCode::from_bytes(code.as_bytes()).expect("a status"), fields).into_response()
                }
                None if n == 1 => ([(CACHE_CONTROL, "max-age=1, stale-if-error=600")], "page").into_response(),
                None => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            });
            let app = app.layer(guard.clone());
            origin.release(1 + usize::from(is_failing));
            for _ in 0..=usize::from(is_failing) {
                assert_eq!(ask(&app, get("/page")).await.text(), "page");
                at_rest(&guard).await;
                time::advance(Duration::from_secs(3)).await; // longer than the first block
            }
            let odd = || get_with("/page", &[("x-odd", code)]);
            let answers = herd(&app, &origin, 20, |i| if i == 0 { odd() } else { get("/page") }).await;
            for answer in &answers[1..] {
                assert_eq!((answer.status, answer.text()), (200, "page"), "{code} {control} {is_failing}");
            }
            at_rest(&guard).await;
            assert_eq!(ask(&app, get("/page")).await.text(), "page", "{code} {control} {is_failing}");
        }
    }
}

/// A response that would not be shared if it were good is not shared if it is a failure. Seen to fail before: all waiters
/// got the token of the first client.
#[tokio::test]
async fn waiters_get_no_token_from_the_failure_of_another_client() {
    for (name, value) in [("x-csrf-token", "a"), ("content-encoding", "br")] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |_, _| (StatusCode::SERVICE_UNAVAILABLE, [(name, value)], "for one client"));
        let app = app.layer(guard.clone());
        let answers = herd(&app, &origin, 10, |_| get("/page")).await;
        assert_eq!((answers[0].header(name), answers[0].text()), (value, "for one client"));
        for answer in &answers[1..] {
            assert_eq!((answer.status, answer.header(name), answer.text()), (503, "", ""), "{name}");
        }
        assert_eq!(origin.calls(), 1);
        at_rest(&guard).await;
    }
}

/// The share of good answers that an honest client gets while others provoke 500 ten times a second each. Seen to fail
/// before: 28 % beside one such client, 51 % if it sends `no-cache`.
#[tokio::test(start_paused = true)]
async fn clients_that_provoke_errors_take_the_page_from_nobody() {
    for (attackers, reload, lifetime) in [(1, false, 1), (3, false, 1), (1, true, 1), (3, true, 1), (3, true, 5)] {
        let guard = StampedeGuard::in_memory();
        let app = site(&Origin::new(), move |request, n| match request.headers().contains_key("x-odd") {
            true => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            false => ([(CACHE_CONTROL, format!("max-age={lifetime}"))], n.to_string()).into_response(),
        });
        let slow = async |request: Request, next: axum::middleware::Next| {
            time::sleep(Duration::from_millis(20)).await;
            next.run(request).await
        };
        let app = app.layer(axum::middleware::from_fn(slow)).layer(guard.clone());
        let end = time::Instant::now() + Duration::from_secs(300);
        let attacks = (0..attackers).map(|number| {
            let app = app.clone();
            tokio::spawn(async move {
                let mut pauses = fastrand::Rng::with_seed(number);
                while time::Instant::now() < end {
                    let fields = [("x-odd", "1"), ("cache-control", "no-cache")];
                    ask(&app, get_with("/page", &fields[..if reload { 2 } else { 1 }])).await;
                    time::sleep(Duration::from_millis(pauses.u64(60..140))).await;
                }
            })
        });
        let attacks: Vec<_> = attacks.collect();
        let honest = tokio::spawn(async move {
            let (mut good, mut bad, mut pauses) = (0, 0, fastrand::Rng::with_seed(99));
            while time::Instant::now() < end {
                match ask(&app, get("/page")).await.status {
                    200 => good += 1,
                    _ => bad += 1,
                }
                time::sleep(Duration::from_millis(pauses.u64(30..70))).await;
            }
            (good, bad)
        });
        let (good, bad) = honest.await.expect("no panic");
        join_all(attacks).await;
        println!("{attackers} attackers, reload {reload}, max-age {lifetime}: {good} good, {bad} bad");
        assert!(good > 99 * bad, "{attackers} attackers, reload {reload}: {good} good, {bad} bad");
    }
}
