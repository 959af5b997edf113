//! Validation of stored responses by the origin (RFC 9111 §4.3).

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, request, site, waiting},
    support::{Origin, RedisServer},
    vary::{field, speaking},
};
use axum::{
    Router,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use stampede_guard::{CacheStatus, Policy, StampedeGuard};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time;

/// Returns a guard with a default freshness of exactly ten seconds.
fn ten_seconds() -> StampedeGuard {
    StampedeGuard::in_memory().policy(Policy::fresh_for(Duration::from_secs(10)).jitter(0.0))
}

/// The conditions that the origin has seen, call by call: `If-None-Match`, `If-Modified-Since`.
#[derive(Clone, Default)]
struct Conditions(Arc<Mutex<Vec<(String, String)>>>);

impl Conditions {
    fn note(&self, request: &Request) {
        let seen = (field(request, "if-none-match").to_owned(), field(request, "if-modified-since").to_owned());
        self.0.lock().expect("no panic").push(seen);
    }

    fn seen(&self) -> Vec<(String, String)> {
        self.0.lock().expect("no panic").clone()
    }
}

/// Returns a site with one page that never changes; its head names the call that made it.
fn unchanged(origin: &Origin, control: &'static str) -> (Router, Conditions) {
    let conditions = Conditions::default();
    let noted = conditions.clone();
    let respond = move |request: &Request, n: usize| -> Response {
        noted.note(request);
        let call = n.to_string();
        let fields =
            [("etag", "\"a\""), ("last-modified", MODIFIED), ("cache-control", control), ("x-call", call.as_str())];
        match field(request, "if-none-match") == "\"a\"" {
            true => (StatusCode::NOT_MODIFIED, fields).into_response(),
            false => (fields, format!("page {n}")).into_response(),
        }
    };
    (site(origin, respond), conditions)
}

fn of_the_cache() -> (String, String) {
    ("\"a\"".to_owned(), MODIFIED.to_owned())
}

/// Stored heads have room for both fields. Seen to fail when a 304 freshened the stored head together with that room.
#[tokio::test(start_paused = true)]
async fn each_response_has_one_age_and_one_cache_status() {
    let (guard, origin) = (ten_seconds(), Origin::new());
    let app = unchanged(&origin, "public").0.layer(guard.clone());
    let ask_all = async || {
        let whole = ask(&app, get("/page")).await;
        at_rest(&guard).await;
        let others = [
            get("/page"),
            get_with("/page", &[("if-none-match", "\"a\"")]),
            get_with("/page", &[("range", "bytes=0-1")]),
            request(Method::HEAD, "/page", &[]),
        ];
        let mut answers = vec![whole];
        for other in others {
            answers.push(ask(&app, other).await);
        }
        answers
    };
    let values = |answer: &Answer, name: &str| -> Vec<String> {
        answer.headers.get_all(name).iter().map(|value| value.to_str().expect("ASCII").to_owned()).collect()
    };
    for how in ["fwd=uri-miss; fwd-status=200; stored", "fwd=stale; fwd-status=304; stored"] {
        let answers = ask_all().await;
        assert_eq!(values(&answers[0], "cache-status"), [format!("stampede-guard; {how}")]);
        assert_eq!(values(&answers[0], "age"), [""; 0]);
        for (answer, status) in answers[1..].iter().zip([200, 304, 206, 200]) {
            assert_eq!(answer.status, status);
            assert_eq!(values(answer, "cache-status"), ["stampede-guard; hit"]);
            assert_eq!(values(answer, "age"), ["0"]);
        }
        time::advance(Duration::from_secs(10)).await;
    }
}

fn page(answer: &Answer) -> (u16, &str, &str) {
    (answer.status, answer.text(), answer.header("x-call"))
}

/// §4.3.1, §4.3.4. Fails if the leader's request has no conditions: the second call then returns another page.
#[tokio::test(start_paused = true)]
async fn a_herd_on_a_stale_page_validates_once_and_freshens_it() {
    let (guard, origin) = (ten_seconds(), Origin::gated());
    let (site, conditions) = unchanged(&origin, "max-age=10");
    let app = site.layer(guard.clone());
    origin.release(1);
    assert_eq!(page(&ask(&app, get("/page")).await), (200, "page 1", "1"));
    at_rest(&guard).await;

    time::advance(Duration::from_secs(11)).await;
    let asked = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert!(answers.iter().all(|answer| page(answer) == (200, "page 1", "2")), "the stored body with the new head");
    assert_eq!(answers[0].header("cache-status"), "stampede-guard; fwd=stale; fwd-status=304; stored");
    assert_eq!(conditions.seen(), [Default::default(), of_the_cache()]);
    at_rest(&guard).await;

    time::advance(Duration::from_secs(9)).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!(page(&hit), (200, "page 1", "2"));
    assert_eq!((hit.header("cache-status"), hit.header("age")), ("stampede-guard; hit", "9"));
    at_rest(&guard).await;
}

/// §5.2.2.4.
#[tokio::test]
async fn a_no_cache_response_is_validated_before_each_use() {
    for guard in on_each_store("validated") {
        let origin = Origin::new();
        let (site, conditions) = unchanged(&origin, "no-cache");
        let app = site.layer(guard.clone());
        for call in ["1", "2", "3"] {
            assert_eq!(page(&ask(&app, get("/page")).await), (200, "page 1", call));
            at_rest(&guard).await;
        }
        assert_eq!(conditions.seen(), [Default::default(), of_the_cache(), of_the_cache()]);
    }
}

/// §4.3.3: the origin may always send another page.
#[tokio::test]
async fn a_full_response_replaces_the_validated_one() {
    for guard in on_each_store("replaced") {
        let (origin, conditions) = (Origin::new(), Conditions::default());
        let noted = conditions.clone();
        let app = site(&origin, move |request, n| {
            noted.note(request);
            let fields = [("etag", format!("\"{n}\"")), ("cache-control", "no-cache".to_owned())];
            (fields, n.to_string())
        });
        let app = app.layer(guard.clone());
        for n in ["1", "2", "3"] {
            assert_eq!(ask(&app, get("/page")).await.text(), n);
            at_rest(&guard).await;
        }
        let asked: Vec<_> = conditions.seen().into_iter().map(|(tag, _)| tag).collect();
        assert_eq!(asked, ["", "\"1\"", "\"2\""]);
    }
}

/// §4.3.3, §4.2.4, §5.2.2.2: a 5xx is passed on, unless the stored response may replace it.
#[tokio::test(start_paused = true)]
async fn a_5xx_on_validation_serves_stale_only_if_allowed() {
    for (control, status, calls) in [
        ("max-age=10", 503, 2), // the error is stored
        ("max-age=10, stale-if-error=60", 200, 3),
        ("max-age=10, stale-if-error=60, must-revalidate", 503, 2),
        ("max-age=10, stale-if-error=60, proxy-revalidate", 503, 2),
        ("s-maxage=10, stale-if-error=60", 503, 2),
        ("no-cache, stale-if-error=60", 503, 6), // each request validates it for itself
    ] {
        let policy = Policy::fresh_for(Duration::from_secs(10)).stale_if_error(Duration::ZERO);
        let (guard, origin) = (StampedeGuard::in_memory().policy(policy), Origin::gated());
        let app = site(&origin, move |_, n| {
            let status = if n == 1 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
            (status, [("etag", "\"a\""), ("cache-control", control)], n.to_string())
        });
        let app = app.layer(guard.clone());
        origin.release(1);
        assert_eq!(ask(&app, get("/page")).await.status, 200);
        at_rest(&guard).await;
        time::advance(Duration::from_secs(11)).await;
        let asked = waiting(&app, 5, |_| get("/page")).await;
        origin.open();
        for answer in asked.answers().await {
            assert_eq!(answer.status, status, "{control}");
        }
        assert_eq!(origin.calls(), calls, "{control}");
        at_rest(&guard).await;
    }
}

/// §4.3.4: a mismatched 304 freshens nothing. Seen to fail with the entry kept: no later call requests the full response.
#[tokio::test]
async fn a_mismatched_304_is_followed_by_a_full_fetch() {
    for guard in on_each_store("other-304") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| match field(request, "if-none-match") {
            "" => ([("etag", "\"a\""), ("cache-control", "max-age=0")], n.to_string()).into_response(),
            _ => (StatusCode::NOT_MODIFIED, [("etag", "\"b\"")]).into_response(),
        });
        let app = app.layer(guard.clone());
        for (status, text) in [(200, "1"), (502, ""), (200, "3")] {
            let answer = ask(&app, get("/page")).await;
            assert_eq!((answer.status, answer.text()), (status, text));
            at_rest(&guard).await;
        }
    }
}

/// Seen to fail when the mismatched 304 turned all waiters away: each made a call of its own.
#[tokio::test]
async fn waiters_of_a_mismatched_304_retry_together() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, n| match field(request, "if-none-match") {
        "" => ([("etag", "\"a\""), ("cache-control", "public, max-age=0")], n.to_string()).into_response(),
        _ => (StatusCode::NOT_MODIFIED, [("etag", "\"b\"")]).into_response(),
    });
    let app = app.layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    at_rest(&guard).await;
    let asked = waiting(&app, 10, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert_eq!(answers[0].status, 502);
    assert!(answers[1..].iter().all(|answer| answer.text() == "3"));
    assert_eq!(origin.calls(), 3);
    at_rest(&guard).await;
}

/// §4.3.2: a hit gets its 304 from the cache, a leader's caller from the new response. The origin only sees the
/// conditions of the stored response.
#[tokio::test(start_paused = true)]
async fn a_clients_conditions_are_evaluated_by_the_cache_alone() {
    let (guard, origin) = (ten_seconds(), Origin::new());
    let (site, conditions) = unchanged(&origin, "max-age=10");
    let app = site.layer(guard.clone());
    let (known, other) = (("if-none-match", "W/\"a\""), ("if-none-match", "\"b\""));
    let since = [("if-modified-since", MODIFIED), ("if-modified-since", "Sun, 06 Nov 1994 08:49:36 GMT")];
    for (calls, condition, status) in [
        (1, other, 200),
        (1, known, 304),
        (1, since[0], 304),
        (1, since[1], 200),
        (2, known, 304),
        (2, other, 200),
        (3, other, 200),
        (4, since[0], 304),
    ] {
        if calls > origin.calls() {
            time::advance(Duration::from_secs(11)).await;
        }
        let answer = ask(&app, get_with("/page", &[condition])).await;
        let body = if status == 200 { "page 1" } else { "" };
        assert_eq!((answer.status, answer.text(), origin.calls()), (status, body, calls), "{condition:?}");
        assert_eq!(answer.header("etag"), "\"a\"");
        at_rest(&guard).await;
    }
    assert_eq!(conditions.seen(), [Default::default(), of_the_cache(), of_the_cache(), of_the_cache()]);
}

/// RFC 5861 §3.
#[tokio::test(start_paused = true)]
async fn a_background_refresh_is_conditional() {
    let (guard, origin) = (ten_seconds(), Origin::gated());
    let (site, conditions) = unchanged(&origin, "max-age=10, stale-while-revalidate=60");
    let app = site.layer(guard.clone());
    origin.release(1);
    assert_eq!(page(&ask(&app, get("/page")).await), (200, "page 1", "1"));
    at_rest(&guard).await;
    time::advance(Duration::from_secs(11)).await;
    for _ in 0..5 {
        let stale = ask(&app, get("/page")).await;
        assert_eq!((page(&stale), stale.cache_status()), ((200, "page 1", "1"), CacheStatus::Stale));
    }
    origin.open();
    at_rest(&guard).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!((page(&hit), hit.cache_status()), ((200, "page 1", "2"), CacheStatus::Hit));
    assert_eq!(conditions.seen(), [Default::default(), of_the_cache()]);
}

/// §4.3.4: a 304 need not repeat `Vary`.
#[tokio::test(start_paused = true)]
async fn a_304_freshens_only_its_own_variant() {
    let (guard, origin) = (ten_seconds(), Origin::new());
    let app = site(&origin, |request, n| {
        let language = field(request, "accept-language").to_owned();
        let etag = format!("\"{language}\"");
        match field(request, "if-none-match") {
            "" => ([("etag", &*etag), ("vary", "accept-language")], format!("{language} {n}")).into_response(),
            asked => {
                assert_eq!(asked, etag, "about the requested variant");
                (StatusCode::NOT_MODIFIED, [("etag", etag)]).into_response()
            }
        }
    });
    let app = app.layer(guard.clone());
    for round in 0..3 {
        for (n, language) in ["de", "en"].into_iter().enumerate() {
            for cache_status in [CacheStatus::Miss, CacheStatus::Hit] {
                let answer = ask(&app, speaking(language)).await;
                assert_eq!((answer.text(), answer.cache_status()), (&*format!("{language} {}", n + 1), cache_status));
                assert_eq!((answer.header("vary"), origin.calls()), ("accept-language", 2 * round + n + 1));
                at_rest(&guard).await;
            }
        }
        time::advance(Duration::from_secs(11)).await;
    }
}

/// The 304 has another `Date` and other fields. One that lengthens the head moves the body, and all is sent.
///
/// Seen to fail (100 KB for each 304) when the page is sent as a whole.
#[tokio::test]
async fn a_304_does_not_send_the_body_to_redis() {
    for vary in ["x-none", "accept-language"] {
        let (server, origin) = (RedisServer::start(), Origin::new());
        let [here, there] =
            [(); 2].map(|()| StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(30)));
        let respond = move |request: &Request, n: usize| -> Response {
            let call = n.to_string();
            let fields =
                [("etag", "\"a\""), ("cache-control", "public, no-cache"), ("vary", vary), ("x-call", call.as_str())];
            match field(request, "if-none-match") == "\"a\"" {
                true => (StatusCode::NOT_MODIFIED, fields).into_response(),
                false => (fields, "x".repeat(100_000)).into_response(),
            }
        };
        let site = site(&origin, respond);
        let apps = [&here, &there].map(|guard| site.clone().layer(guard.clone()));
        ask(&apps[0], speaking("en")).await;
        at_rest(&here).await;
        for call in 2..=11 {
            let (before, app) = (server.received().await, &apps[call % 2]);
            let answer = ask(app, speaking("en")).await;
            at_rest([&here, &there][call % 2]).await;
            assert_eq!((answer.header("x-call"), answer.text().len()), (&*call.to_string(), 100_000), "{vary}");
            let sent = server.received().await - before;
            assert_eq!(sent > 100_000, call == 10, "{vary}: {sent} bytes for call {call}");
        }
        assert_eq!(origin.calls(), 11);
        assert_eq!([&here, &there].map(|guard| guard.stats().corrupt_entries), [0, 0]);
    }
}

/// §3.2: the newer head is evaluated like that of a full response.
#[tokio::test]
async fn a_304_may_make_a_response_uncacheable() {
    for control in ["no-store", "private"] {
        for guard in on_each_store(&format!("304-{control}")) {
            let origin = Origin::new();
            let app = site(&origin, move |request, n| match field(request, "if-none-match") {
                "" if n == 1 => ([("etag", "\"a\""), ("cache-control", "no-cache")], n.to_string()).into_response(),
                "" => ([("cache-control", control)], n.to_string()).into_response(),
                _ => (StatusCode::NOT_MODIFIED, [("cache-control", control)]).into_response(),
            });
            let app = app.layer(guard.clone());
            for n in ["1", "1", "3", "4"] {
                let answer = ask(&app, get("/page")).await;
                assert_eq!((answer.status, answer.text()), (200, n), "{control}");
                at_rest(&guard).await;
            }
        }
    }
}

const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
