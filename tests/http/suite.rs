//! Cases of a public test suite for HTTP caches: one response, two requests, and whether the first response answers the
//! second request. If the RFC leaves a choice, `docs/rfc9111.md` states ours.

use crate::{
    kit::{Answer, ask, at_rest, get_with, request, site},
    support::Origin,
};
use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode},
};
use sfv::{BareItemFromInput, Parser, visitor::Ignored};
use stampede_guard::{CacheStatus, Policy, StampedeGuard, http::HttpOptions};
use std::{convert::Infallible, time::Duration};

type Fields = &'static [(&'static str, &'static str)];

fn head(fields: Fields) -> HeaderMap {
    fields.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
}

fn respond(code: u16, fields: Fields, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = StatusCode::from_u16(code).expect("a status");
    *response.headers_mut() = head(fields);
    response
}

/// Returns a guard whose policy makes no response fresh and serves none stale.
fn strict() -> StampedeGuard {
    let policy =
        Policy::fresh_for(Duration::ZERO).stale_while_revalidate(Duration::ZERO).stale_if_error(Duration::ZERO);
    StampedeGuard::in_memory()
        .policy(policy)
        .http(HttpOptions::default().require_explicit_freshness().honour_request_directives())
}

/// Reports whether the response to the first request answers the second one.
async fn reused(first: Fields, (code, response): (u16, Fields), second: Fields) -> bool {
    let (guard, origin) = (strict(), Origin::new());
    let app = site(&origin, move |_, n| respond(code, response, n.to_string())).layer(guard.clone());
    assert_eq!(ask(&app, get_with("/page", first)).await.text(), "1", "{response:?}");
    at_rest(&guard).await;
    let answer = ask(&app, get_with("/page", second)).await;
    at_rest(&guard).await;
    assert!((200..600).contains(&answer.status));
    answer.cache_status() == CacheStatus::Hit
}

async fn answers_another(response: Fields) -> bool {
    reused(&[], (200, response), &[]).await
}

macro_rules! fields {
    ($($name:literal: $value:literal),* $(,)?) => { &[$(($name, $value)),*] as Fields };
}

#[tokio::test]
async fn cache_control_decides_freshness() {
    for (value, expected) in [
        ("max-age=3600", true),
        ("max-age=0", false),
        ("max-age=2147483647", true),
        ("max-age=2147483648", true),
        ("max-age=99999999999", true),
        ("max-age=-3600", false),
        ("max-age=0003600", true),
        ("max-age=\"3600\"", true),
        ("max-age='3600'", false),
        ("max-age=3600.0", false),
        ("max-age=3600.5", false),
        ("max-age=a3600", false),
        ("max-age=3600a", false),
        ("max-age=", false),
        ("max-age", false),
        ("MaX-aGe=3600", true),
        ("foobar, max-age=3600", true),
        ("max-age=3600, foobar", true),
        ("foo=\"bar, max-age=3600\"", false),
        ("foo=\"max-age=0\", max-age=3600", true),
        ("max-age=3600, foo=\"max-age=0\"", true),
        ("max-age=0, max-age=3600", false),
        ("max-age=3600, max-age=0", false),
        ("s-maxage=3600", true),
        ("s-maxage=3600, max-age=1", true),
        ("s-maxage=0, max-age=3600", false),
        ("s-maxage=x, max-age=3600", false),
        ("max-age=3600, no-store", false),
        ("max-age=3600, No-StOrE", false),
        ("max-age=3600, no-store=\"x\"", false),
        ("max-age=3600, no-cache", false),
        ("max-age=3600, private", false),
        ("max-age=3600, private=\"set-cookie\"", false),
        ("public, max-age=3600, private", false),
        ("max-age=3600, must-revalidate", true),
        ("max-age=3600, proxy-revalidate, no-transform, immutable", true),
    ] {
        assert_eq!(reused_with("cache-control", value).await, expected, "{value}");
    }
}

async fn reused_with(name: &'static str, value: &'static str) -> bool {
    answers_another(Box::leak(Box::new([(name, value)]))).await
}

#[tokio::test]
async fn expires_decides_freshness() {
    for (value, expected) in [
        ("Sun, 21 Nov 2286 04:46:39 GMT", true),
        ("Sun Nov 21 04:46:39 2286", true),
        ("Monday, 15-Nov-60 08:12:31 GMT", true),
        ("Thu, 19 Jan 2080 03:14:08 GMT", true),
        ("Fri, 19 Jan 2080 03:14:08 GMT", true),
        ("sUN, 21 Nov 2286 04:46:39 GMT", true),
        ("Sun, 21 nOV 2286 04:46:39 GMT", true),
        ("Sun, 21 Nov 2286 04:46:39 gMT", true),
        ("Thu, 18 Aug 1994 02:01:18 GMT", false),
        ("0", false),
        ("-1", false),
        ("Sun, 21 Nov 2286 04:46:39 UTC", false),
        ("Sun, 21 Nov 2286 04:46:39 AEST", false),
        ("Sun, 21 Nov 2286 4:46:39 GMT", false),
        ("Sun, 21 Nov 86 04:46:39 GMT", false),
        ("Sun, 21-Nov-2286 04:46:39 GMT", false),
        ("Sun 21 Nov 2286 04:46:39 GMT", false),
        ("Sun,  21  Nov  2286  04:46:39  GMT", false),
        ("Sun, 21 Nov 2286 04.46.39 GMT", false),
    ] {
        assert_eq!(reused_with("expires", value).await, expected, "{value}");
    }
    for (response, expected) in [
        (fields!["expires": "Sun, 21 Nov 2286 04:46:39 GMT", "expires": "Thu, 18 Aug 1994 02:01:18 GMT"], false),
        (fields!["expires": "Sun, 21 Nov 2286 04:46:39 GMT", "cache-control": "max-age=0"], false),
        (fields!["expires": "Thu, 18 Aug 1994 02:01:18 GMT", "cache-control": "max-age=9"], true),
        (fields!["expires": "0", "cache-control": "s-maxage=9"], true),
        (fields!["expires": "Sun, 21 Nov 2286 04:46:39 GMT", "cache-control": "max-age=x"], false),
        (fields!["expires": "Sun, 21 Nov 2286 04:46:39 GMT", "cache-control": "foo=\"max-age=0\""], true),
        (fields!["expires": "Sun, 21 Nov 2286 04:46:39 GMT", "date": "Sun, 21 Nov 2286 04:46:39 GMT"], false),
        // The origin's clock is wrong: the lifetime is `Expires` less `Date`, one hour.
        (fields!["expires": "Sun, 21 Nov 2286 05:46:39 GMT", "date": "Sun, 21 Nov 2286 04:46:39 GMT"], true),
        (fields!["expires": "Thu, 18 Aug 1994 03:01:18 GMT", "date": "Thu, 18 Aug 1994 02:01:18 GMT"], false),
    ] {
        assert_eq!(answers_another(response).await, expected, "{response:?}");
    }
}

#[tokio::test]
async fn age_counts_if_it_is_valid() {
    for (value, expected) in [
        ("0", true),
        ("3599", true),
        ("3600", false),
        ("7200", false),
        ("2147483648", false),
        ("99999999999999999999", false),
        ("7200, 0", false),
        ("0, 7200", true),
        ("abc", true),
        ("-7200", true),
        ("7200.0", true),
    ] {
        let response = vec![("cache-control", "max-age=3600"), ("age", value)];
        assert_eq!(answers_another(response.leak()).await, expected, "{value}");
    }
    let old = fields!["cache-control": "max-age=3600", "date": "Thu, 18 Aug 1994 02:01:18 GMT"];
    assert!(!answers_another(old).await, "`Date` sets its age");
}

/// A targeted field is read as `Cache-Control` is, where RFC 9213 ignores one that is no dictionary.
#[tokio::test]
async fn cdn_cache_control_overrides_cache_control() {
    for (cdn, general, expected) in [
        ("max-age=3600", "max-age=1", true),
        ("max-age=3600", "max-age=0", true),
        ("max-age=3600", "no-store", true),
        ("max-age=3600", "private", true),
        ("max-age=0", "max-age=3600", false),
        ("no-store", "max-age=3600", false),
        ("private", "public, max-age=3600", false),
        ("no-cache", "max-age=3600", false),
        ("max-age=3600, no-store=?0", "no-store", false),
        ("public", "max-age=3600", false),
        ("foobar", "max-age=3600", true),
        ("max-age=3600, foo=bar", "no-store", true),
        ("max-age=3600;foo=bar", "no-store", true),
        ("max-age=\"3600\"", "no-store", true),
        ("", "max-age=3600", true),
        ("", "no-store", false),
        ("MaX-aGe=0", "max-age=3600", false),
        ("max-age =0", "max-age=3600", false),
        ("max-age= 0", "max-age=3600", false),
        ("max-age=0, &&&&&", "max-age=3600", false),
        ("max-age=3600, &&&&&", "no-store", true),
    ] {
        let response = vec![("cdn-cache-control", cdn), ("cache-control", general)];
        assert_eq!(answers_another(response.leak()).await, expected, "{cdn} | {general}");
    }
    let expired = fields!["cdn-cache-control": "max-age=9", "expires": "0", "pragma": "no-cache"];
    assert!(answers_another(expired).await);
}

#[tokio::test]
async fn vary_selects_by_every_named_field() {
    let (a, b) = (fields!["foo": "1"], fields!["foo": "2"]);
    for (vary, first, second, expected) in [
        ("foo", a, a, true),
        ("FOO", a, a, true),
        ("foo", a, b, false),
        ("foo", a, fields![], false),
        ("foo", fields![], a, false),
        ("foo", fields![], fields![], true),
        ("foo", fields!["foo": "1", "bar": "2"], fields!["foo": "1", "bar": "3"], true),
        ("foo, bar", fields!["foo": "1", "bar": "2"], fields!["foo": "1", "bar": "3"], false),
        ("foo,bar,", fields!["foo": "1", "bar": "2"], fields!["foo": "1", "bar": "2"], true),
        ("foo, bar, baz", fields!["foo": "1"], fields!["foo": "1", "baz": ""], false),
        ("foo", fields!["foo": "1, 2"], fields!["foo": "1", "foo": "2"], true),
        ("foo", fields!["foo": "1,2"], fields!["foo": "1 ,\t2"], true),
        ("foo", fields!["foo": "1, 2"], fields!["foo": "2, 1"], false),
        ("*", a, a, false),
        ("*, *", a, a, false),
        (", *", a, a, false),
        ("*, foo", a, a, false),
        ("foo, *", a, a, false),
        ("foo,*,bar", a, a, false),
        ("", a, b, true),
        ("host", a, b, true),
        ("if-none-match", fields!["if-none-match": "\"x\""], fields![], false),
        ("authorization", a, fields!["authorization": "x"], false),
        ("cookie", a, fields!["cookie": "x"], false),
    ] {
        let response = vec![("cache-control", "public, max-age=3600"), ("vary", vary)];
        assert_eq!(reused(first, (200, response.leak()), second).await, expected, "{vary} {first:?} {second:?}");
    }
    let lines = fields!["cache-control": "max-age=3600", "vary": "foo", "vary": "*"];
    assert!(!reused(a, (200, lines), a).await);
}

#[tokio::test]
async fn most_statuses_are_stored_with_an_explicit_lifetime() {
    let errors = [400, 401, 404, 405, 410, 414, 451, 499, 500, 502, 503, 504, 599];
    let others = [200, 201, 202, 203, 204, 299, 300, 301, 302, 303, 307, 308];
    for code in others.into_iter().chain(errors) {
        assert!(reused(&[], (code, fields!["cache-control": "max-age=3600"]), &[]).await, "{code}");
        assert!(!reused(&[], (code, fields![]), &[]).await, "{code}");
    }
    for code in [206, 226, 304, 412, 416, 417, 428, 429, 431] {
        assert!(!reused(&[], (code, fields!["cache-control": "max-age=3600"]), &[]).await, "{code}");
    }
    for (code, expected) in [(200, true), (404, true), (299, false), (499, false)] {
        let response = fields!["cache-control": "max-age=3600, must-understand, no-store"];
        assert_eq!(reused(&[], (code, response), &[]).await, expected, "{code}");
    }
}

#[tokio::test]
async fn credentials_limit_sharing_unless_the_response_allows_it() {
    let (alice, bob) = (fields!["authorization": "alice"], fields!["authorization": "bob"]);
    let (cookie, other) = (fields!["cookie": "a"], fields!["cookie": "b"]);
    for (control, authorized, with_cookies) in [
        ("max-age=3600", false, false),
        ("max-age=3600, public", true, true),
        ("max-age=3600, must-revalidate", true, false),
        ("s-maxage=3600", true, true),
        ("max-age=3600, proxy-revalidate", false, false),
        ("must-revalidate", false, false),
    ] {
        let response = || (200, &*Vec::leak(vec![("cache-control", control)]));
        assert_eq!(reused(alice, response(), bob).await, authorized, "{control}");
        assert_eq!(reused(&[], response(), bob).await, authorized, "{control}");
        assert_eq!(reused(alice, response(), &[]).await, authorized, "{control}");
        assert_eq!(reused(cookie, response(), other).await, with_cookies, "{control}");
        assert_eq!(reused(&[], response(), other).await, with_cookies, "{control}");
    }
    for control in ["max-age=3600", "public, max-age=3600", "s-maxage=3600"] {
        let response = vec![("cache-control", control), ("set-cookie", "a=b")];
        assert!(!answers_another(response.leak()).await, "{control}");
    }
}

#[tokio::test]
async fn request_directives_limit_reuse() {
    let response = (200, fields!["cache-control": "max-age=3600", "age": "1800"]);
    for (demand, expected) in [
        ("max-age=0", false),
        ("max-age=1800", false),
        ("max-age=1900", true),
        ("max-age=1", false),
        ("min-fresh=1500", true),
        ("min-fresh=2000", false),
        ("max-stale", true),
        ("max-stale=1000", true),
        ("no-cache", false),
        ("no-store", false),
        ("only-if-cached", true),
        ("no-transform, foo", true),
    ] {
        let second = Vec::leak(vec![("cache-control", demand)]);
        assert_eq!(reused(&[], response, second).await, expected, "{demand}");
    }
    assert!(!reused(&[], response, fields!["pragma": "no-cache"]).await);
    assert!(reused(&[], response, fields!["pragma": "foo"]).await);
    assert!(!answers_another(fields!["pragma": "no-cache", "expires": "Sun, 21 Nov 2286 04:46:39 GMT"]).await);
    assert!(answers_another(fields!["pragma": "no-cache", "cache-control": "max-age=3600"]).await);
}

/// RFC 9111 §4.4.
#[tokio::test]
async fn unsafe_methods_invalidate_their_target() {
    for method in ["POST", "PUT", "DELETE", "PATCH", "M-SEARCH"] {
        for (code, fields, target, own) in [
            (200, fields![], "/page", true),
            (204, fields![], "/page", true),
            (303, fields![], "/page", true),
            (404, fields![], "/page", false),
            (500, fields![], "/page", false),
            (200, fields![], "/page?query", false),
            (200, fields!["location": "/page", "content-location": "/page"], "/elsewhere", false),
        ] {
            let (guard, origin) = (strict(), Origin::new());
            let answer = move |request: &Request, n: usize| match *request.method() {
                Method::GET => respond(200, fields!["cache-control": "max-age=3600"], n.to_string()),
                _ => respond(code, fields, String::new()),
            };
            let app = site(&origin, answer).layer(guard.clone());
            for path in ["/page", "/other"] {
                ask(&app, get_with(path, &[])).await;
                at_rest(&guard).await;
            }
            let method = Method::from_bytes(method.as_bytes()).expect("a method");
            assert_eq!(ask(&app, request(method.clone(), target, &[])).await.status, code);
            for (path, dropped) in [("/page", own), ("/other", false)] {
                let hit = ask(&app, get_with(path, &[])).await.cache_status() == CacheStatus::Hit;
                assert_eq!(hit, !dropped, "{method} {target}: {code} {fields:?}: {path}");
            }
        }
    }
}

/// Returns the response to the request that validates, and the response to the next request.
async fn revalidated(stored: Fields, code: u16, newer: Fields) -> [Answer; 2] {
    let (guard, origin) = (strict(), Origin::new());
    let answer = move |_: &Request, n: usize| match n {
        1 => respond(200, stored, "1".to_owned()),
        2 => respond(code, newer, if code == 304 { String::new() } else { "2".to_owned() }),
        _ => respond(200, fields![], n.to_string()),
    };
    let app = site(&origin, answer).layer(guard.clone());
    ask(&app, get_with("/page", &[])).await;
    at_rest(&guard).await;
    let first = ask(&app, get_with("/page", &[])).await;
    at_rest(&guard).await;
    [first, ask(&app, get_with("/page", &[])).await]
}

/// RFC 9111 §3.2, §4.3.4.
#[tokio::test]
async fn a_304_updates_the_stored_response() {
    let stored = fields![
        "cache-control": "max-age=0", "etag": "\"e\"", "x-a": "1", "x-gone": "1", "content-type": "text/plain",
    ];
    let fresh = fields![
        "cache-control": "max-age=3600", "etag": "\"e\"", "x-a": "2", "x-a": "3", "x-new": "1",
        "content-type": "text/html", "content-encoding": "gzip", "content-length": "0", "connection": "x-hop", "x-hop": "1",
    ];
    for answer in revalidated(stored, 304, fresh).await {
        assert_eq!((answer.status, answer.text()), (200, "1"));
        let values: Vec<_> = answer.headers.get_all("x-a").iter().map(HeaderValue::as_bytes).collect();
        assert_eq!((values, answer.header("x-new"), answer.header("x-gone")), (vec![&b"2"[..], b"3"], "1", "1"));
        assert_eq!((answer.header("content-type"), answer.header("content-encoding")), ("text/plain", ""));
        assert!(!answer.headers.contains_key("x-hop"));
    }
    for (newer, next) in [
        (fields!["cache-control": "max-age=3600", "etag": "\"e\"", "set-cookie": "a=b"], "3"),
        (fields!["cache-control": "max-age=3600, private", "etag": "\"e\""], "3"),
        (fields!["cache-control": "no-store", "etag": "\"e\""], "3"),
        (fields!["cache-control": "max-age=3600", "vary": "*", "etag": "\"e\""], "3"),
        (fields!["cache-control": "max-age=3600", "vary": "accept", "etag": "\"e\""], "1"),
        (fields!["cache-control": "max-age=3600", "etag": "W/\"e\""], "1"),
        (fields!["cache-control": "max-age=3600"], "1"),
        (fields!["cache-control": "max-age=3600", "age": "3600"], "3"),
    ] {
        let [first, second] = revalidated(stored, 304, newer).await;
        assert_eq!((first.status, first.text(), second.text()), (200, "1", next), "{newer:?}");
    }
    let [first, second] = revalidated(stored, 200, fields!["cache-control": "max-age=3600"]).await;
    assert_eq!((first.text(), second.text(), second.header("x-gone")), ("2", "2", ""));
    let [first, second] = revalidated(stored, 304, fields!["etag": "\"other\""]).await;
    assert_eq!((first.status, second.text()), (502, "3"), "the 304 is about another response");
    for code in [404, 410, 503] {
        let [first, second] = revalidated(stored, code, fields!["cache-control": "no-store"]).await;
        assert_eq!((first.status, second.status), (code, 200), "{code}");
    }
}

/// RFC 9110 §7.6.1, RFC 9111 §3.1.
#[tokio::test]
async fn all_fields_except_hop_by_hop_fields_are_stored() {
    let (guard, origin) = (strict(), Origin::new());
    let kept = fields![
        "cache-control": "max-age=3600", "content-type": "text/plain", "content-disposition": "attachment",
        "content-foo": "1", "content-language": "en", "x-a": "1", "link": "<a>", "link": "<b>", "warning": "199 - x",
        "www-authenticate": "basic", "server": "x", "via": "1.1 x", "public-key-pins": "x", "clear-site-data": "\"x\"",
    ];
    let hops = fields![
        "connection": "a, close", "connection": "B", "a": "1", "b": "1", "keep-alive": "1", "proxy-authenticate": "x",
        "proxy-authentication-info": "x", "proxy-authorization": "x", "proxy-connection": "close", "te": "x",
        "trailer": "x", "transfer-encoding": "chunked", "upgrade": "x",
    ];
    let all: Fields = Vec::leak([kept, hops].concat());
    let app = site(&origin, move |_, n| respond(200, all, n.to_string())).layer(guard.clone());
    ask(&app, get_with("/page", &[])).await;
    at_rest(&guard).await;
    let hit = ask(&app, get_with("/page", &[])).await;
    let mut headers = hit.headers;
    for added in ["age", "date", "cache-status", "content-length"] {
        headers.remove(added);
    }
    assert_eq!((hit.cache_status, headers), (Some(CacheStatus::Hit), head(kept)));
}

/// RFC 9211 §2, RFC 9651 §3.1: a list with one member, a token with parameters.
#[tokio::test]
async fn a_cache_status_is_a_structured_field() {
    let guard = StampedeGuard::in_memory().http(HttpOptions::default().vary_key_on(HeaderName::from_static("x")));
    let app = site(&Origin::new(), |_, n| ([("vary", "y")], n.to_string())).layer(guard.clone());
    let odd = r#"/"a"{}%22?={}"#;
    for (method, path, fields) in [
        (Method::GET, odd, fields![]),
        (Method::GET, odd, fields!["x": "\" \\, b;c"]),
        (Method::GET, odd, fields![]),
        (Method::GET, odd, fields!["y": "1"]),
        (Method::HEAD, odd, fields!["y": "2"]),
        (Method::POST, odd, fields![]),
        (Method::OPTIONS, odd, fields![]),
        (Method::GET, odd, fields!["cache-control": "no-store"]),
        (Method::GET, "/none", fields!["cache-control": "only-if-cached"]),
        (Method::GET, "/none", fields!["range": "bytes=0-0"]),
    ] {
        let answer = ask(&app, request(method, path, fields)).await;
        at_rest(&guard).await;
        let said = answer.header("cache-status");
        let name = |name: BareItemFromInput<'_>| {
            assert_eq!(name.as_token().expect("a token").as_str(), "stampede-guard");
            Ok::<_, Infallible>(Ignored)
        };
        Parser::new(said).parse_item_with_visitor(name).expect(said);
        assert!(["; hit", "; fwd=", "; detail="].iter().any(|how| said.contains(how)), "{said}");
    }
}
