//! Requests that are made so that others get a wrong answer, or none that is cached.

use crate::{
    kit::{ask, at_rest, get, get_with, request, site, waiting},
    support::{Origin, eventually},
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderName, Method, StatusCode},
    routing::any,
};
use stampede_guard::{CacheVerdict, StampedeGuard, http::Rules};

fn field<'a>(request: &'a Request, name: &str) -> &'a str {
    request.headers().get(name).map_or("", |value| value.to_str().expect("a printable value"))
}

fn hosts(uri: &str, hosts: &[&str]) -> Request {
    let request = hosts.iter().fold(Request::get(uri), |request, host| request.header("host", *host));
    request.body(Body::empty()).expect("a request")
}

/// Handlers believe the `Host`, the key is of the target's authority (RFC 9112 §3.2.2): where they differ, or there are
/// several, an answer is for nobody else. Seen to fail: the links of the second answer were those of the attacker.
#[tokio::test]
async fn who_names_two_hosts_is_answered_alone() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| field(request, "host").to_owned()).layer(guard.clone());
    for (uri, names) in [
        ("http://example.test/page", &["evil.test"][..]),
        ("/page", &["example.test", "evil.test"]),
        ("http://example.test/page", &["example.test", "evil.test"]),
    ] {
        let evil = ask(&app, hosts(uri, names)).await;
        assert_eq!((evil.status, evil.verdict()), (200, CacheVerdict::Bypassed), "{uri} {names:?}");
    }
    assert_eq!(ask(&app, get("/page")).await.text(), "example.test");
    at_rest(&guard).await;
    for uri in ["/page", "http://example.test/page", "http://EXAMPLE.test/page"] {
        let good = ask(&app, hosts(uri, &["Example.test"])).await;
        assert_eq!((good.text(), good.verdict()), ("example.test", CacheVerdict::Hit), "{uri}");
    }
}

/// `GET example.test HTTP/1.1`: no router knows what to do with it, and it has the key of the root.
#[tokio::test]
async fn a_target_without_a_path_does_not_speak_for_the_root() {
    let guard = StampedeGuard::in_memory();
    let app = Router::new().route("/", any(|| async { "home" })).layer(guard.clone());
    for target in ["example.test", "example.test:80"] {
        let mut strange = get("/");
        *strange.uri_mut() = target.parse().expect("the form of an authority");
        ask(&app, strange).await;
        at_rest(&guard).await;
        let home = ask(&app, hosts("/", &[target])).await;
        assert_eq!((home.status, home.text()), (200, "home"), "{target}");
    }
}

/// RFC 6585 §3 to §5; RFC 3229 §10.4.1: 226 is a difference to what one client has.
#[tokio::test]
async fn what_is_said_of_one_request_is_not_stored_whatever_it_says() {
    for code in [206, 226, 428, 429, 431] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let respond = move |request: &Request, _: usize| match field(request, "x-odd") {
            "" => (StatusCode::OK, [("cache-control", "max-age=60")]),
            _ => (StatusCode::from_u16(code).expect("a status"), [("cache-control", "public, max-age=60")]),
        };
        let app = site(&origin, respond).layer(guard.clone());
        assert_eq!(ask(&app, get_with("/page", &[("x-odd", "1")])).await.status, code);
        at_rest(&guard).await;
        assert_eq!(ask(&app, get("/page")).await.status, 200, "{code}");
    }
}

/// With their pages of another length, those who are logged in could drop what all others share.
#[tokio::test]
async fn a_head_with_credentials_says_nothing_of_what_is_not_for_them() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let respond = |request: &Request, _: usize| match field(request, "cookie") {
        "" => ([("etag", "\"everybody\"")], "everybody's page".to_owned()),
        own => ([("etag", "\"own\"")], format!("the page of {own}")),
    };
    let app = site(&origin, respond).layer(guard.clone());
    assert_eq!(ask(&app, get("/page")).await.text(), "everybody's page");
    at_rest(&guard).await;
    ask(&app, request(Method::HEAD, "/page", &[("cookie", "a=b")])).await;
    at_rest(&guard).await;
    let next = ask(&app, get("/page")).await;
    assert_eq!((next.text(), next.verdict()), ("everybody's page", CacheVerdict::Hit));
}

/// Over HTTP/2 the target says `https`, over HTTP/1.1 nothing does: it is one resource.
#[tokio::test]
async fn a_change_over_one_version_of_http_is_seen_over_the_other() {
    for (changed, read) in [("/page", "https://example.test/page"), ("https://example.test/page", "/page")] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, |_, n| ([("location", "/other")], n.to_string())).layer(guard.clone());
        for (n, path) in [("1", read.to_owned()), ("2", read.replace("page", "other"))] {
            assert_eq!(ask(&app, get(&path)).await.text(), n);
            at_rest(&guard).await;
        }
        ask(&app, request(Method::POST, changed, &[])).await;
        assert_eq!(ask(&app, get(read)).await.text(), "4", "{changed}");
        assert_eq!(ask(&app, get(&read.replace("page", "other"))).await.text(), "5", "{changed}");
    }
}

/// RFC 9111 §3.5 takes `must-revalidate` for a permission to share, but no policy makes it one for how long.
#[tokio::test]
async fn what_is_silent_on_its_freshness_is_not_shared_between_the_authorized() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let respond = |request: &Request, _: usize| {
        ([("cache-control", "must-revalidate")], field(request, "authorization").to_owned())
    };
    let app = site(&origin, respond).layer(guard.clone());
    for user in ["alice", "bob", "alice"] {
        assert_eq!(ask(&app, get_with("/me", &[("authorization", user)])).await.text(), user);
        at_rest(&guard).await;
    }
}

/// RFC 9111 §5.2.2.4: what was answered after they asked is as good as validated for those who wait, and for nobody
/// else.
#[tokio::test]
async fn a_no_cache_is_for_those_who_wait_and_then_validated() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let respond = |_: &Request, n: usize| ([("cache-control", "no-cache"), ("etag", "\"e\"")], n.to_string());
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 5, |_| get("/page")).await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "1"));
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.text(), "2");
}

/// Whoever is slow to answer a HEAD may answer it from a past that is over.
#[tokio::test]
async fn a_head_says_nothing_of_what_is_newer() {
    let (guard, origin, heads) = (StampedeGuard::in_memory(), Origin::new(), Origin::gated());
    let respond = |version: &'static str| ([("etag", "\"e\""), ("x-version", version)], "page");
    let (gets, gate) = (origin.clone(), heads.clone());
    let handler = move |request: Request| {
        let (gets, gate) = (gets.clone(), gate.clone());
        async move {
            let head = request.method() == Method::HEAD;
            if head {
                gate.call().await
            } else {
                gets.call().await
            };
            respond(if head { "old" } else { "new" })
        }
    };
    let app = Router::new().route("/page", any(handler)).layer(guard.clone());
    let slow = waiting(&app, 1, |_| request(Method::HEAD, "/page", &[])).await;
    heads.arrived(1).await;
    assert_eq!(ask(&app, get("/page")).await.header("x-version"), "new");
    eventually("the page is stored", async || guard.in_flight() == 1).await;
    heads.open();
    assert_eq!(slow.answers().await[0].header("x-version"), "old");
    at_rest(&guard).await;
    let hit = ask(&app, get("/page")).await;
    assert_eq!((hit.header("x-version"), hit.verdict()), ("new", CacheVerdict::Hit));
}

/// Without the rule, everybody has seen Alice's answer for as long as the policy says.
#[tokio::test]
async fn a_field_that_says_who_asks_is_a_credential_once_it_is_named() {
    for (rules, others) in
        [(Rules::default(), "alice"), (Rules::default().credential(HeaderName::from_static("x-api-key")), "bob")]
    {
        let (guard, origin) = (StampedeGuard::in_memory().http(rules), Origin::new());
        let app = site(&origin, |request, _| field(request, "x-api-key").to_owned()).layer(guard.clone());
        for (key, text) in [("alice", "alice"), ("bob", others)] {
            assert_eq!(ask(&app, get_with("/me", &[("x-api-key", key)])).await.text(), text);
            at_rest(&guard).await;
        }
    }
}

/// Each would be a key of its own in whatever remembers keys.
#[tokio::test]
async fn a_target_of_many_kilobytes_is_answered_alone() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    for (length, verdict) in
        [(8000, CacheVerdict::Hit), (8001, CacheVerdict::Bypassed), (60_000, CacheVerdict::Bypassed)]
    {
        let path = format!("/page?{}", "x".repeat(length - "/page?".len()));
        ask(&app, get(&path)).await;
        at_rest(&guard).await;
        assert_eq!(ask(&app, get(&path)).await.verdict(), verdict, "{length}");
        assert_eq!(ask(&app, request(Method::POST, &path, &[])).await.verdict(), CacheVerdict::Bypassed);
        assert_ne!(ask(&app, get(&path)).await.verdict(), CacheVerdict::Hit, "{length}");
        at_rest(&guard).await;
    }
}
