//! The health of a guard.

use super::StampedeGuard;
use crate::health::Health;

impl StampedeGuard {
    /// Returns what the guard knows of its store: whether it answers, whether a circuit breaker is open, the last error,
    /// and whether wake-ups arrive. Clones share it. It sends
    /// nothing and waits for nothing.
    ///
    /// Show it next to the readiness of a process, and do not decide readiness by it. While the store is down the origin
    /// answers ([`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen)), in each process on its own. If processes
    /// stopped being ready then, the load balancer would take the whole fleet out of service at once because of a cache.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
    /// use stampede_guard::{Health, StampedeGuard};
    ///
    /// // 200 while Redis is down, too: the process can answer.
    /// async fn ready(State(guard): State<StampedeGuard>) -> (StatusCode, Json<Health>) {
    ///     (StatusCode::OK, Json(guard.health()))
    /// }
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let app: Router = Router::new().route("/ready", get(ready)).with_state(guard);
    /// # }
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.engine.health()
    }
}
