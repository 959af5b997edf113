//! Asking the origin whether what is stored still holds (RFC 9111 §4.3).

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, request, site, waiting},
    support::Origin,
    vary::{field, speaking},
};
use axum::{
    Router,
    extract::Request,
    http::{Method, StatusCode},
    response::{IntoResponse, Response},
};
use stampede_guard::{CacheVerdict, Policy, StampedeGuard};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time;

/// Silent answers are fresh for ten seconds, to the millisecond.
fn ten_seconds() -> StampedeGuard {
    StampedeGuard::in_memory().policy(Policy::fresh_for(Duration::from_secs(10)).jitter(0.0))
}

/// The conditions that the origin has seen, call by call: `If-None-Match`, `If-Modified-Since`.
#[derive(Clone, Default)]
struct Conditions(Arc<Mutex<Vec<(String, String)>>>);

impl Conditions {
    fn note(&self, request: &Request) {
        let seen = (field(request, "if-none-match").to_owned(), field(request, "if-modified-since").to_owned());
        self.0.lock().expect("nobody panics").push(seen);
    }

    fn seen(&self) -> Vec<(String, String)> {
        self.0.lock().expect("nobody panics").clone()
    }
}

/// One page that never changes; its head says which call made it.
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

/// Stored heads have room for both fields. Seen to fail when a 304 freshened the stored head with that room in it.
#[tokio::test(start_paused = true)]
async fn each_answer_says_its_own_age_and_status_once() {
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
            assert_eq!(values(answer, "cache-status"), ["stampede-guard; hit; ttl=10"]);
            assert_eq!(values(answer, "age"), ["0"]);
        }
        time::advance(Duration::from_secs(10)).await;
    }
}

fn page(answer: &Answer) -> (u16, &str, &str) {
    (answer.status, answer.text(), answer.header("x-call"))
}

/// §4.3.1, §4.3.4. With the conditions left out of the leader's request, the second call brings another page.
#[tokio::test(start_paused = true)]
async fn a_herd_on_what_is_stale_asks_once_and_a_304_freshens_it() {
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
    assert!(answers.iter().all(|answer| page(answer) == (200, "page 1", "2")), "the body of then, the head of now");
    assert_eq!(answers[0].header("cache-status"), "stampede-guard; fwd=stale; fwd-status=304; stored");
    assert_eq!(conditions.seen(), [Default::default(), of_the_cache()]);
    at_rest(&guard).await;

    time::advance(Duration::from_secs(9)).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!(page(&hit), (200, "page 1", "2"));
    assert_eq!((hit.header("cache-status"), hit.header("age")), ("stampede-guard; hit; ttl=1", "9"));
    at_rest(&guard).await;
}

/// §5.2.2.4.
#[tokio::test]
async fn a_no_cache_is_validated_before_each_use() {
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
async fn a_full_answer_takes_the_place_of_what_was_asked_about() {
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

/// §4.3.3, §4.2.4, §5.2.2.2: a 5xx is passed on, unless what is stored may stand in for it.
#[tokio::test(start_paused = true)]
async fn an_origin_in_trouble_is_forgiven_only_where_that_is_allowed() {
    for (control, status) in [
        ("max-age=10", 503),
        ("max-age=10, stale-if-error=60", 200),
        ("max-age=10, stale-if-error=60, must-revalidate", 503),
        ("max-age=10, stale-if-error=60, proxy-revalidate", 503),
        ("s-maxage=10, stale-if-error=60", 503),
        ("no-cache, stale-if-error=60", 503),
    ] {
        let (guard, origin) = (ten_seconds(), Origin::gated());
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
        assert_eq!(origin.calls(), 2, "{control}");
        at_rest(&guard).await;
    }
}

/// §4.3.4: whatever it is about, it freshens nothing. Its client gets what was asked about, if that may be stale at all.
/// Seen to fail with the entry left where it is: no call from then on asks for all.
#[tokio::test]
async fn a_304_about_another_response_is_no_answer_and_the_next_call_asks_for_all() {
    for guard in on_each_store("other-304") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| match field(request, "if-none-match") {
            "" => {
                let control = if request.uri().path() == "/strict" { "no-cache" } else { "max-age=0" };
                ([("etag", "\"a\""), ("cache-control", control)], n.to_string()).into_response()
            }
            _ => (StatusCode::NOT_MODIFIED, [("etag", "\"b\"")]).into_response(),
        });
        let app = app.layer(guard.clone());
        for (path, expected) in
            [("/strict", [(200, "1"), (502, ""), (200, "3")]), ("/page", [(200, "4"), (200, "4"), (200, "6")])]
        {
            for (status, text) in expected {
                let answer = ask(&app, get(path)).await;
                assert_eq!((answer.status, answer.text()), (status, text), "{path}");
                at_rest(&guard).await;
            }
        }
    }
}

/// Seen to fail with everybody turned away by it: each one makes a call of its own.
#[tokio::test]
async fn those_who_wait_for_a_304_about_another_response_ask_again_together() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, n| match field(request, "if-none-match") {
        "" => ([("etag", "\"a\""), ("cache-control", "max-age=0")], n.to_string()).into_response(),
        _ => (StatusCode::NOT_MODIFIED, [("etag", "\"b\"")]).into_response(),
    });
    let app = app.layer(guard.clone());
    origin.release(1);
    assert_eq!(ask(&app, get("/page")).await.text(), "1");
    at_rest(&guard).await;
    let asked = waiting(&app, 10, |_| get("/page")).await;
    origin.open();
    let answers = asked.answers().await;
    assert_eq!(answers[0].text(), "1");
    assert!(answers[1..].iter().all(|answer| answer.text() == "3"));
    assert_eq!(origin.calls(), 3);
    at_rest(&guard).await;
}

/// §4.3.2: whoever is answered from the cache gets its 304 from the cache, whoever leads from what the origin says. What
/// the origin is asked is about what is stored.
#[tokio::test(start_paused = true)]
async fn a_clients_conditions_are_evaluated_here_and_go_no_further() {
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
async fn a_refresh_behind_asks_whether_it_has_changed() {
    let (guard, origin) = (ten_seconds(), Origin::gated());
    let (site, conditions) = unchanged(&origin, "max-age=10, stale-while-revalidate=60");
    let app = site.layer(guard.clone());
    origin.release(1);
    assert_eq!(page(&ask(&app, get("/page")).await), (200, "page 1", "1"));
    at_rest(&guard).await;
    time::advance(Duration::from_secs(11)).await;
    for _ in 0..5 {
        let stale = ask(&app, get("/page")).await;
        assert_eq!((page(&stale), stale.verdict()), ((200, "page 1", "1"), CacheVerdict::Stale));
    }
    origin.open();
    at_rest(&guard).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!((page(&hit), hit.verdict()), ((200, "page 1", "2"), CacheVerdict::Hit));
    assert_eq!(conditions.seen(), [Default::default(), of_the_cache()]);
}

/// §4.3.4: a 304 need not say `Vary` again.
#[tokio::test(start_paused = true)]
async fn a_304_freshens_its_variant_alone_which_stays_one() {
    let (guard, origin) = (ten_seconds(), Origin::new());
    let app = site(&origin, |request, n| {
        let language = field(request, "accept-language").to_owned();
        let etag = format!("\"{language}\"");
        match field(request, "if-none-match") {
            "" => ([("etag", &*etag), ("vary", "accept-language")], format!("{language} {n}")).into_response(),
            asked => {
                assert_eq!(asked, etag, "about the variant of the one who asks");
                (StatusCode::NOT_MODIFIED, [("etag", etag)]).into_response()
            }
        }
    });
    let app = app.layer(guard.clone());
    for round in 0..3 {
        for (n, language) in ["de", "en"].into_iter().enumerate() {
            for verdict in [CacheVerdict::Filled, CacheVerdict::Hit] {
                let answer = ask(&app, speaking(language)).await;
                assert_eq!((answer.text(), answer.verdict()), (&*format!("{language} {}", n + 1), verdict));
                assert_eq!((answer.header("vary"), origin.calls()), ("accept-language", 2 * round + n + 1));
                at_rest(&guard).await;
            }
        }
        time::advance(Duration::from_secs(11)).await;
    }
}

/// §3.2: the newer head is judged as that of a full answer would be.
#[tokio::test]
async fn a_304_may_end_the_sharing() {
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
