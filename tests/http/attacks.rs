//! Requests that try to give other clients a wrong response, or to keep a response out of the cache.

use crate::{
    kit::{ask, at_rest, get, get_with, request, site, waiting},
    support::Origin,
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderName, Method, StatusCode},
    middleware::map_request,
    routing::any,
};
use stampede_guard::{CacheStatus, StampedeGuard, http::HttpOptions};

fn field<'a>(request: &'a Request, name: &str) -> &'a str {
    request.headers().get(name).map_or("", |value| value.to_str().expect("a printable value"))
}

fn hosts(uri: &str, hosts: &[&str]) -> Request {
    let request = hosts.iter().fold(Request::get(uri), |request, host| request.header("host", *host));
    request.body(Body::empty()).expect("a request")
}

/// A request with several hosts, or with a `Host` that differs from its target, bypasses the cache. Handlers trust
/// `Host`, but the cache key holds the target's authority (RFC 9112 §3.2.2). Seen to fail: the links in the second
/// response were the attacker's.
#[tokio::test]
async fn a_request_with_two_hosts_bypasses_the_cache() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| field(request, "host").to_owned()).layer(guard.clone());
    for (uri, names) in [
        ("http://example.test/page", &["evil.test"][..]),
        ("/page", &["example.test", "evil.test"]),
        ("http://example.test/page", &["example.test", "evil.test"]),
    ] {
        let evil = ask(&app, hosts(uri, names)).await;
        assert_eq!((evil.status, evil.cache_status()), (200, CacheStatus::Bypass), "{uri} {names:?}");
    }
    assert_eq!(ask(&app, get("/page")).await.text(), "example.test");
    at_rest(&guard).await;
    for uri in ["/page", "http://example.test/page", "http://EXAMPLE.test/page"] {
        let good = ask(&app, hosts(uri, &["Example.test"])).await;
        assert_eq!((good.text(), good.cache_status()), ("example.test", CacheStatus::Hit), "{uri}");
    }
}

/// Clients of HTTP/2 send `:authority` in place of `Host`, and hyper accepts a request of HTTP/1.1 without a `Host`. Seen
/// to fail: the page of the handler's default host was stored for the named one.
#[tokio::test]
async fn a_target_without_host_reaches_the_handler_with_its_host() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| field(request, "host").to_owned()).layer(guard.clone());
    assert_eq!(ask(&app, hosts("http://Example.test/page", &[])).await.text(), "Example.test");
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit);
}

/// Seen to fail: the handler got a `Host` that neither the key nor the selecting fields have, and its page for one host was
/// shared with another one, although it says `Vary: Host`.
#[tokio::test]
async fn a_vary_by_host_is_obeyed_under_ignore_host() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| {
        let host = field(request, "host").to_owned();
        ([("cache-control", "public, max-age=60"), ("vary", "host")], host)
    });
    let app = app.layer(guard.clone().http(HttpOptions::default().ignore_host()));
    for (uri, names) in
        [("http://a.test/page", &["a.test"][..]), ("http://a.test/page", &[]), ("http://b.test/page", &[])]
    {
        let page = ask(&app, hosts(uri, names)).await;
        let host = uri.split('/').nth(2).expect("a host");
        assert!(["", host].contains(&page.text()), "{uri}: the page of {}", page.text());
        at_rest(&guard).await;
    }
}

/// A proxy removes the fields that `Connection` names (RFC 9110 §7.6.1). Seen to fail: the page for no tenant was stored
/// for each tenant.
#[tokio::test]
async fn connection_hides_no_field_of_the_key_from_the_origin() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let proxy = map_request(async |mut request: Request| {
        if let Some(named) = request.headers_mut().remove("connection") {
            request.headers_mut().remove(named.to_str().expect("a name"));
        }
        request
    });
    let options = HttpOptions::default().vary_key_on(HeaderName::from_static("x-tenant"));
    let app = site(&origin, |request, _| field(request, "x-tenant").to_owned()).layer(proxy);
    let app = app.layer(guard.clone().http(options));
    for fields in [&[("x-tenant", "acme"), ("connection", "x-tenant")][..], &[("x-tenant", "acme")]] {
        assert_eq!(ask(&app, get_with("/page", fields)).await.text(), "acme");
        at_rest(&guard).await;
    }
    assert_eq!(origin.calls(), 1);
}

/// `GET example.test HTTP/1.1`: routers cannot route this target, and its cache key equals that of `/`.
#[tokio::test]
async fn a_target_without_a_path_does_not_fill_the_root() {
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

/// RFC 6585 §3 and §5. RFC 3229 §10.4.1: a 226 is a delta to what one client has.
#[tokio::test]
async fn a_status_about_one_request_is_never_stored() {
    for code in [206, 226, 412, 416, 417, 428, 431] {
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

/// Otherwise a user whose own page differs could drop the page that all anonymous clients share.
#[tokio::test]
async fn a_head_with_credentials_keeps_the_anonymous_page() {
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
    assert_eq!((next.text(), next.cache_status()), ("everybody's page", CacheStatus::Hit));
}

/// The target says `https` over HTTP/2 and names no scheme over HTTP/1.1. Both are the same resource.
#[tokio::test]
async fn an_unsafe_request_invalidates_across_http_versions() {
    for (changed, read) in [("/page", "https://example.test/page"), ("https://example.test/page", "/page")] {
        let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        assert_eq!(ask(&app, get(read)).await.text(), "1");
        at_rest(&guard).await;
        ask(&app, request(Method::POST, changed, &[])).await;
        assert_eq!(ask(&app, get(read)).await.text(), "3", "{changed}");
    }
}

/// RFC 9111 §3.5 counts `must-revalidate` as a permission to share. The policy must not add a lifetime to it.
#[tokio::test]
async fn an_authorized_response_without_lifetime_is_not_shared() {
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

/// RFC 9111 §5.2.2.4: waiters may use a response that the origin sent after they had asked, as if it were validated.
/// Later requests validate it.
#[tokio::test]
async fn a_public_no_cache_response_is_for_waiters_and_then_validated() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::gated());
    let respond = |_: &Request, n: usize| ([("cache-control", "public, no-cache"), ("etag", "\"e\"")], n.to_string());
    let app = site(&origin, respond).layer(guard.clone());
    let asked = waiting(&app, 5, |_| get("/page")).await;
    origin.open();
    assert!(asked.answers().await.iter().all(|answer| answer.text() == "1"));
    at_rest(&guard).await;
    assert_eq!(ask(&app, get("/page")).await.text(), "2");
}

/// Without the setting, other clients get Alice's response for as long as the policy says.
#[tokio::test]
async fn a_configured_credential_field_prevents_sharing() {
    let badge = HeaderName::from_static("x-badge");
    for (options, others) in [
        (HttpOptions::default().harmless_fields([badge.clone()]), "alice"),
        (HttpOptions::default().credential_fields([badge]), "bob"),
    ] {
        let (guard, origin) = (StampedeGuard::in_memory().http(options), Origin::new());
        let app = site(&origin, |request, _| field(request, "x-badge").to_owned()).layer(guard.clone());
        for (key, text) in [("alice", "alice"), ("bob", others)] {
            assert_eq!(ask(&app, get_with("/me", &[("x-badge", key)])).await.text(), text);
            at_rest(&guard).await;
        }
    }
}

/// Each such target would be a separate key in every table of keys.
#[tokio::test]
async fn a_target_over_8000_bytes_bypasses_the_cache() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    for (length, cache_status) in [(8000, CacheStatus::Hit), (8001, CacheStatus::Bypass), (60_000, CacheStatus::Bypass)]
    {
        let path = format!("/page?{}", "x".repeat(length - "/page?".len()));
        ask(&app, get(&path)).await;
        at_rest(&guard).await;
        assert_eq!(ask(&app, get(&path)).await.cache_status(), cache_status, "{length}");
        assert_eq!(ask(&app, request(Method::POST, &path, &[])).await.cache_status(), CacheStatus::Bypass);
        assert_ne!(ask(&app, get(&path)).await.cache_status(), CacheStatus::Hit, "{length}");
        at_rest(&guard).await;
    }
}
