//! The origin that all subjects protect.

use crate::Result;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

/// Counts its calls. Each call takes its configured time, then returns 1 KiB or fails. Clones share one origin.
#[derive(Clone)]
pub(crate) struct Origin(Arc<Inner>);

struct Inner {
    compute: Duration,
    fails: bool,
    calls: AtomicUsize,
    first: OnceLock<Instant>,
}

impl Origin {
    pub(crate) fn new(compute: Duration, fails: bool) -> Self {
        Self(Arc::new(Inner { compute, fails, calls: AtomicUsize::new(0), first: OnceLock::new() }))
    }

    /// Returns the value of the key. Keys for which [`is_warm_up`] holds return at once, do not fail and are not
    /// counted.
    pub(crate) async fn value(&self, key: &str) -> Result<String> {
        if is_warm_up(key) {
            return Ok(value());
        }
        self.0.calls.fetch_add(1, Relaxed);
        self.0.first.get_or_init(Instant::now);
        if !self.0.compute.is_zero() {
            tokio::time::sleep(self.0.compute).await;
        }
        if self.0.fails { Err("the origin failed".into()) } else { Ok(value()) }
    }

    pub(crate) fn calls(&self) -> usize {
        self.0.calls.load(Relaxed)
    }

    /// Returns the start time of the first call that is counted.
    pub(crate) fn first(&self) -> Option<Instant> {
        self.0.first.get().copied()
    }
}

/// Reports whether the key is requested only to open connections and fill keys.
pub(crate) fn is_warm_up(key: &str) -> bool {
    key.contains("warm")
}

pub(crate) fn value() -> String {
    "x".repeat(SIZE)
}

/// The size of a value, in bytes.
pub(crate) const SIZE: usize = 1024;
