//! The origin: a computation that takes long, counts its calls, and can be told to fail.

use axum::http::StatusCode;
use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// What the guard protects.
pub(crate) struct Origin {
    delay: Duration,
    calls: AtomicU64,
    running: AtomicU64,
    failing: AtomicBool,
}

impl Origin {
    /// Creates an origin that takes this long for each call.
    pub(crate) fn new(delay: Duration) -> Self {
        Self { delay, calls: AtomicU64::new(0), running: AtomicU64::new(0), failing: AtomicBool::new(false) }
    }

    /// Computes a report.
    ///
    /// # Errors
    ///
    /// A 503 while the origin is told to fail.
    pub(crate) async fn compute(&self) -> Result<(), StatusCode> {
        self.calls.fetch_add(1, Relaxed);
        self.running.fetch_add(1, Relaxed);
        let _call = Call(&self.running);
        tokio::time::sleep(self.delay).await;
        if self.is_failing() { Err(StatusCode::SERVICE_UNAVAILABLE) } else { Ok(()) }
    }

    /// Returns how long a call takes.
    pub(crate) fn delay(&self) -> Duration {
        self.delay
    }

    /// Returns the number of calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Relaxed)
    }

    /// Returns the number of calls in progress.
    pub(crate) fn running(&self) -> u64 {
        self.running.load(Relaxed)
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Relaxed)
    }

    /// Lets each call that ends from now on fail, or succeed again.
    pub(crate) fn set_failing(&self, failing: bool) {
        self.failing.store(failing, Relaxed);
    }
}

/// A call in progress. It also ends if its client leaves.
struct Call<'a>(&'a AtomicU64);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
