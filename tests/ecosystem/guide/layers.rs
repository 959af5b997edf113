//! The order of the layers around a guard, as src/guide/layers.md shows it.

use axum::{
    Router,
    extract::Request,
    http::StatusCode,
    middleware::{Next, from_fn},
    response::Response,
};
use stampede_guard::StampedeGuard;
use std::time::Duration;
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_http::{
    catch_panic::CatchPanicLayer,
    compression::CompressionLayer,
    cors::CorsLayer,
    limit::RequestBodyLimitLayer,
    request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer},
    timeout::TimeoutLayer,
    trace::TraceLayer,
};

pub(crate) fn with_layers(router: Router, guard: StampedeGuard) -> Router {
    router.layer(
        ServiceBuilder::new()
            .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
            .layer(TraceLayer::new_for_http())
            .layer(PropagateRequestIdLayer::x_request_id())
            .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(30)))
            .layer(CorsLayer::permissive())
            .layer(from_fn(authenticate))
            .layer(guard)
            .layer(CatchPanicLayer::new())
            .layer(TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, Duration::from_secs(10)))
            .layer(GlobalConcurrencyLimitLayer::new(100))
            .layer(CompressionLayer::new())
            .layer(from_fn(session))
            .layer(RequestBodyLimitLayer::new(1 << 20)),
    )
}

/// Checks who sends the request.
async fn authenticate(request: Request, next: Next) -> Response {
    next.run(request).await
}

/// Sets a cookie that begins a session.
async fn session(request: Request, next: Next) -> Response {
    next.run(request).await
}
