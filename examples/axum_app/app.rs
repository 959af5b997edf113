//! The app: a report that is expensive, and the guard in front of it.

use axum::{
    Router,
    extract::{Path, State},
    routing::get,
};
use stampede_guard::StampedeGuard;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// The routes; the guard is one `layer` on those that it is to protect.
pub(crate) fn app(guard: StampedeGuard, delay: Duration) -> Router {
    let guarded = Router::new().route("/report/{id}", get(report)).layer(guard);

    Router::new()
        .route("/unguarded/report/{id}", get(report))
        .route("/origin-calls", get(origin_calls))
        .route("/healthz", get(async || "up"))
        .merge(guarded)
        .with_state(Arc::new(Origin { delay, calls: AtomicU64::new(0) }))
}

/// What makes the report expensive, and how often it was asked.
struct Origin {
    delay: Duration,
    calls: AtomicU64,
}

async fn report(State(origin): State<Arc<Origin>>, Path(id): Path<String>) -> String {
    origin.calls.fetch_add(1, Relaxed);
    tokio::time::sleep(origin.delay).await;
    format!("report {id}: all is well\n")
}

async fn origin_calls(State(origin): State<Arc<Origin>>) -> String {
    origin.calls.load(Relaxed).to_string()
}
