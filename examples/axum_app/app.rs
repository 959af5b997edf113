//! The app: an expensive report, protected by the guard.

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

/// Returns the routes. The guard is one `layer` on the routes that it protects.
pub(crate) fn app(guard: StampedeGuard, delay: Duration) -> Router {
    let guarded = Router::new().route("/report/{id}", get(report)).layer(guard);

    Router::new()
        .route("/unguarded/report/{id}", get(report))
        .route("/origin-calls", get(origin_calls))
        .route("/healthz", get(async || "up"))
        .merge(guarded)
        .with_state(Arc::new(Origin { delay, calls: AtomicU64::new(0) }))
}

/// The origin: how long a report takes, and the number of reports it computed.
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
