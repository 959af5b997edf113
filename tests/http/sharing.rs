//! Which requests share a response that does not say that it is for all clients: requests that agree in all fields but
//! the harmless ones.

use crate::{
    kit::{ask, at_rest, get, get_with, honouring, on_each_store, site, waiting},
    support::{Origin, RedisServer, herd},
    vary::field,
};
use axum::{
    Router,
    extract::Request,
    http::{HeaderName, StatusCode},
    response::{AppendHeaders, IntoResponse, Response},
};
use futures_util::future::join_all;
use stampede_guard::{CacheStatus, Policy, StampedeGuard, http::HttpOptions};
use std::time::Duration;
use tokio::time;

/// Seen to fail with a list of words for credentials: 371 of these 585 fields gave the second user the page of the first.
#[tokio::test]
async fn identity_in_any_field_keeps_users_apart() {
    let mut shared = Vec::new();
    for name in names(include_str!("identity_fields.txt")) {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, move |request, _| field(request, name).to_owned()).layer(guard.clone());
        let users = ["alice", "bob", "alice"];
        let mut wrong = false;
        for user in users {
            wrong |= ask(&app, get_with("/me", &[(name, user)])).await.text() != user;
        }
        wrong |= !ask(&app, get("/me")).await.text().is_empty();
        let asked: Vec<_> = users.iter().map(|user| ask(&app, get_with("/herd", &[(name, user)]))).collect();
        for (user, answer) in users.iter().zip(join_all(asked).await) {
            wrong |= answer.text() != *user;
        }
        if wrong {
            shared.push(name);
        }
    }
    assert_eq!(shared, ["from", "x-envoy-peer-metadata", "x-envoy-peer-metadata-id"]);
}

/// Seen to fail with a list of the fields that repeat the target: 161 of these fields poisoned the page.
#[tokio::test]
async fn input_in_any_field_poisons_no_page() {
    let mut poisoned = Vec::new();
    for name in names(include_str!("input_fields.txt")) {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, move |request, _| format!("link {}", field(request, name))).layer(guard.clone());
        ask(&app, get_with("/me", &[(name, "evil.test")])).await;
        if ask(&app, get("/me")).await.text() != "link " {
            poisoned.push(name);
        }
    }
    assert!(poisoned.len() <= 11, "{poisoned:?}");
}

/// The user is known from something that has no field. Requests that find such a response validate it in parallel. Seen to
/// fail when waiters got a response that must be validated: each of them got the page of the leader.
#[tokio::test]
async fn a_response_that_must_be_validated_serves_no_waiter() {
    for control in ["no-cache", "max-age=0", "max-age=0, must-revalidate", "s-maxage=0", "max-age=60, no-cache"] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
        let app = site(&origin, move |request: &Request, _| {
            let user = request.extensions().get::<&str>().copied().unwrap_or_default();
            ([("cache-control", control), ("etag", "\"v1\"")], user)
        });
        let app = app.layer(guard.clone());
        for (calls, users) in [(1, ["alice", "bob", "carol"]), (6, ["dave", "erin", "frank"])] {
            let herd = waiting(&app, 3, |i| {
                let mut request = get("/me");
                request.extensions_mut().insert(users[i]);
                request
            });
            let herd = herd.await;
            origin.arrived(calls).await;
            origin.release(3);
            for (user, answer) in users.iter().zip(herd.answers().await) {
                assert_eq!(answer.text(), *user, "{control}");
            }
            at_rest(&guard).await;
        }
    }
}

fn names(list: &'static str) -> impl Iterator<Item = &'static str> {
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines.flat_map(|line| line.split(' ')).filter(|name| HeaderName::from_bytes(name.as_bytes()).is_ok())
}

/// Seen to fail with an empty list of harmless fields.
#[tokio::test]
async fn requests_behind_proxies_and_with_tracing_agents_share() {
    for head in include_str!("proxy_heads.txt").split("\n== ").skip(1) {
        let (deployment, lines) = head.split_once('\n').expect("fields");
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        for client in ["1", "2", "3"] {
            let values: Vec<_> = lines.lines().map(|line| line.replace('%', client)).collect();
            let of_proxy = values.iter().filter_map(|line| line.split_once(": "));
            let agent = format!("browser {client}");
            let of_browser =
                [("user-agent", agent.as_str()), ("sec-ch-ua", &agent), ("accept-language", client), ("dnt", client)];
            let fields: Vec<_> = of_proxy.chain(of_browser).collect();
            assert_eq!(ask(&app, get_with("/page", &fields)).await.text(), "1", "{deployment}, client {client}");
            at_rest(&guard).await;
        }
    }
}

/// Half of the requests choose the name of the field, and half its value. Seen to fail with 255 names
/// instead of 64: 256 keys.
#[tokio::test]
async fn unknown_fields_leave_64_entries_and_hits_of_browsers() {
    for browser_is_first in [true, false] {
        let (server, origin) = (RedisServer::start(), Origin::new());
        let guard = StampedeGuard::new(server.client()).store_timeout(Duration::from_secs(5));
        let app = site(&origin, |request, _| {
            let unknown = request.headers().keys().find(|name| name.as_str().starts_with("x-unknown"));
            let value = unknown.map_or("", |name| field(request, name.as_str()));
            ([("cache-control", "max-age=600")], format!("page of {value}"))
        });
        let app = app.layer(guard.clone());
        let browser = || ask(&app, get_with("/page", &[("user-agent", "browser"), ("accept-language", "de")]));
        for round in 0..30 {
            if browser_is_first || round > 0 {
                let page = browser().await;
                let is_first = round == usize::from(!browser_is_first);
                let expected = if is_first { CacheStatus::Miss } else { CacheStatus::Hit };
                assert_eq!((page.cache_status(), page.text()), (expected, "page of "), "round {round}");
                at_rest(&guard).await;
            }
            let flood = herd(100, |i| {
                let value = (100 * round + i).to_string();
                let name = if i % 2 == 0 { format!("x-unknown-{value}") } else { "x-unknown".to_owned() };
                let asked = ask(&app, get_with("/page", &[(&name, &value)]));
                async move { (asked.await, value) }
            });
            for (answer, value) in flood.await {
                assert_eq!(answer.text(), format!("page of {value}"));
            }
            at_rest(&guard).await;
        }
        let keys: usize = redis::cmd("DBSIZE").query_async(&mut server.connection().await).await.expect("up");
        assert!(keys <= 66, "{keys} keys: the index, the page of browsers, and others");
    }
}

/// When the variants belonged to the last response, one client that reloaded the page each second took it from all clients
/// with such a field: beside 20 reloads, five tenants were seen to make 100 calls instead of five.
#[tokio::test]
async fn a_reload_keeps_variants_and_an_invalidation_drops_them() {
    for guard in on_each_store("variants-of-pages") {
        let (guard, origin) = (honouring(guard), Origin::new());
        let app = site(&origin, |request, n| {
            ([("cache-control", "max-age=600")], format!("{n} {}", field(request, "x-tenant")))
        });
        let app = app.layer(guard.clone());
        let tenant = async || ask(&app, get_with("/page", &[("x-tenant", "a")])).await;
        ask(&app, get("/page")).await;
        for n in 2..6 {
            at_rest(&guard).await;
            assert_eq!(tenant().await.text(), "2 a");
            at_rest(&guard).await;
            assert_eq!(
                ask(&app, get_with("/page", &[("cache-control", "no-cache")])).await.text(),
                format!("{} ", n + 1)
            );
        }
        at_rest(&guard).await;
        guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("acknowledged");
        assert_eq!((ask(&app, get("/page")).await.text(), tenant().await.text()), ("7 ", "8 a"));
        at_rest(&guard).await;
        assert_eq!((tenant().await.text(), origin.calls()), ("8 a", 8));
    }
}

/// Seen to fail when a response that states its lifetime lived for one second.
#[tokio::test(start_paused = true)]
async fn five_versions_cost_five_calls_a_minute() {
    let version = HeaderName::from_static("x-app-version");
    for options in [HttpOptions::default(), HttpOptions::default().selecting_fields([version])] {
        let (guard, origin) = (StampedeGuard::in_memory().http(options), Origin::gated());
        let app =
            site(&origin, |request, _| ([("cache-control", "max-age=60")], field(request, "x-app-version").to_owned()));
        let app = app.layer(guard.clone());
        let version = |i: usize| format!("1.{}", i % 5);
        let clients = waiting(&app, 1000, |i| get_with("/page", &[("x-app-version", &version(i))])).await;
        origin.open();
        for (i, answer) in clients.answers().await.iter().enumerate() {
            assert_eq!(answer.text(), version(i));
        }
        at_rest(&guard).await;
        for _ in 0..59 {
            for i in 0..5 {
                let page = ask(&app, get_with("/page", &[("x-app-version", &version(i))])).await;
                assert_eq!((page.text(), page.cache_status()), (&*version(i), CacheStatus::Hit));
            }
            time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(origin.calls(), 5);
    }
}

/// Seen to fail without the limit: a session that the origin has revoked went on for ten seconds.
#[tokio::test(start_paused = true)]
async fn a_silent_response_under_an_unknown_field_lives_a_second() {
    let session = HeaderName::from_static("x-session");
    let evil = ("x-forwarded-host", "evil.test");
    for (control, fields, options, seconds) in [
        ("", ("x-session", "a"), HttpOptions::default(), 1),
        ("max-age=60", ("x-session", "a"), HttpOptions::default(), 60),
        ("", ("x-session", "a"), HttpOptions::default().selecting_fields([session.clone()]), 10),
        ("", ("x-session", "a"), HttpOptions::default().harmless_fields([session.clone()]), 10),
        ("", ("x-session", "a"), HttpOptions::default().vary_key_on(session), 10),
        ("max-age=60", ("x-request-id", "a"), HttpOptions::default(), 60),
        ("public, max-age=60", evil, HttpOptions::default(), 1),
        ("max-age=60", evil, HttpOptions::default(), 1),
    ] {
        let policy = Policy::fresh_for(Duration::from_secs(10)).jitter(0.0);
        let (guard, origin) = (StampedeGuard::in_memory().policy(policy).http(options), Origin::new());
        let app = site(&origin, move |_, n| {
            let control = (!control.is_empty()).then_some(("cache-control", control));
            (AppendHeaders(control), n.to_string())
        });
        let app = app.layer(guard.clone());
        for (text, pause) in [("1", 0), ("1", 1000 * seconds - 1), ("2", 1)] {
            time::advance(Duration::from_millis(pause)).await;
            assert_eq!(ask(&app, get_with("/page", &[fields])).await.text(), text, "{control}, {fields:?}");
            at_rest(&guard).await;
        }
    }
}

/// Two values with one of the 64 names, after the response to the first has expired. Its validator is the same, as of a
/// page with a number for all users. Seen to fail when the second request validated the response to the first.
#[tokio::test(start_paused = true)]
async fn a_304_does_not_serve_the_page_of_another_value() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| -> Response {
        match field(request, "if-none-match") {
            "" => {
                let fields = [("cache-control", "max-age=10, stale-if-error=60"), ("etag", "\"1\"")];
                (fields, field(request, "x-user").to_owned()).into_response()
            }
            _ => StatusCode::NOT_MODIFIED.into_response(),
        }
    });
    let app = app.layer(guard.clone());
    let mut taken = String::new();
    for n in 0..100 {
        let user = n.to_string();
        let answer = ask(&app, get_with("/page", &[("x-user", &user)])).await;
        assert_eq!(answer.text(), user);
        at_rest(&guard).await;
        if answer.cache_status() == CacheStatus::Bypass {
            taken = user;
            break;
        }
    }
    time::advance(Duration::from_secs(11)).await;
    for status in [CacheStatus::Miss, CacheStatus::Hit] {
        let answer = ask(&app, get_with("/page", &[("x-user", &taken)])).await;
        assert_eq!((answer.text(), answer.cache_status()), (&*taken, status));
        at_rest(&guard).await;
    }
}

/// Takes all 64 names of the page by values of this field, and waits until other values may replace the responses.
async fn take_all_names(app: &Router, guard: &StampedeGuard, field: &str) {
    for value in 0..500 {
        ask(app, get_with("/page", &[(field, &value.to_string())])).await;
    }
    at_rest(guard).await;
    time::advance(Duration::from_secs(1)).await;
}

/// One client takes all 64 names of a page for ten minutes. Seen to fail (200 calls) when its responses keep their names
/// for as long as they are fresh.
#[tokio::test(start_paused = true)]
async fn herds_are_coalesced_after_a_client_has_taken_all_names() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| ([("cache-control", "max-age=600")], field(request, "x-unknown").to_owned()));
    let app = app.layer(guard.clone());
    let by = |value: usize| ask(&app, get_with("/page", &[("x-unknown", &value.to_string())]));
    take_all_names(&app, &guard, "x-unknown").await;
    let flooded = origin.calls();
    for value in 1000..1010 {
        let asked: Vec<_> = (0..20).map(|_| by(value)).collect();
        for answer in join_all(asked).await {
            assert_eq!(answer.text(), value.to_string());
        }
        at_rest(&guard).await;
        time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(origin.calls() - flooded, 10);
}

/// A client takes all names, and then its requests fail. Seen to fail: 288 of 300 clients got a 503, because a response to
/// other fields counted as one that they get meanwhile.
#[tokio::test(start_paused = true)]
async fn failures_at_taken_names_block_no_other_value() {
    for code in [StatusCode::INTERNAL_SERVER_ERROR, StatusCode::TOO_MANY_REQUESTS] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, move |request, _| match field(request, "x-user") {
            user if user.starts_with("bad") => code.into_response(),
            user => ([("cache-control", "max-age=600")], user.to_owned()).into_response(),
        });
        let app = app.layer(guard.clone());
        let by = |user: String| ask(&app, get_with("/page", &[("x-user", &user)]));
        take_all_names(&app, &guard, "x-user").await;
        for user in 0..300 {
            by(format!("bad{user}")).await;
            at_rest(&guard).await;
        }
        for user in 1000..1300 {
            assert_eq!(by(user.to_string()).await.text(), user.to_string(), "{code}");
        }
        at_rest(&guard).await;
    }
}

/// Seen to fail with 10 calls, for as long as the response to another value was fresh.
#[tokio::test(start_paused = true)]
async fn a_stated_404_takes_a_name_as_a_page_does() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| {
        let user = field(request, "x-user").to_owned();
        let status = if user == "gone" { StatusCode::NOT_FOUND } else { StatusCode::OK };
        (status, [("cache-control", "max-age=60")], user)
    });
    let app = app.layer(guard.clone());
    take_all_names(&app, &guard, "x-user").await;
    let flooded = origin.calls();
    for _ in 0..10 {
        assert_eq!(ask(&app, get_with("/page", &[("x-user", "gone")])).await.text(), "gone");
        at_rest(&guard).await;
    }
    assert_eq!(origin.calls() - flooded, 1);
}

/// The leader has no unknown field, and then all have one: each value costs one call.
#[tokio::test]
async fn a_herd_of_unknown_values_costs_a_call_for_each() {
    for control in ["max-age=60", "public, max-age=60"] {
        for guard in on_each_store(&format!("sharing-herd {control}")) {
            let origin = Origin::gated();
            let app = site(&origin, move |request, n| {
                ([("cache-control", control)], format!("{} {n}", field(request, "x-tenant")))
            });
            let app = app.layer(guard.clone());
            let request = |i: usize| match TENANTS[i % 3] {
                "" => get("/page"),
                tenant => get_with("/page", &[("x-tenant", tenant)]),
            };
            let asked = tokio::spawn({
                let app = app.clone();
                async move { herd(60, |i| ask(&app, request(i))).await }
            });
            origin.arrived(1).await;
            origin.open();
            for (i, answer) in asked.await.expect("no panic").iter().enumerate() {
                let is_public = control.starts_with("public");
                assert!(is_public || answer.text().starts_with(TENANTS[i % 3]), "{control}: {}", answer.text());
            }
            assert_eq!(origin.calls(), if control.starts_with("public") { 1 } else { 3 }, "{control}");
            at_rest(&guard).await;
        }
    }
}

/// Seen to fail when the variant was named without the id of its index.
#[tokio::test]
async fn an_invalidation_drops_the_responses_to_unknown_fields() {
    for guard in on_each_store("sharing-invalidation") {
        for (control, field) in [
            ("max-age=60", ("x-tenant", "a")),
            ("public, max-age=60", ("x-forwarded-host", "evil.test")),
            ("max-age=60", ("x-forwarded-host", "evil.test")),
        ] {
            let origin = Origin::new();
            let app = site(&origin, move |_, n| ([("cache-control", control)], n.to_string())).layer(guard.clone());
            let other = || ask(&app, get_with("/page", &[field]));
            for (before, after) in [("1", "2"), ("3", "4")] {
                if before == "3" {
                    // The page of a request without the field is the index.
                    guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("up");
                    assert_eq!(ask(&app, get("/page")).await.text(), before);
                    at_rest(&guard).await;
                }
                let first = if before == "3" { after } else { before };
                assert_eq!(other().await.text(), first, "{control}");
                at_rest(&guard).await;
                assert_eq!(other().await.text(), first, "{control}");
                guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("up");
                let next = if before == "3" { "5" } else { after };
                assert_eq!(other().await.text(), next, "{control}");
                at_rest(&guard).await;
            }
            guard.invalidate_url(&"http://example.test/page".parse().expect("a URL")).await.expect("up");
        }
    }
}

/// RFC 9111 has no other fields: `max-age` is enough. A targeted field speaks to this cache alone.
#[tokio::test]
async fn a_response_for_everybody_is_shared_whatever_the_fields() {
    let explicit = HttpOptions::default().explicit_is_shared(true);
    for (options, fields, shared) in [
        (HttpOptions::default(), [("cache-control", "max-age=60"), ("x", "")], false),
        (HttpOptions::default(), [("cache-control", "public"), ("x", "")], true),
        (HttpOptions::default(), [("cache-control", "s-maxage=60"), ("x", "")], true),
        (HttpOptions::default(), [("cdn-cache-control", "max-age=60"), ("cache-control", "no-store")], true),
        (explicit.clone(), [("cache-control", "max-age=60"), ("x", "")], true),
        (explicit, [("x", ""), ("y", "")], false),
    ] {
        let (guard, origin) = (StampedeGuard::in_memory().http(options), Origin::new());
        let app = site(&origin, move |_, n| (fields, n.to_string())).layer(guard.clone());
        for (user, text) in [("a", "1"), ("b", if shared { "1" } else { "2" })] {
            assert_eq!(ask(&app, get_with("/page", &[("x-user", user)])).await.text(), text, "{fields:?}");
            at_rest(&guard).await;
        }
    }
}

const TENANTS: [&str; 3] = ["", "a", "b"];
