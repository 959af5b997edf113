//! Requests that carry a sign of one user, and requests that carry none. The handlers say nothing on caching.

use crate::{
    kit::{ask, at_rest, get, get_with, request, site},
    support::Origin,
    vary::field,
};
use axum::{
    Extension, Router,
    extract::Request,
    http::{HeaderName, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get as on_get,
};
use stampede_guard::{CacheStatus, StampedeGuard, http::HttpOptions};

/// Seen to fail: bob got the balance of alice, and a request without a key got it instead of a 401.
#[tokio::test]
async fn a_balance_is_shown_to_its_own_key_only() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |request, _| -> Response {
        match field(request, "x-api-key") {
            "" => StatusCode::UNAUTHORIZED.into_response(),
            key => format!("balance of {key}").into_response(),
        }
    });
    let app = app.layer(guard.clone());
    for key in ["alice", "bob"] {
        assert_eq!(ask(&app, get_with("/me", &[("x-api-key", key)])).await.text(), format!("balance of {key}"));
        at_rest(&guard).await;
    }
    assert_eq!(ask(&app, get("/me")).await.status, 401);
}

/// Otherwise a cache that gets its requests from nginx would share nothing.
#[tokio::test]
async fn a_browser_behind_nginx_shares() {
    let (guard, origin) = (StampedeGuard::in_memory(), Origin::new());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    for client in ["192.0.2.1", "192.0.2.2"] {
        let fields = [
            ("x-real-ip", client),
            ("x-forwarded-for", client),
            ("x-forwarded-proto", "https"),
            ("x-request-id", client),
            ("user-agent", client),
            ("accept", "text/html"),
            ("accept-encoding", "gzip, br"),
            ("accept-language", "en"),
            ("sec-ch-ua", "\"Chromium\""),
            ("sec-ch-ua-mobile", "?0"),
            ("sec-ch-ua-platform", "\"Linux\""),
            ("sec-fetch-site", "none"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-user", "?1"),
            ("sec-fetch-dest", "document"),
            ("sec-gpc", "1"),
            ("upgrade-insecure-requests", "1"),
            ("x-user-agent", client),
        ];
        assert_eq!(ask(&app, get_with("/page", &fields)).await.text(), "1", "{client}");
        at_rest(&guard).await;
    }
}

#[tokio::test]
async fn fields_named_as_harmless_keep_no_page_apart() {
    let options = HttpOptions::default().harmless_fields([header::COOKIE, X_FORWARDED_CLIENT_CERT]);
    let both = options.clone().credential_fields([X_FORWARDED_CLIENT_CERT]);
    for (options, shared) in [(options, true), (both, false), (HttpOptions::default(), false)] {
        let (guard, origin) = (StampedeGuard::in_memory().http(options), Origin::new());
        let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
        for cookie in ["a", "b"] {
            let answer = ask(&app, get_with("/page", &[("cookie", cookie), ("x-forwarded-client-cert", "mesh")])).await;
            assert_eq!(answer.text() == "1", shared || cookie == "a");
            at_rest(&guard).await;
        }
    }
}

#[test]
#[should_panic(expected = "harmless_fields must not name authorization")]
fn authorization_stays_a_credential() {
    let _ = HttpOptions::default().harmless_fields([header::AUTHORIZATION]);
}

/// Authentication above the layer puts the user into an extension, as with a client certificate. The first site shows
/// that the test can fail: it does not say so to the layer.
#[tokio::test]
async fn private_if_separates_users_in_extensions() {
    #[derive(Clone)]
    struct User(String);
    async fn authenticate(mut request: Request, next: Next) -> Response {
        let user = field(&request, "x-badge").to_owned();
        if !user.is_empty() {
            request.extensions_mut().insert(User(user));
        }
        next.run(request).await
    }
    let page = async |user: Option<Extension<User>>| user.map_or_else(String::new, |user| user.0.0);
    let by_user = HttpOptions::default().private_if(|parts| parts.extensions.get::<User>().is_some());
    for (options, bob) in [(HttpOptions::default(), "alice"), (by_user, "bob")] {
        let options = options.harmless_fields([HeaderName::from_static("x-badge")]);
        let guard = StampedeGuard::in_memory().http(options);
        let app = Router::new().route("/me", on_get(page)).layer(guard.clone());
        let app = app.layer(middleware::from_fn(authenticate));
        for (user, expected) in [("alice", "alice"), ("bob", bob)] {
            assert_eq!(ask(&app, get_with("/me", &[("x-badge", user)])).await.text(), expected);
            at_rest(&guard).await;
        }
    }
}

#[tokio::test]
async fn private_if_leaves_anonymous_requests_shared() {
    let options = HttpOptions::default().private_if(|parts| parts.uri.path() == "/me");
    assert_eq!(options, options.clone(), "settings with a function can be compared");
    assert_ne!(options, HttpOptions::default().private_if(|_| true));
    let (guard, origin) = (StampedeGuard::in_memory().http(options), Origin::new());
    let app = site(&origin, |_, n| n.to_string()).layer(guard.clone());
    for (path, method, expected) in [
        ("/page", Method::GET, "1"),
        ("/page", Method::GET, "1"),
        ("/me", Method::GET, "2"),
        ("/me", Method::GET, "3"),
        ("/page", Method::HEAD, ""),
    ] {
        assert_eq!(ask(&app, request(method, path, &[])).await.text(), expected, "{path}");
        at_rest(&guard).await;
    }
    assert_eq!(ask(&app, get("/page")).await.cache_status(), CacheStatus::Hit);
}

const X_FORWARDED_CLIENT_CERT: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
