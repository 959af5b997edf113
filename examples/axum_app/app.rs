//! The app: an expensive report, protected by the guard.

use crate::origin::Origin;
use axum::{
    Router,
    extract::{Path, State},
    http::StatusCode,
    routing::get,
};
use stampede_guard::StampedeGuard;
use std::sync::Arc;

/// Returns the routes. The guard is one `layer` on the routes that it protects.
pub(crate) fn app(guard: StampedeGuard, origin: Arc<Origin>) -> Router {
    let guarded = Router::new().route("/report/{id}", get(report)).layer(guard);

    Router::new()
        .route("/unguarded/report/{id}", get(report))
        .route("/origin-calls", get(origin_calls))
        .route("/healthz", get(async || "up"))
        .merge(guarded)
        .with_state(origin)
}

async fn report(State(origin): State<Arc<Origin>>, Path(id): Path<String>) -> Result<String, StatusCode> {
    origin.compute().await?;
    Ok(format!("report {id}: all is well\n"))
}

async fn origin_calls(State(origin): State<Arc<Origin>>) -> String {
    origin.calls().to_string()
}
