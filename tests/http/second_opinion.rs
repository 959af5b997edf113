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
/// While 404, 410, 408, 425, 429, 502, 503 and 504 were the last word, all clients got these errors.
#[tokio::test]
async fn a_herd_gets_the_page_although_its_leader_gets_an_error() {
    for code in
        [400, 401, 403, 404, 405, 406, 408, 409, 410, 414, 422, 425, 428, 429, 431, 451, 500, 501, 502, 503, 504, 599]
    {
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

/// Only what was repeated blocks other requests, and the guard says so with a status of its own.
#[tokio::test(start_paused = true)]
async fn a_failure_of_all_clients_costs_two_calls_and_then_blocks() {
    for code in [408, 425, 429, 500, 502, 503, 504] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = odd_site(&origin, code).layer(guard.clone());
        origin.release(2);
        for _ in 0..2 {
            assert_eq!(ask(&app, odd()).await.status, code);
            at_rest(&guard).await;
        }
        let answers = herd(&app, &origin, 300, |_| odd()).await;
        assert!(answers.iter().all(|answer| answer.status == code), "{code}");
        assert_eq!(origin.calls(), 4, "{code}");
        at_rest(&guard).await;
        let blocked = ask(&app, get("/page")).await;
        assert_eq!((blocked.status, blocked.header("retry-after")), (503, "1"), "{code}");
        time::advance(Duration::from_millis(101)).await;
        assert_eq!(ask(&app, get("/page")).await.status, 200, "{code}");
        at_rest(&guard).await;
    }
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
        let status = answer.expect("no panic").status;
        assert!(status == 500 || status == 503, "the failure, or its marker: {status}");
    }
    assert_eq!(origin.calls(), 2);
    for guard in &guards {
        at_rest(guard).await;
    }
}

/// RFC 9111 §5.2.2.4. Seen to fail for lifetimes of zero: six of eight clients got the page of another.
#[tokio::test]
async fn an_error_that_must_be_validated_is_given_to_no_waiter() {
    for (status, control, is_shared) in [
        (404, "no-cache", false),
        (404, "max-age=0", false),
        (403, "s-maxage=0", false),
        (500, "max-age=0", false),
        (404, "public, max-age=0", true),
        (404, "public, no-cache", true),
    ] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |request, _| {
            let user = request.extensions().get::<usize>().copied().unwrap_or_default();
            (StatusCode::from_u16(status).expect("a status"), [(CACHE_CONTROL, control)], format!("page of {user}"))
        });
        let app = app.layer(guard.clone());
        let answers = herd(&app, &origin, 8, |user| {
            let mut request = get("/page");
            request.extensions_mut().insert(user);
            request
        });
        for (user, answer) in answers.await.iter().enumerate() {
            let is_own = answer.text() == format!("page of {user}") || status == 500 && answer.text().is_empty();
            assert!(is_own || is_shared, "{status} {control}: user {user} got the {}", answer.text());
        }
        assert!(origin.calls() == 2 || !is_shared && status < 500, "{status} {control}: {} calls", origin.calls());
        at_rest(&guard).await;
    }
}

/// A 501 may be stored by heuristic. Seen to fail without a `Cache-Control`: the next cache may keep the empty page.
#[tokio::test]
async fn the_bare_status_of_a_failure_is_not_to_be_stored() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |_, _| (StatusCode::NOT_IMPLEMENTED, "own page")).layer(guard.clone());
    let answers = herd(&app, &origin, 8, |i| get_with("/page", &[("cookie", &i.to_string())])).await;
    let others: Vec<_> = answers.iter().filter(|answer| answer.text() != "own page").collect();
    assert_eq!((others.len(), origin.calls()), (6, 2));
    for other in others {
        assert_eq!((other.status, other.text(), other.header("cache-control")), (501, "", "no-store"));
    }
}

/// A client error that two requests get is given to the herd, and does not concern later requests.
#[tokio::test(start_paused = true)]
async fn two_client_errors_answer_the_herd_and_leave_no_marker() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, n| match request.headers().contains_key("authorization") {
        true => public(n),
        false => (StatusCode::UNAUTHORIZED, [("www-authenticate", "Basic")], n.to_string()).into_response(),
    });
    let app = app.layer(guard.clone());
    let answers = herd(&app, &origin, 20, |_| get("/page")).await;
    for (i, answer) in answers.iter().enumerate() {
        let call = if i == 0 { "1" } else { "2" };
        assert_eq!((answer.status, answer.header("www-authenticate"), answer.text()), (401, "Basic", call));
    }
    assert_eq!(origin.calls(), 2);
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Miss, "no marker");
    at_rest(&guard).await;

    let user = get_with("/page", &[("authorization", "Bearer t")]);
    assert_eq!(ask(&app, user).await.cache_status(), CacheStatus::Miss);
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit);
}

/// A waiter with credentials may not have the error of another client.
#[tokio::test]
async fn two_client_errors_are_not_given_to_a_client_with_credentials() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, _| {
        let is_known = request.headers().get("authorization").is_some_and(|value| value == "known");
        if is_known { StatusCode::OK } else { StatusCode::FORBIDDEN }
    });
    let app = app.layer(guard.clone());
    let asked = waiting(&app, 3, |i| get_with("/page", &[("x-number", &i.to_string())])).await;
    let known = tokio::spawn(ask(&app, get_with("/page", &[("authorization", "known")])));
    settle().await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.status == 403 || answer.status == 200));
    assert_eq!(known.await.expect("no panic").status, 200);
    at_rest(&guard).await;
}

/// `private`, `no-store` and `Set-Cookie` say that the response is for its client alone, but not that another request
/// gets one of this kind.
#[tokio::test]
async fn a_private_client_error_releases_the_herd_after_its_repeat() {
    for field in [("cache-control", "private"), ("cache-control", "no-store"), ("set-cookie", "a=b")] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |_, _| (StatusCode::BAD_REQUEST, [field])).layer(guard.clone());
        let answers = tokio::spawn(waiting(&app, 20, |_| get("/page")).await.answers());
        for call in 1..=2 {
            origin.arrived(call).await;
            settle().await;
            assert_eq!(origin.calls(), call, "one after the other");
            origin.release(1);
        }
        origin.arrived(20).await;
        origin.open();
        assert!(answers.await.expect("no panic").iter().all(|answer| answer.status == 400));
        at_rest(&guard).await;
        assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Miss, "no marker");
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

/// Seen to fail when the waiters did not know of the first failure: they led one after another, and at last each made a
/// call of its own.
#[tokio::test(start_paused = true)]
async fn a_500_of_a_page_that_was_good_costs_two_calls() {
    let policy = Policy::default().stale_if_error(Duration::ZERO);
    let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::gated());
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
    let policy = Policy::fresh_for(Duration::from_secs(60)).stale_if_error(Duration::ZERO);
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
        let (one, two) = tokio::join!(ask(&app, get("/page")), ask(&app, get("/page")));
        assert_eq!([one.cache_status(), two.cache_status()], [expected; 2]);
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
        let encodings = |i: usize| get_with("/page", &[("accept-encoding", &format!("x{i}"))]);
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |_, _| (StatusCode::SERVICE_UNAVAILABLE, [(name, value)], "for one client"));
        let app = app.layer(guard.clone());
        let answers = herd(&app, &origin, 10, encodings).await;
        let (led, waited): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.cache_status() == CacheStatus::Miss);
        assert!(led.iter().all(|led| (led.header(name), led.text()) == (value, "for one client")));
        for answer in waited {
            assert_eq!((answer.status, answer.header(name), answer.text()), (503, "", ""), "{name}");
        }
        assert_eq!((led.len(), origin.calls()), (2, 2));
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
        let end = time::Instant::now() + Duration::from_secs(100);
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

/// At most expiries all honest clients get the page, although one client of ten provokes an error as fast as it can. Seen to
/// fail before: at no expiry for 404, 429, 503 and 504.
#[tokio::test(start_paused = true)]
async fn one_client_of_ten_takes_the_page_at_no_expiry() {
    for code in [400, 404, 429, 500, 503] {
        for (reload, stale, needed) in [(false, true, 99), (true, true, 99), (false, false, 90), (true, false, 90)] {
            let (good, bad) = expiries(code, reload, stale).await;
            println!("{code}, reload {reload}, stale-if-error {stale}: {good} good, {bad} bad");
            assert!(good * 100 >= needed * (good + bad), "{code} {reload} {stale}: {good}, {bad}");
        }
    }
}

/// Returns the number of expiries at which all honest clients got the page, and the number of all other expiries.
async fn expiries(code: u16, reload: bool, stale: bool) -> (usize, usize) {
    let policy = Policy::default();
    let policy = if stale { policy } else { policy.stale_if_error(Duration::ZERO) };
    let guard = StampedeGuard::in_memory().policy(policy);
    let handler = async move |request: Request| {
        time::sleep(Duration::from_millis(50)).await;
        match request.headers().contains_key("x-odd") {
            true => StatusCode::from_u16(code).expect("a status").into_response(),
            false => ([(CACHE_CONTROL, "max-age=1")], "page").into_response(),
        }
    };
    let app = Router::new().route("/page", axum::routing::get(handler)).layer(guard);
    let end = time::Instant::now() + Duration::from_secs(10);
    let clients = (0..10).map(|client| {
        let app = app.clone();
        tokio::spawn(async move {
            let (mut pauses, mut waits) = (fastrand::Rng::with_seed(client), Vec::new());
            while time::Instant::now() < end {
                let began = time::Instant::now();
                let fields = [("x-odd", "1"), ("cache-control", "no-cache")];
                let fields = if client > 0 { &[][..] } else { &fields[..if reload { 2 } else { 1 }] };
                let answer = ask(&app, get_with("/page", fields)).await;
                if client > 0 && (began.elapsed() > Duration::ZERO || answer.status != 200) {
                    waits.push((time::Instant::now(), answer.status));
                }
                let most = if client > 0 { 40 } else { 5 };
                time::sleep(Duration::from_millis(pauses.u64(1..most))).await;
            }
            waits
        })
    });
    let mut waits: Vec<_> = join_all(clients).await.into_iter().flat_map(|waits| waits.expect("no panic")).collect();
    waits.sort();
    let expiries = waits.chunk_by(|one, next| next.0 - one.0 < Duration::from_millis(500));
    let (good, bad): (Vec<_>, Vec<_>) = expiries.partition(|expiry| expiry.iter().all(|(_, status)| *status == 200));
    (good.len(), bad.len())
}
