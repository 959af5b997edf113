//! Middleware and routers that change the URI of a request before the layer sees it.

use crate::{
    kit::{ask, at_rest, get, get_with, request},
    vary::field,
};
use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{Method, Uri},
    middleware::{self, Next},
    response::Response,
    routing::{any, get as on_get},
};
use stampede_guard::{CacheStatus, StampedeGuard, http::HttpOptions};
use std::convert::Infallible;
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};

/// Puts the tenant in front of the path.
async fn by_tenant(mut request: Request, next: Next) -> Response {
    let path = format!("/{}{}", field(&request, "x-brand"), request.uri().path());
    *request.uri_mut() = path.parse().expect("a path");
    next.run(request).await
}

fn of_team(path: &str, team: &str) -> Request {
    get_with(path, &[("x-brand", team)])
}

/// `OriginalUri` of the outer router is the same for both. Seen to fail: the second team got the report of the first.
#[tokio::test]
async fn a_path_rewritten_by_tenant_is_in_the_key() {
    let guard = StampedeGuard::in_memory();
    let report = Router::new().route("/{team}/report", any(async |uri: Uri| uri.path().to_owned()));
    let stack = ServiceBuilder::new().layer(middleware::from_fn(by_tenant)).layer(guard.clone()).service(report);
    let app = Router::new().fallback_service(stack);
    for (team, expected) in [("acme", "/acme/report"), ("umbrella", "/umbrella/report")] {
        for _ in 0..2 {
            assert_eq!(ask(&app, of_team("/report", team)).await.text(), expected);
            at_rest(&guard).await;
        }
    }
    assert_eq!(ask(&app, of_team("/report", "acme")).await.cache_status(), CacheStatus::Hit);
    ask(&app, request(Method::POST, "/report", &[("x-brand", "acme")])).await;
    assert_ne!(ask(&app, of_team("/report", "acme")).await.cache_status(), CacheStatus::Hit, "it is invalidated");
    assert_eq!(ask(&app, of_team("/report", "umbrella")).await.cache_status(), CacheStatus::Hit);
}

/// Seen to fail: the key of the second request was that of the rewritten URI, so the client got the report of the team.
#[tokio::test]
async fn a_host_with_a_path_gets_no_rewritten_report() {
    let guard = StampedeGuard::in_memory();
    let report = service_fn(async |request: Request| {
        Ok::<_, Infallible>(Response::new(Body::from(request.uri().path().to_owned())))
    });
    let stack = ServiceBuilder::new().layer(guard.clone()).service(report);
    let rewritten = Router::new()
        .fallback_service(ServiceBuilder::new().layer(middleware::from_fn(by_tenant)).service(stack.clone()));
    assert_eq!(ask(&rewritten, of_team("/report", "acme")).await.text(), "/acme/report");
    at_rest(&guard).await;
    let host = ("host", "example.test/acme/report");
    let answer =
        ask(&stack, Request::get("/report").header(host.0, host.1).body(Body::empty()).expect("a request")).await;
    assert_eq!((answer.text(), answer.cache_status()), ("/report", CacheStatus::Bypass));
}

/// The layer is over a client within an axum proxy. Seen to fail: the second team got the answer of the first team's
/// server.
#[tokio::test]
async fn a_guarded_client_in_a_proxy_goes_by_its_own_uri() {
    let guard = StampedeGuard::in_memory();
    let upstream = guard.layer(service_fn(async |request: Request| {
        Ok::<_, Infallible>(Response::new(Body::from(request.uri().to_string())))
    }));
    let app = Router::new().fallback(move |mut request: Request| {
        let upstream = upstream.clone();
        async move {
            let uri = format!("http://{}.internal{}", field(&request, "x-brand"), request.uri().path());
            *request.uri_mut() = uri.parse().expect("a URI");
            request.headers_mut().remove("host");
            upstream.oneshot(request).await.expect("infallible")
        }
    });
    for (team, expected) in [("acme", "http://acme.internal/report"), ("umbrella", "http://umbrella.internal/report")] {
        for status in [CacheStatus::Miss, CacheStatus::Hit] {
            let answer = ask(&app, of_team("/report", team)).await;
            assert_eq!((answer.text(), answer.cache_status()), (expected, status));
            at_rest(&guard).await;
        }
    }
}

/// The prefix that `nest` strips belongs to the key, also if nothing but the root is left.
#[tokio::test]
async fn nested_routers_are_invalidated_by_their_public_url() {
    let guard = StampedeGuard::in_memory();
    let version = |name: &'static str| {
        Router::new()
            .route("/", on_get(move |uri: Uri| async move { format!("{name} {uri}") }))
            .route("/users", on_get(move |uri: Uri| async move { format!("{name} {uri}") }))
            .layer(guard.clone())
    };
    let app = Router::new().nest("/v1", version("one")).nest("/v2", version("two"));
    for (url, expected) in [
        ("/v1", "one /"),
        ("/v2", "two /"),
        ("/v1?a", "one /?a"),
        ("/v1/users", "one /users"),
        ("/v2/users", "two /users"),
    ] {
        for status in [CacheStatus::Miss, CacheStatus::Hit] {
            let answer = ask(&app, get(url)).await;
            assert_eq!((answer.text(), answer.cache_status()), (expected, status), "{url}");
            at_rest(&guard).await;
        }
        let public = format!("https://example.test{url}").parse().expect("a URL");
        guard.invalidate_url(&public).await.expect("acknowledged");
        assert_eq!(ask(&app, get(url)).await.cache_status(), CacheStatus::Miss, "{url}");
        at_rest(&guard).await;
    }
}

/// A router of another version of axum has an extension of its own type. The first site shows what happens if the layer
/// does not know it.
#[tokio::test]
async fn original_uri_of_another_router_can_be_named() {
    #[derive(Clone)]
    struct FromClient(Uri);
    let named = HttpOptions::default().original_uri(|extensions| extensions.get::<FromClient>().map(|uri| &uri.0));
    for (options, second) in [(HttpOptions::default(), "/v1/users"), (named, "/v2/users")] {
        let guard = StampedeGuard::in_memory().http(options);
        let page = guard.layer(service_fn(async |request: Request| {
            let uri = request.extensions().get::<FromClient>().expect("set by the router").0.to_string();
            Ok::<_, Infallible>(Response::new(Body::from(uri)))
        }));
        let router = service_fn(move |mut request: Request| {
            let original = request.uri().clone();
            *request.uri_mut() = original.path()["/v1".len()..].parse().expect("a path");
            request.extensions_mut().insert(FromClient(original));
            page.clone().oneshot(request)
        });
        for (url, expected) in [("/v1/users", "/v1/users"), ("/v2/users", second)] {
            assert_eq!(ask(&router, get(url)).await.text(), expected);
            at_rest(&guard).await;
        }
    }
}
