//! Layers that decide what a client may see: authentication, sessions, CORS.

use crate::kit::{Answer, ask, at_rest, get, get_with, guard, request, site};
use axum::{
    Extension, Router,
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode},
    middleware::{Next, from_fn},
    response::{IntoResponse, Response},
    routing::get as on_get,
};
use stampede_guard::http::HttpOptions;
use stampede_guard_support::Origin;
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use tower_http::cors::CorsLayer;

/// Inside of the guard, a hit skips the check: a `public` response reaches a client without credentials.
#[tokio::test]
async fn authentication_is_checked_outside_of_the_guard() {
    async fn check(request: Request, next: Next) -> Response {
        match request.headers().get("authorization") {
            Some(token) if token == "Bearer alice" => next.run(request).await,
            _ => StatusCode::UNAUTHORIZED.into_response(),
        }
    }
    for (is_outside, stranger) in [(true, 401), (false, 200)] {
        let (guard, origin) = (guard(), Origin::new());
        let site = site(&origin, |_, n| ([("cache-control", "public, max-age=60")], format!("report {n}")));
        let site = match is_outside {
            true => site.layer(guard.clone()).layer(from_fn(check)),
            false => site.layer(from_fn(check)).layer(guard.clone()),
        };
        let alice = || get_with("/report", &[("authorization", "Bearer alice")]);
        assert_eq!(ask(&site, alice()).await.text(), "report 1");
        at_rest(&guard).await;
        assert_eq!(ask(&site, get("/report")).await.status, stranger);
        let alice = ask(&site, alice()).await;
        assert!(alice.is_hit() && alice.text() == "report 1", "{alice:?}");
    }
}

/// The layer outside hands the user to handlers in an extension, which the guard does not see. It sees the field by which
/// the layer knows the user, unless that is harmless.
#[tokio::test]
async fn users_of_an_extension_are_told_apart_by_their_field() {
    #[derive(Clone)]
    struct User(String);
    async fn identify(mut request: Request, next: Next) -> Response {
        let user = request.headers()["x-badge"].to_str().expect("a name").to_owned();
        request.extensions_mut().insert(User(user));
        next.run(request).await
    }
    let badge = || [HeaderName::from_static("x-badge")];
    for (options, second) in [
        (HttpOptions::default(), "page of bob"),
        (HttpOptions::default().credential_fields(badge()), "page of bob"),
        (HttpOptions::default().harmless_fields(badge()), "page of alice"),
    ] {
        let guard = guard().http(options);
        let page = |Extension(User(name)): Extension<User>| async move { format!("page of {name}") };
        let site = Router::new().route("/me", on_get(page)).layer(guard.clone()).layer(from_fn(identify));
        for (name, page) in [("alice", "page of alice"), ("bob", second)] {
            assert_eq!(ask(&site, get_with("/me", &[("x-badge", name)])).await.text(), page);
            at_rest(&guard).await;
        }
    }
}

/// The token of a session's forms, as session layers hand it to handlers.
#[derive(Clone)]
struct FormToken(String);

/// Returns a page with a form, under a layer that gives each visitor without a cookie a session.
fn page_with_a_form(layer_order: impl FnOnce(Router, SessionLayer) -> Router) -> Router {
    let page = |Extension(FormToken(token)): Extension<FormToken>| async move { format!("token={token}") };
    layer_order(Router::new().route("/form", on_get(page)), SessionLayer::default())
}

#[derive(Default)]
struct SessionLayer(Arc<AtomicUsize>);

impl SessionLayer {
    async fn call(sessions: Arc<AtomicUsize>, mut request: Request, next: Next) -> Response {
        let id = sessions.fetch_add(1, SeqCst);
        request.extensions_mut().insert(FormToken(format!("of-session-{id}")));
        let mut response = next.run(request).await;
        let cookie = HeaderValue::try_from(format!("sid={id}")).expect("a value");
        response.headers_mut().append("set-cookie", cookie);
        response
    }

    fn over(self, router: Router) -> Router {
        router.layer(from_fn(move |request, next| Self::call(self.0.clone(), request, next)))
    }
}

/// Outside of the guard, the layer adds its cookie after the guard has shared the page with the next visitor.
#[tokio::test]
async fn sessions_begin_inside_of_the_guard() {
    for is_inside in [true, false] {
        let guard = guard();
        let site = page_with_a_form(|router, sessions| match is_inside {
            true => sessions.over(router).layer(guard.clone()),
            false => sessions.over(router.layer(guard.clone())),
        });
        let mut visitors = Vec::new();
        for _ in 0..2 {
            visitors.push(ask(&site, get("/form")).await);
            at_rest(&guard).await;
        }
        assert_eq!(visitors.iter().map(|v| v.header("set-cookie")).collect::<Vec<_>>(), ["sid=0", "sid=1"]);
        let tokens: Vec<_> = visitors.iter().map(Answer::text).collect();
        let second = if is_inside { "token=of-session-1" } else { "token=of-session-0" };
        assert_eq!(tokens, ["token=of-session-0", second]);
    }
}

/// Each origin gets its own fields in either order. Inside of the guard, each origin costs a call and an entry.
#[tokio::test]
async fn cors_in_either_order_answers_each_origin() {
    let origins = ["https://a.test", "https://b.test"];
    for (is_outside, calls) in [(true, 1), (false, 2)] {
        let (guard, origin) = (guard(), Origin::new());
        let cors = CorsLayer::new()
            .allow_origin(origins.map(|name| name.parse().expect("an origin")))
            .allow_methods([Method::GET]);
        let site = site(&origin, |_, n| format!("page {n}"));
        let site = match is_outside {
            true => site.layer(guard.clone()).layer(cors),
            false => site.layer(cors).layer(guard.clone()),
        };
        for name in origins.into_iter().chain(origins) {
            let answer = ask(&site, get_with("/news", &[("origin", name)])).await;
            assert_eq!(answer.header("access-control-allow-origin"), name);
            at_rest(&guard).await;
        }
        let preflight = [("origin", origins[1]), ("access-control-request-method", "GET")];
        let preflight = ask(&site, request(Method::OPTIONS, "/news", &preflight, Body::empty())).await;
        assert_eq!(preflight.header("access-control-allow-origin"), origins[1]);
        assert_eq!(origin.calls(), calls);
    }
}

/// The mistake is the origin's: its response depends on a field that `Vary` does not name.
#[tokio::test]
async fn cors_by_hand_without_vary_is_shared() {
    let guard = guard();
    let respond = |headers: HeaderMap, _| {
        let allowed = headers.get("origin").cloned().unwrap_or(HeaderValue::from_static(""));
        [("access-control-allow-origin", allowed)]
    };
    let site = site(&Origin::new(), respond).layer(guard.clone());
    for name in ["https://a.test", "https://b.test"] {
        let answer = ask(&site, get_with("/news", &[("origin", name)])).await;
        assert_eq!(answer.header("access-control-allow-origin"), "https://a.test");
        at_rest(&guard).await;
    }
}
