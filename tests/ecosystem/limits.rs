//! Layers that limit: concurrency, rates, sizes, times, and load shedding.

use crate::kit::{ask, at_rest, get, guard, is_pending, request, site};
use axum::{
    Router,
    body::Body,
    error_handling::HandleErrorLayer,
    http::{Method, StatusCode},
};
use futures_util::future::join_all;
use stampede_guard::BoxError;
use stampede_guard_support::Origin;
use std::time::Duration;
use tokio::time::Instant;
use tower::{
    ServiceBuilder,
    buffer::BufferLayer,
    limit::{GlobalConcurrencyLimitLayer, RateLimitLayer},
    load_shed::LoadShedLayer,
};
use tower_http::{limit::RequestBodyLimitLayer, timeout::TimeoutLayer};

const PERIOD: Duration = Duration::from_secs(15);

async fn unavailable(_: BoxError) -> StatusCode {
    StatusCode::SERVICE_UNAVAILABLE
}

/// Outside of the guard, a slow page takes the permits that hits of other pages wait for.
#[tokio::test]
async fn concurrency_limit_inside_of_the_guard_spares_hits() {
    for is_inside in [true, false] {
        let (guard, origin) = (guard(), Origin::gated());
        let (router, limit) = (site(&origin, |_, n| format!("page {n}")), GlobalConcurrencyLimitLayer::new(1));
        let site = match is_inside {
            true => router.layer(limit).layer(guard.clone()),
            false => router.layer(guard.clone()).layer(limit),
        };
        ask(&site, get("/page")).await;
        at_rest(&guard).await;
        let slow = tokio::spawn(ask(&site, get("/slow")));
        origin.arrived(1).await;
        let mut hit = ask(&site, get("/page"));
        assert_eq!(is_pending(&mut hit).await, !is_inside);
        origin.open();
        assert_eq!(slow.await.expect("no panic").text(), "page 1");
        if !is_inside {
            assert!(hit.await.is_hit());
        }
    }
}

/// A fetch goes on when its client leaves. Outside of the guard, the client frees its permit nevertheless.
#[tokio::test]
async fn concurrency_limit_inside_bounds_detached_fetches() {
    for (is_inside, most) in [(true, 3), (false, 10)] {
        let (guard, origin) = (guard(), Origin::gated());
        let (router, limit) = (site(&origin, |_, n| format!("page {n}")), GlobalConcurrencyLimitLayer::new(3));
        let site = match is_inside {
            true => router.layer(limit).layer(guard.clone()),
            false => router.layer(guard.clone()).layer(limit),
        };
        for client in 1..=10 {
            let mut asked = ask(&site, get(&format!("/report/{client}")));
            assert!(is_pending(&mut asked).await);
            origin.arrived(client.min(most)).await;
        }
        origin.open();
        at_rest(&guard).await;
        assert_eq!(origin.peak(), most);
    }
}

/// Outside of the guard, a hit takes from the rate as a call of the origin does.
#[tokio::test(start_paused = true)]
async fn rate_limit_inside_of_the_guard_spares_hits() {
    for (is_inside, waited) in [(true, Duration::ZERO), (false, PERIOD)] {
        let guard = guard();
        let limit = ServiceBuilder::new()
            .layer(HandleErrorLayer::new(unavailable))
            .layer(BufferLayer::new(16))
            .layer(RateLimitLayer::new(1, PERIOD));
        let router = site(&Origin::new(), |_, n| format!("page {n}"));
        let site: Router = match is_inside {
            true => router.layer(limit).layer(guard.clone()),
            false => router.layer(guard.clone()).layer(limit),
        };
        let started = Instant::now();
        ask(&site, get("/page")).await;
        at_rest(&guard).await;
        assert_eq!(ask(&site, get("/page")).await.status, 200);
        assert_eq!(started.elapsed().as_secs(), waited.as_secs());
    }
}

/// Outside of the guard, a saturated origin takes the stored pages down as well.
#[tokio::test]
async fn load_shedding_inside_of_the_guard_spares_hits() {
    for (is_inside, status) in [(true, 200), (false, 503)] {
        let (guard, origin) = (guard(), Origin::gated());
        let shed = ServiceBuilder::new()
            .layer(HandleErrorLayer::new(unavailable))
            .layer(LoadShedLayer::new())
            .layer(GlobalConcurrencyLimitLayer::new(1));
        let router = site(&origin, |_, n| format!("page {n}"));
        let site: Router = match is_inside {
            true => router.layer(shed).layer(guard.clone()),
            false => router.layer(guard.clone()).layer(shed),
        };
        ask(&site, get("/page")).await;
        at_rest(&guard).await;
        let slow = tokio::spawn(ask(&site, get("/slow")));
        origin.arrived(1).await;
        assert_eq!(ask(&site, get("/page")).await.status, status);
        assert_eq!(ask(&site, get("/other")).await.status, 503);
        origin.open();
        assert_eq!(slow.await.expect("no panic").status, 200);
    }
}

#[tokio::test]
async fn body_limit_in_either_order_keeps_the_cache_on() {
    for is_outside in [true, false] {
        let (guard, origin) = (guard(), Origin::new());
        let router = site(&origin, |_, n| format!("page {n}"));
        let limit = RequestBodyLimitLayer::new(10);
        let site = match is_outside {
            true => router.layer(guard.clone()).layer(limit),
            false => router.layer(limit).layer(guard.clone()),
        };
        ask(&site, get("/news")).await;
        at_rest(&guard).await;
        assert!(ask(&site, get("/news")).await.is_hit());
        let long = request(Method::POST, "/news", &[("content-length", "11")], Body::from("hello world"));
        assert_eq!((ask(&site, long).await.status, origin.calls()), (413, 1));
    }
}

/// The fetch of a client that was timed out goes on, and is stored.
#[tokio::test(start_paused = true)]
async fn timeout_outside_of_the_guard_bounds_the_clients_wait() {
    let (guard, origin) = (guard(), Origin::gated());
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(1));
    let site = site(&origin, |_, n| format!("page {n}")).layer(guard.clone()).layer(timeout);
    let started = Instant::now();
    let herd = join_all((0..20).map(|_| ask(&site, get("/slow")))).await;
    assert!(herd.iter().all(|answer| answer.status == 504));
    assert_eq!((started.elapsed().as_secs(), origin.calls(), origin.running()), (1, 1, 1));
    origin.open();
    at_rest(&guard).await;
    let hit = ask(&site, get("/slow")).await;
    assert!(hit.is_hit() && hit.text() == "page 1", "{hit:?}");
}

/// The status tells the guard that the origin failed. One waiter tries again, and its failure is shared.
#[tokio::test(start_paused = true)]
async fn timeout_inside_of_the_guard_ends_the_handler() {
    for status in [StatusCode::SERVICE_UNAVAILABLE, StatusCode::GATEWAY_TIMEOUT] {
        let (guard, origin) = (guard(), Origin::gated());
        let timeout = TimeoutLayer::with_status_code(status, Duration::from_secs(1));
        let site = site(&origin, |_, n| format!("page {n}")).layer(timeout).layer(guard.clone());
        let herd = join_all((0..20).map(|_| ask(&site, get("/slow")))).await;
        assert!(herd.iter().all(|answer| answer.status == status.as_u16()));
        assert_eq!((origin.calls(), origin.running()), (2, 0));
    }
}
