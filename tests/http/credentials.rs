//! Requests with credentials (RFC 9111 §3.5), and the responses that they may share.

use crate::{
    kit::{Answer, ask, at_rest, get, get_with, on_each_store, site, waiting},
    support::Origin,
    vary::field,
};
use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use stampede_guard::{CacheStatus, StampedeGuard};
use std::time::Duration;

/// Returns a site that allows anonymous responses to be stored, and marks responses to users as private.
fn personal(origin: &Origin) -> Router {
    site(origin, |request, n| -> Response {
        match field(request, "cookie") {
            "" => ([("cache-control", "max-age=60")], format!("a stranger {n}")).into_response(),
            user => ([("cache-control", "private")], format!("{user} {n}")).into_response(),
        }
    })
}

fn user(i: usize) -> Request {
    get_with("/page", &[("cookie", &format!("user={i}"))])
}

fn count_by_status(answers: &[Answer], cache_status: CacheStatus) -> usize {
    answers.iter().filter(|answer| answer.cache_status() == cache_status).count()
}

#[tokio::test]
async fn a_herd_of_users_shares_a_public_response() {
    for control in ["public", "s-maxage=60", "public, no-cache=\"x-none\", s-maxage=60"] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let fields = [("cache-control", control), ("etag", "\"a\"")];
        let app = site(&origin, move |_, n| (fields, n.to_string())).layer(guard.clone());
        let asked = waiting(&app, 20, user).await;
        origin.open();
        let answers = asked.answers().await;
        assert!(answers.iter().all(|answer| answer.text() == "1"), "{control}");
        assert_eq!((origin.calls(), count_by_status(&answers, CacheStatus::Coalesced)), (1, 19), "{control}");
        at_rest(&guard).await;
    }
}

/// Origin calls for two users and an anonymous client with two requests each: `Cache-Control`, calls with `Cookie` as
/// the credential, calls with `Authorization`.
const SHARED: &[(&str, usize, usize)] = &[
    ("", 5, 5),
    ("max-age=60", 5, 5),
    ("max-age=60, must-revalidate", 5, 1),
    ("max-age=60, proxy-revalidate", 5, 5),
    ("s-maxage=60", 1, 1),
    ("public, max-age=60", 1, 1),
    ("public", 1, 1),
    ("private", 6, 6),
    ("public, private", 6, 6),
    ("public, no-store", 6, 6),
    ("s-maxage=60, private=\"x-field\"", 6, 6),
];

/// Fails if `admits` is always true: users then get the pages of other users.
#[tokio::test]
async fn responses_to_users_are_shared_only_if_they_allow_it() {
    for (credential, column) in [("cookie", 0), ("authorization", 1)] {
        for &(control, cookie, authorization) in SHARED {
            for guard in on_each_store(&format!("credentials {credential} {control}")) {
                let origin = Origin::new();
                let app = site(&origin, move |request, n| {
                    ([("cache-control", control)], format!("{} {n}", field(request, credential)))
                });
                let app = app.layer(guard.clone());
                let calls = [cookie, authorization][column];
                for name in ["a", "a", "b", "b", "", ""] {
                    let fields: Vec<_> = (!name.is_empty()).then_some((credential, name)).into_iter().collect();
                    let answer = ask(&app, get_with("/page", &fields)).await;
                    let shared = calls == 1;
                    assert!(shared || answer.text().starts_with(&format!("{name} ")), "{control}: {}", answer.text());
                    at_rest(&guard).await;
                }
                assert_eq!(origin.calls(), calls, "{credential}: {control}");
            }
        }
    }
}

/// The first user's request holds up the other users, because nothing is known of the page yet. The hit-for-pass marker
/// applies to requests with credentials only. Fails if its audience is ignored: each anonymous request then makes a
/// call of its own.
#[tokio::test]
async fn private_pages_cost_each_user_a_call_and_anonymous_one() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = personal(&origin).layer(guard.clone());
    for (before, at_once) in [(1, 19), (20, 20)] {
        let users = waiting(&app, 20, user).await;
        let released = async {
            if before == 1 {
                origin.arrived(1).await;
                origin.release(1);
            }
            origin.arrived(before + at_once).await;
            assert_eq!(origin.running(), at_once, "all at once");
            origin.release(at_once);
        };
        let (answers, ()) = tokio::join!(users.answers(), released);
        for (i, answer) in answers.iter().enumerate() {
            assert!(answer.text().starts_with(&format!("user={i} ")), "{}", answer.text());
        }
        at_rest(&guard).await;
    }
    let strangers = waiting(&app, 20, |_| get("/page")).await;
    origin.open();
    let answers = strangers.answers().await;
    assert!(answers.iter().all(|answer| answer.text() == "a stranger 41"));
    assert_eq!(origin.calls(), 41);
    at_rest(&guard).await;
    assert_eq!(ask(&app, user(7)).await.text(), "user=7 42", "the anonymous response is not for users");
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit, "the anonymous response stays stored");
}

#[tokio::test]
async fn anonymous_waiters_of_a_user_share_one_call() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = personal(&origin).layer(guard.clone());
    let asked = waiting(&app, 12, |i| if i % 4 == 0 { user(i) } else { get("/page") }).await;
    let released = async {
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(4).await;
        assert_eq!(origin.running(), 3, "two users, and one of nine anonymous requests");
        origin.open();
    };
    let (answers, ()) = tokio::join!(asked.answers(), released);
    for (i, answer) in answers.iter().enumerate() {
        let name = if i % 4 == 0 { format!("user={i} ") } else { "a stranger ".to_owned() };
        assert!(answer.text().starts_with(&name), "{i}: {}", answer.text());
    }
    assert_eq!(origin.calls(), 4);
    at_rest(&guard).await;
}

#[tokio::test]
async fn users_waiting_for_an_anonymous_leader_fetch_at_once() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let app = personal(&origin).layer(guard.clone());
    let asked = waiting(&app, 10, |i| if i == 0 { get("/page") } else { user(i) }).await;
    let released = async {
        origin.arrived(1).await;
        origin.release(1);
        origin.arrived(10).await;
        assert_eq!(origin.running(), 9);
        origin.open();
    };
    let (answers, ()) = tokio::join!(asked.answers(), released);
    for (i, answer) in answers.iter().enumerate().skip(1) {
        assert!(answer.text().starts_with(&format!("user={i} ")), "{}", answer.text());
    }
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit);
}

#[tokio::test]
async fn a_response_that_becomes_public_is_shared() {
    for guard in on_each_store("credentials-promoted") {
        let origin = Origin::new();
        let app = site(&origin, |_, n| {
            let control = if n < 3 { "private" } else { "public, max-age=60" };
            ([("cache-control", control)], n.to_string())
        });
        let app = app.layer(guard.clone());
        for (i, n) in ["1", "2", "3", "3"].into_iter().enumerate() {
            assert_eq!(ask(&app, user(i)).await.text(), n);
            at_rest(&guard).await;
        }
        assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit, "anonymous clients get it too");
    }
}

/// An error page may name its user.
#[tokio::test(start_paused = true)]
async fn waiters_get_only_the_status_of_a_users_server_error() {
    for (control, is_shown) in [("", false), ("max-age=60", false), ("public", true)] {
        let (guard, origin) = (StampedeGuard::in_memory().failure_ttl(Duration::from_secs(60)), Origin::gated());
        let app = site(&origin, move |request, _| {
            let fields =
                [("cache-control", control), ("x-user", field(request, "cookie"))].map(|(k, v)| (k, v.to_owned()));
            (StatusCode::SERVICE_UNAVAILABLE, fields, format!("down for {}", field(request, "cookie")))
        });
        let app = app.layer(guard.clone());
        // With `max-age` the error that a request without credentials gets is stored.
        let anonymous = if control == "max-age=60" { 10 } else { 9 };
        let asked = waiting(&app, 10, |i| if i == anonymous { get("/page") } else { user(i) }).await;
        origin.open();
        let answers = asked.answers().await;
        let (led, waited): (Vec<_>, Vec<_>) =
            answers.iter().partition(|answer| answer.cache_status() == CacheStatus::Miss);
        assert_eq!((led.len(), origin.calls()), (2, 2), "{control}");
        for answer in &waited {
            let shared = led.iter().any(|led| !led.body.is_empty() && led.body == answer.body);
            assert_eq!((answer.status, shared), (503, is_shown), "{control}");
            assert_eq!(answer.body.is_empty(), !is_shown, "{control}");
            assert_eq!(answer.headers.contains_key("x-user"), is_shown, "{control}");
        }
        at_rest(&guard).await;
        assert_eq!(ask(&app, user(3)).await.cache_status(), CacheStatus::Rejected, "{control}");
    }
}

/// Otherwise one broken session would take the page from all clients.
#[tokio::test]
async fn a_users_server_error_blocks_no_other_client() {
    for guard in on_each_store("credentials-failure-marker") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| match field(request, "cookie") {
            "user=0" => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
            _ => (StatusCode::OK, n.to_string()),
        });
        let app = app.layer(guard.clone().failure_ttl(Duration::from_secs(60)));
        for (request, status) in [(user(0), 500), (user(1), 200), (user(0), 500), (get("/page"), 200)] {
            assert_eq!(ask(&app, request).await.status, status);
            at_rest(&guard).await;
        }
    }
}

/// Frameworks with sessions send this `Vary`.
#[tokio::test]
async fn a_response_with_only_vary_cookie_is_not_shared_by_users() {
    for guard in on_each_store("credentials-vary") {
        let origin = Origin::new();
        let app = site(&origin, |request, n| ([("vary", "cookie")], format!("{} {n}", field(request, "cookie"))));
        let app = app.layer(guard.clone());
        for (cookie, expected) in [("a", "a 1"), ("a", "a 2"), ("", " 3"), ("b", "b 4"), ("", " 3"), ("a", "a 5")] {
            let fields: Vec<_> = (!cookie.is_empty()).then_some(("cookie", cookie)).into_iter().collect();
            assert_eq!(ask(&app, get_with("/page", &fields)).await.text(), expected);
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn only_if_cached_from_a_user_misses_the_anonymous_page() {
    for guard in on_each_store("credentials-only-if-cached") {
        let origin = Origin::new();
        let app = personal(&origin).layer(guard.clone());
        ask(&app, get("/page")).await;
        at_rest(&guard).await;
        let only = ("cache-control", "only-if-cached");
        assert_eq!(ask(&app, get_with("/page", &[only, ("cookie", "user=1")])).await.status, 504);
        assert_eq!(ask(&app, get_with("/page", &[only])).await.status, 200);
    }
}
