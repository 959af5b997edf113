//! Responses that depend on more than the URL (RFC 9111 §4.1).

use crate::{
    kit::{ask, at_rest, get, get_with, honouring, on_each_store, request, site, taps, waiting},
    support::Origin,
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderName, Method, StatusCode},
    response::IntoResponse,
    routing::post,
};
use futures_util::stream;
use stampede_guard::{CacheStatus, StampedeGuard};
use std::convert::Infallible;

pub(crate) const LANGUAGES: [&str; 3] = ["de", "en", "fr"];

/// Returns a site that answers in the requested language, with the number of the call.
pub(crate) fn languages(origin: &Origin) -> Router {
    site(origin, |request, n| {
        let fields = [("vary", "accept-language"), ("cache-control", "max-age=60")];
        (fields, format!("{} {n}", field(request, "accept-language")))
    })
}

pub(crate) fn field<'a>(request: &'a Request, name: &str) -> &'a str {
    request.headers().get(name).map_or("", |value| value.to_str().expect("a printable value"))
}

pub(crate) fn speaking(language: &str) -> Request {
    get_with("/page", &[("accept-language", language)])
}

/// Sends these requests one after the other and returns the texts of the responses.
async fn answers(app: &Router, guard: &StampedeGuard, fields: &[&[(&str, &str)]]) -> Vec<String> {
    let mut answers = Vec::new();
    for fields in fields {
        answers.push(ask(app, get_with("/page", fields)).await.text().to_owned());
        at_rest(guard).await;
    }
    answers
}

#[tokio::test]
async fn each_variant_is_stored_separately() {
    for guard in on_each_store("vary-hits") {
        let origin = Origin::new();
        let app = languages(&origin).layer(guard.clone());
        for cache_status in [CacheStatus::Miss, CacheStatus::Hit, CacheStatus::Hit] {
            for (n, language) in LANGUAGES.iter().enumerate() {
                let answer = ask(&app, speaking(language)).await;
                at_rest(&guard).await;
                assert_eq!((answer.text(), answer.cache_status()), (&*format!("{language} {}", n + 1), cache_status));
            }
        }
        let miss = ask(&app, speaking("it")).await;
        assert_eq!(miss.header("cache-status"), "stampede-guard; fwd=vary-miss; fwd-status=200; stored");
    }
}

/// It is not known yet that the responses vary, and perhaps not how long they are.
#[tokio::test]
async fn a_cold_herd_costs_one_call_for_each_value() {
    for length_is_known in [true, false] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |request, _| {
            let text = field(request, "accept-language").to_owned();
            let chunks = stream::iter([Ok::<_, Infallible>(text.clone())]);
            let body = if length_is_known { Body::from(text) } else { Body::from_stream(chunks) };
            ([("vary", "accept-language")], body)
        });
        let app = app.layer(guard.clone());
        let asked = waiting(&app, 60, |i| speaking(LANGUAGES[i % 3])).await;
        let released = async {
            origin.arrived(1).await;
            assert_eq!(origin.calls(), 1);
            origin.release(1);
            origin.arrived(3).await;
            assert_eq!(origin.running(), 2, "no variant waits for another");
            origin.open();
        };
        let (answers, ()) = tokio::join!(asked.answers(), released);
        let led = answers.iter().filter(|answer| answer.cache_status() == CacheStatus::Miss).count();
        assert_eq!((led, origin.calls()), (3, 3));
        for (i, answer) in answers.iter().enumerate() {
            assert_eq!(answer.text(), LANGUAGES[i % 3], "{i}");
        }
        at_rest(&guard).await;
    }
}

/// A failure is not stored and so has no variants. All waiters learn of it, and the waiters of its variant get its text.
#[tokio::test]
async fn a_failure_that_varies_reaches_waiters_as_a_status() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, _| {
        (StatusCode::SERVICE_UNAVAILABLE, [("vary", "accept-language")], field(request, "accept-language").to_owned())
    });
    let app = app.layer(guard.clone());
    let asked = waiting(&app, 12, |i| speaking(LANGUAGES[i % 3])).await;
    origin.open();
    let answers = asked.answers().await;
    let led: Vec<_> = answers.iter().filter(|answer| answer.cache_status() == CacheStatus::Miss).collect();
    assert_eq!((led[0].text(), led.len(), origin.calls()), ("de", 2, 2));
    let repeated = answers.iter().position(|answer| std::ptr::eq(answer, led[1])).expect("a waiter");
    assert_ne!(repeated % 3, 0, "the repeat goes to a request of another kind");
    for (i, answer) in answers.iter().enumerate().skip(1) {
        let text = if i % 3 == repeated % 3 { LANGUAGES[i % 3] } else { "" };
        assert_eq!((answer.status, answer.text()), (503, text), "{i}");
    }
    at_rest(&guard).await;
}

/// The head shows which waiters differ. A body may take long and have an unknown length. Seen to fail when
/// waiters that differ returned to the flight they had waited for. Seen to fail when the head of a body of unknown
/// length was not published.
#[tokio::test]
async fn other_variants_do_not_wait_for_the_leaders_body() {
    for size in [Some(7), None] {
        differing(size).await;
    }
}

async fn differing(size: Option<u64>) {
    let (guard, origin, (taps, bodies)) = (StampedeGuard::in_memory(), Origin::new(), taps(1, size));
    let app = site(&origin, move |request, n| {
        let body = if n == 1 { bodies() } else { Body::from(format!("{} {n}", field(request, "accept-language"))) };
        ([("vary", "accept-language")], body)
    });
    let app = app.layer(guard.clone());
    let slow = tokio::spawn(ask(&app, speaking("de")));
    origin.arrived(1).await;
    let others = [0, 1].map(|_| ask(&app, speaking("en")));
    for other in others {
        assert_eq!(other.await.text(), "en 2");
    }
    taps.into_iter().for_each(|tap| tap.send("de slow"));
    assert_eq!(slow.await.expect("no panic").text(), "de slow");
    at_rest(&guard).await;
    assert_eq!(ask(&app, speaking("de")).await.cache_status(), CacheStatus::Hit);
}

/// RFC 9111 §4.1. A page may send `*` in one language only.
#[tokio::test]
async fn a_star_response_is_not_shared_and_keeps_other_variants() {
    for guard in on_each_store("vary-star") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| {
            let vary = if field(request, "accept-language") == "en" { "accept-language, *" } else { "accept-language" };
            ([("vary", vary), ("cache-control", "public, max-age=60")], n.to_string())
        });
        let app = app.layer(guard.clone());
        let (de, en) = (&[("accept-language", "de")][..], &[("accept-language", "en")][..]);
        assert_eq!(answers(&app, &guard, &[de, en, en, de, en, de]).await, ["1", "2", "3", "1", "4", "1"]);
    }
}

/// A CORS layer of tower-http sends this `Vary`, whether or not the request has an `Origin`.
#[tokio::test]
async fn cors_responses_are_never_shared_between_origins() {
    for guard in on_each_store("vary-cors") {
        let calls = Origin::new();
        let app = site(&calls, |request, n| {
            let origin = request.headers().get("origin").cloned();
            let allowed = origin.map(|origin| [("access-control-allow-origin", origin)]);
            let vary = "origin, access-control-request-method, access-control-request-headers";
            let mut response = ([("vary", vary)], n.to_string()).into_response();
            response
                .headers_mut()
                .extend(allowed.into_iter().flatten().map(|(name, value)| (HeaderName::from_static(name), value)));
            response
        });
        let app = app.layer(guard.clone());
        for _ in 0..2 {
            for (n, origin) in [Some("https://a.example"), Some("https://b.example"), None].into_iter().enumerate() {
                let fields: Vec<_> = origin.map(|origin| ("origin", origin)).into_iter().collect();
                let answer = ask(&app, get_with("/page", &fields)).await;
                assert_eq!(answer.text(), (n + 1).to_string());
                assert_eq!(answer.header("access-control-allow-origin"), origin.unwrap_or_default());
                at_rest(&guard).await;
            }
        }
    }
}

#[tokio::test]
async fn an_absent_field_differs_from_an_empty_one() {
    for guard in on_each_store("vary-absent") {
        let origin = Origin::new();
        let app = languages(&origin).layer(guard.clone());
        let (absent, empty) = (&[][..], &[("accept-language", "")][..]);
        assert_eq!(answers(&app, &guard, &[absent, empty, absent, empty]).await, [" 1", " 2", " 1", " 2"]);
    }
}

/// German also varies by `x-tier`, English by nothing, French by only one of the two fields.
#[tokio::test]
async fn variants_may_name_different_vary_fields() {
    for guard in on_each_store("vary-nested") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| {
            let vary = match field(request, "accept-language") {
                "de" => "x-tier, accept-language, x-brand",
                "en" => "",
                "fr" => "x-brand",
                _ => "accept-language, x-brand",
            };
            ([("vary", vary), ("cache-control", "public, max-age=60")], n.to_string())
        });
        let app = app.layer(guard.clone());
        let ask = |language: &'static str, tier: &'static str| [("accept-language", language), ("x-tier", tier)];
        let [first, de, gold, en, fr] = [ask("it", ""), ask("de", ""), ask("de", "gold"), ask("en", ""), ask("fr", "")];
        let [en_gold, fr_gold, it_gold] = [ask("en", "gold"), ask("fr", "gold"), ask("it", "gold")];
        let asked: Vec<&[_]> = vec![&first, &de, &gold, &en, &fr];
        assert_eq!(answers(&app, &guard, &asked).await, ["1", "2", "3", "4", "5"]);
        assert_eq!(answers(&app, &guard, &asked).await, ["1", "2", "3", "4", "5"], "all variants are stored");
        assert_eq!(
            answers(&app, &guard, &[&en_gold, &fr_gold, &it_gold]).await,
            ["4", "5", "1"],
            "the tier does not select them"
        );
    }
}

/// The herd differs in a field that the leader's response does not name, but that other responses do.
#[tokio::test]
async fn a_herd_follows_two_vary_indexes() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = site(&origin, |request, n| {
        let (language, tier) = (field(request, "accept-language"), field(request, "x-tier"));
        let vary = if language == "de" { "accept-language" } else { "accept-language, x-tier" };
        ([("vary", vary), ("cache-control", "public, max-age=60")], format!("{language} {tier} {n}"))
    });
    let app = app.layer(guard.clone());
    let fields = |i: usize| [("accept-language", ["de", "en"][i % 2]), ("x-tier", ["gold", "tin"][i / 2 % 2])];
    let asked = waiting(&app, 40, |i| get_with("/page", &fields(i))).await;
    origin.open();
    let answers = asked.answers().await;
    for (i, answer) in answers.iter().enumerate() {
        let [(_, language), (_, tier)] = fields(i);
        let expected = if language == "de" { "de gold".to_owned() } else { format!("{language} {tier}") };
        assert!(answer.text().starts_with(&expected), "{i}: {}", answer.text());
    }
    assert_eq!(origin.calls(), 3, "German, and English twice");
    at_rest(&guard).await;
}

/// Routers answer like this: the handler sends `Vary`, the fallback does not.
#[tokio::test]
async fn a_response_without_vary_is_stored_beside_variants() {
    for guard in on_each_store("vary-404") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| match field(request, "accept-language") {
            "fr" => (StatusCode::NOT_FOUND, [("vary", "")], n.to_string()),
            _ => (StatusCode::OK, [("vary", "accept-language")], n.to_string()),
        });
        let app = app.layer(guard.clone());
        for _ in 0..2 {
            for (language, status, n) in [("de", 200, "1"), ("fr", 404, "2"), ("en", 200, "3")] {
                let answer = ask(&app, speaking(language)).await;
                assert_eq!((answer.status, answer.text()), (status, n), "{language}");
                at_rest(&guard).await;
            }
        }
    }
}

/// RFC 9111 §4.1: a response that names no field is selected by every request, until the next response names one.
#[tokio::test]
async fn a_page_begins_to_vary_with_its_next_response() {
    for guard in on_each_store("vary-begins") {
        let (guard, origin) = (honouring(guard), Origin::new());
        let app = site(&origin, |_, n| ([("vary", if n == 1 { "" } else { "accept-language" })], n.to_string()));
        let app = app.layer(guard.clone());
        let [de, en] = ["de", "en"].map(|language| [("accept-language", language)]);
        assert_eq!(answers(&app, &guard, &[&de, &en]).await, ["1", "1"]);
        let reload = [de[0], ("cache-control", "no-cache")];
        assert_eq!(answers(&app, &guard, &[&reload, &en, &de, &en]).await, ["2", "3", "2", "3"]);
    }
}

/// A page per session that may be stored: users with the same cookie share it, other users do not.
#[tokio::test]
async fn a_cookie_selects_like_any_other_field() {
    for guard in on_each_store("vary-cookie") {
        let origin = Origin::new();
        let fields = [("vary", "cookie"), ("cache-control", "public, max-age=60")];
        let app = site(&origin, move |request, n| (fields, format!("{} {n}", field(request, "cookie"))));
        let app = app.layer(guard.clone());
        let asked = ["a", "b"].map(|cookie| [("cookie", cookie)]);
        let [a, b] = &asked;
        assert_eq!(answers(&app, &guard, &[a, b, &[], a, b, &[]]).await, ["a 1", "b 2", " 3", "a 1", "b 2", " 3"]);
    }
}

#[derive(Clone, Copy, Debug)]
enum Change {
    Named,
    Posted,
}

/// The change comes from the application, or from a client. Seen to fail with the id of the index left out of the
/// variants: the next index finds the old variants again.
#[tokio::test]
async fn a_change_drops_every_variant_stored_or_under_way() {
    for change in [Change::Named, Change::Posted] {
        for guard in on_each_store(&format!("vary-changed-{change:?}")) {
            let origin = Origin::gated();
            let site = post(async || "done").get_service(languages(&origin));
            let app = Router::new().route("/page", site).layer(guard.clone());
            origin.release(2);
            for language in ["de", "en"] {
                ask(&app, speaking(language)).await;
                at_rest(&guard).await;
            }
            let late = tokio::spawn(ask(&app, speaking("fr")));
            origin.arrived(3).await;
            match change {
                Change::Named => {
                    let url = "http://example.test/page".parse().expect("a URL");
                    guard.invalidate_url(&url).await.expect("dropped");
                }
                Change::Posted => {
                    assert_eq!(ask(&app, request(Method::POST, "/page", &[])).await.text(), "done");
                }
            }
            origin.open();
            assert_eq!(late.await.expect("no panic").text(), "fr 3", "for the earlier request");
            at_rest(&guard).await;
            for expected in ["fr 4", "de 5", "en 6"] {
                assert_eq!(ask(&app, speaking(&expected[..2])).await.text(), expected, "{change:?}");
                at_rest(&guard).await;
            }
        }
    }
}

#[tokio::test]
async fn a_head_request_is_answered_by_its_own_variant() {
    for guard in on_each_store("vary-head") {
        let origin = Origin::new();
        let app = site(&origin, |request, _| {
            let language = field(request, "accept-language").to_owned();
            ([("vary", "accept-language".to_owned()), ("content-language", language)], "page")
        });
        let app = app.layer(guard.clone());
        for language in ["de", "en"] {
            ask(&app, speaking(language)).await;
            at_rest(&guard).await;
        }
        for language in ["de", "en"] {
            let head = ask(&app, request(Method::HEAD, "/page", &[("accept-language", language)])).await;
            assert_eq!((head.header("content-language"), head.cache_status()), (language, CacheStatus::Hit));
        }
        let refused = [("accept-language", "fr"), ("cache-control", "only-if-cached")];
        assert_eq!(ask(&app, get_with("/page", &refused)).await.status, 504);
        assert_eq!(ask(&app, get("/page")).await.header("content-language"), "");
        assert_eq!(origin.calls(), 3);
    }
}
