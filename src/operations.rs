//! What an operator does with a guard: drain it, read its statistics, look at its health.

use crate::{guard::StampedeGuard, health::Health, telemetry::Stats};
use std::{collections::BTreeMap, time::Duration};

impl StampedeGuard {
    /// Waits until all fetches, refreshes, fills and invalidations in progress have ended, at most for twice the
    /// [`store_timeout`](Self::store_timeout). Returns the number of tasks that still run: a fetch may take longer, and
    /// a failed invalidation is sent until the store acknowledges it.
    ///
    /// Call it after the server has stopped, so that the last answers are stored.
    /// [`drain_within`](Self::drain_within) waits for long fetches too.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), std::io::Error> {
    /// # use std::future::ready;
    /// # let stopped = ready(());
    /// use axum::{Router, routing::get};
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let app = Router::new().route("/", get(async || "a page")).layer(guard.clone());
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    /// axum::serve(listener, app).with_graceful_shutdown(stopped).await?;
    /// guard.drain().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn drain(&self) -> usize {
        self.drain_within(self.config.store_timeout.saturating_mul(2)).await
    }

    /// As [`drain`](Self::drain), at most for this time: returns as soon as nothing is in progress, or after `limit` with
    /// the number of tasks that still run.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// // The server has finished its requests. The supervisor kills the process after 30 s.
    /// let left = guard.drain_within(std::time::Duration::from_secs(20)).await;
    /// if left > 0 {
    ///     eprintln!("{left} fetches or invalidations end with the process");
    /// }
    /// # }
    /// ```
    ///
    /// It ends and delays nothing: fetches go on during the wait and after it, and requests are answered as before. A fetch
    /// that ends with the process leaves its lease, and other processes wait until the lease ends
    /// ([`lease_ttl`](Self::lease_ttl)).
    ///
    /// Cancel safe: dropping the future only stops the wait. The guard can be used again afterwards.
    pub async fn drain_within(&self, limit: Duration) -> usize {
        self.engine.drain(limit).await
    }

    /// Returns the number of fetches in progress in this process, each counted once however many requests wait for it,
    /// from the request for its lease to its fill. A lookup does not count. Neither does a fetch that no further
    /// request may join, for example after an invalidation.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::{StampedeGuard, testing::Origin};
    ///
    /// let (guard, slow) = (StampedeGuard::in_memory(), Origin::gated());
    /// let caller = tokio::spawn({
    ///     let (guard, fetch) = (guard.clone(), slow.fetch(7));
    ///     async move { guard.fetch("report", fetch).await }
    /// });
    /// slow.arrived(1).await;
    /// assert_eq!(guard.in_flight(), 1);
    /// slow.open();
    /// # caller.await.unwrap()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    /// Returns the statistics of this guard and its clones, whatever their [names](Self::named), and the
    /// [hot keys](Self::track_hot_keys) of this clone.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let store = &self.engine.store;
        let mut stats = self.engine.counters.total(store.corrupt_entries(), store.other_layouts());
        stats.pending_invalidations = self.health().pending_invalidations as u64;
        stats.hot_keys = self.config.meter.hottest_keys();
        stats
    }

    /// Returns the statistics of this guard and its clones by [name](Self::named). `default` has the clones without a
    /// name.
    #[must_use]
    pub fn stats_by_name(&self) -> BTreeMap<String, Stats> {
        let store = &self.engine.store;
        self.engine.counters.by_name(store.corrupt_entries(), store.other_layouts())
    }

    /// Returns what the guard knows of its store: whether it answers, whether a circuit breaker is open, the last error,
    /// and whether wake-ups arrive. Clones share it. It sends
    /// nothing and waits for nothing.
    ///
    /// Show it in a status route, and do not decide the readiness of a process by it. While the store is down the origin
    /// answers ([`StoreFailure::FailOpen`](crate::StoreFailure::FailOpen)), in each process on its own. If processes
    /// stopped being ready then, the load balancer would take the whole fleet out of service at once because of a cache.
    ///
    /// ```
    /// # #[cfg(feature = "axum")] {
    /// use axum::{Json, Router, extract::State, http::StatusCode, routing::get};
    /// use stampede_guard::{Health, StampedeGuard};
    ///
    /// // 200 while Redis is down, too: the process can answer.
    /// async fn status(State(guard): State<StampedeGuard>) -> (StatusCode, Json<Health>) {
    ///     (StatusCode::OK, Json(guard.health()))
    /// }
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let app: Router = Router::new().route("/status", get(status)).with_state(guard);
    /// # }
    /// ```
    #[must_use]
    pub fn health(&self) -> Health {
        self.engine.health()
    }
}
