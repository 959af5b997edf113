//! The lines that operators read.

use crate::{
    Down, SECOND,
    kit::{Events, answers, patient, recovers},
    support::{RedisServer, eventually},
};
use axum::{
    Router,
    body::Body,
    http::{self, HeaderMap, Response},
    routing::{get, post},
};
use stampede_guard::{
    NearCacheConfig, StampedeGuard,
    testing::{FakeRedis, Fault, Operation},
};
use std::{convert::Infallible, fmt::Debug, future::pending};
use tokio::time::{sleep, timeout};
use tower::{Layer, Service, ServiceExt, service_fn};

/// One line at the beginning and one at the end, if there is one. Seen to fail with a line for each attempt.
#[tokio::test(start_paused = true)]
async fn failed_invalidation_is_logged_at_its_beginning_and_end() {
    for (fails, ends) in [(3, 1), (usize::MAX, 0)] {
        let (events, node) = (Events::listen(), FakeRedis::new().node());
        let guard = node.guard();
        guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
        node.times(fails, Operation::Invalidate, Fault::Fails);
        guard.invalidate("k").await.expect_err("not acknowledged");
        guard.invalidate("k").await.expect_err("not acknowledged");
        assert_eq!((events.about("WARN"), events.about("not acknowledged")), (1, 1), "{}", events.all());
        sleep(20 * SECOND).await;
        assert_eq!(guard.drain().await, 1 - ends);
        assert_eq!(events.about("WARN") - events.about("breaker"), 1 + ends, "{}", events.all());
        assert_eq!(events.about("are acknowledged"), ends, "{}", events.all());
    }
}

/// One line when the breaker opens and one when it closes, and none for each request.
#[tokio::test]
async fn outage_is_logged_at_its_beginning_and_end() {
    let (events, server) = (Events::listen(), RedisServer::start());
    let guard = patient(server.client());
    recovers(&guard).await;
    for outages in 1..=2 {
        server.kill();
        eventually("the breaker opens", async || {
            answers(&guard, &format!("lost {}", fastrand::u64(..))).await;
            guard.health().breaker_open
        })
        .await;
        for key in 0..20 {
            answers(&guard, &format!("key {key}")).await;
        }
        server.restart().await;
        recovers(&guard).await;
        eventually("the breaker closes", async || !guard.health().breaker_open).await;
        let said = events.all();
        assert_eq!(events.about("circuit breaker opened: the store is unavailable"), outages, "{said}");
        assert_eq!(events.about("circuit breaker closed: the store answers again"), outages, "{said}");
        for field in ["error=", "open_for="] {
            assert_eq!(events.about(&format!("server.address=\"127.0.0.1\" {field}")), outages, "{said}");
        }
        assert_eq!(events.about("WARN") + events.about("ERROR"), 2 * outages, "{said}");
    }
}

#[tokio::test]
async fn health_shows_whether_wake_ups_arrive() {
    let server = RedisServer::start();
    let guard = patient(server.client()).near_cache(NearCacheConfig::max_bytes(8 << 20));
    assert_eq!(guard.health().subscriber_up, Some(false), "the first request subscribes");
    for _ in 0..2 {
        recovers(&guard).await;
        eventually("wake-ups arrive", async || guard.health().subscriber_up == Some(true)).await;
        server.kill();
        eventually("no wake-ups arrive", async || guard.health().subscriber_up == Some(false)).await;
        server.restart().await;
    }
    let connection = server.client().get_multiplexed_async_connection().await.expect("the server is up");
    assert_eq!(StampedeGuard::new(connection).health().subscriber_up, None);
}

/// A refusal leaves the breaker closed.
#[tokio::test(start_paused = true)]
async fn refusal_is_logged_once_a_minute() {
    let (events, node) = (Events::listen(), FakeRedis::new().node());
    node.always(Operation::GetOrLease, Fault::Fails);
    let guard = node.guard();
    for minutes in 1..=3 {
        for key in 0..100_u64 {
            guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("the origin answers");
        }
        assert_eq!((events.about("WARN"), events.about("the store refuses operations")), (minutes, minutes));
        sleep(60 * SECOND).await;
    }
    assert_eq!(guard.stats().breaker_opened, 0);
}

#[tokio::test(start_paused = true)]
async fn fetch_dropped_for_lack_of_a_client_is_logged() {
    let (events, guard) = (Events::listen(), StampedeGuard::in_memory().max_detached(0));
    timeout(SECOND, guard.fetch("k", pending::<Result<u8, Down>>)).await.expect_err("it waits");
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    assert_eq!((events.about("WARN"), events.about("max_detached")), (1, 1), "{}", events.all());
}

/// Requests a page of the service this often, with these fields.
async fn requested<S>(service: &S, times: usize, request: impl Fn(usize) -> http::request::Builder)
where
    S: Service<http::Request<Body>, Response: Send, Error: Debug, Future: Send> + Clone,
{
    for n in 0..times {
        let request = request(n).body(Body::empty()).expect("a request");
        drop(service.clone().oneshot(request).await.expect("an answer"));
    }
}

/// Seen to fail with a report for the route of unsafe methods too, when other methods than GET and HEAD counted.
#[tokio::test(start_paused = true)]
async fn route_that_is_never_cacheable_is_reported_once() {
    let (events, guard) = (Events::listen(), StampedeGuard::in_memory());
    let private = async || ([("cache-control", "private")], "for one user");
    let news = async |headers: HeaderMap| match headers.contains_key("cookie") {
        true => ([("cache-control", "private")], "for one user"),
        false => ([("cache-control", "max-age=60")], "for all users"),
    };
    let app: Router = Router::new()
        .route("/users/{id}", get(private))
        .route("/orders", post(private))
        .route("/news", get(news))
        .layer(guard.clone());
    requested(&app, 10, |_| http::Request::get("/news")).await;
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    requested(&app, 1_100, |_| http::Request::post("/orders")).await;
    requested(&app, 1_100, |n| http::Request::get(format!("/news?{n}")).header("cookie", "a=b")).await;
    requested(&app, 999, |n| http::Request::get(format!("/users/{n}"))).await;
    assert_eq!(events.about("WARN"), 0, "{}", events.all());
    requested(&app, 1_100, |n| http::Request::get(format!("/users/{n}"))).await;
    let said = r#"route="/users/{id}" reason=private hint="let the handler say"#;
    assert_eq!((events.about("WARN"), events.about(said)), (1, 1), "{}", events.all());
}

#[tokio::test(start_paused = true)]
async fn layer_without_a_matched_path_is_reported() {
    let (events, guard) = (Events::listen(), StampedeGuard::in_memory());
    let page = service_fn(async |_: http::Request<Body>| Ok::<_, Infallible>(Response::new(Body::from("page"))));
    let (cached, with_cookies) = (StampedeGuard::in_memory().layer(page), guard.layer(page));
    requested(&cached, 10, |_| http::Request::get("/")).await;
    requested(&with_cookies, 1_100, |n| http::Request::get(format!("/{n}")).header("cookie", "a=b")).await;
    requested(&cached, 1_100, |n| http::Request::get(format!("/{n}")).header("cookie", "a=b")).await;
    let said = r#"route="a layer without a matched path" reason=cookie"#;
    assert_eq!((events.about("WARN"), events.about(said)), (1, 1), "{}", events.all());
}
