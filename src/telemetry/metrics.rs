//! Counters, gauges and histograms through the `metrics` facade.

mod family;
mod table;

use self::{
    family::Family,
    table::{NamedMetrics, breaker_open, near_cache_bytes},
};
use super::labels::{FetchFailure, FrontEnd, StoreOperation};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{cache_status::CacheStatus, clock::Timestamp, sync::mutex::Mutex};
use metrics::{Gauge, Histogram};
use std::{sync::Arc, time::Duration};

/// The metrics of the clones with one namespace and one name. PERF: the handles are kept.
#[derive(Clone)]
pub(super) struct Metrics(Arc<NamedMetrics>);

impl Metrics {
    pub(super) fn new(namespace: Arc<str>, name: Arc<str>) -> Self {
        Self(Arc::new(NamedMetrics::new(namespace, name)))
    }

    pub(super) fn answered(&self, front_end: FrontEnd, status: CacheStatus, is_saved: bool) {
        let NamedMetrics { names, requests, saved_calls, .. } = &*self.0;
        let index = front_end as usize * CacheStatus::NAMES.len() + status as usize;
        requests.with(names, index, |counter| counter.increment(1));
        if is_saved {
            saved_calls.with(names, 0, |counter| counter.increment(1));
        }
    }

    /// Measures a call of the origin, until the returned value is dropped.
    pub(super) fn fetching(&self) -> Timed {
        let NamedMetrics { names, in_flight, fetch_seconds, .. } = &*self.0;
        let was_resolved = fetch_seconds.is_resolved();
        let timed = Timed::new(in_flight.handle(names), fetch_seconds.handle(names));
        if !was_resolved && fetch_seconds.is_resolved() {
            self.register_counters();
        }
        timed
    }

    /// Registers the counters of single events before the first one. A rate compares two values of a counter, so that it
    /// misses the first event of a counter that begins with it.
    #[cold]
    fn register_counters(&self) {
        let NamedMetrics { names, saved_calls, leases_lost, failures, store_errors, .. } = &*self.0;
        saved_calls.resolve_all(names);
        leases_lost.resolve_all(names);
        failures.resolve_all(names);
        store_errors.resolve_all(names);
    }

    /// Measures the wait for the fetch of another request, until the returned value is dropped.
    pub(super) fn waiting(&self) -> Timed {
        let NamedMetrics { names, waiters, wait_seconds, .. } = &*self.0;
        Timed::new(waiters.handle(names), wait_seconds.handle(names))
    }

    pub(super) fn store_answered(&self, operation: StoreOperation, took: impl Fn() -> Duration) {
        let seconds = took().as_secs_f64();
        self.0.store_seconds.with(&self.0.names, operation as usize, |histogram| histogram.record(seconds));
    }

    pub(super) fn store_failed(&self, operation: StoreOperation) {
        self.0.store_errors.with(&self.0.names, operation as usize, |counter| counter.increment(1));
    }

    pub(super) fn lease_lost(&self) {
        self.0.leases_lost.with(&self.0.names, 0, |counter| counter.increment(1));
    }

    pub(super) fn fetch_failed(&self, kind: FetchFailure) {
        self.0.failures.with(&self.0.names, kind as usize, |counter| counter.increment(1));
    }

    #[cfg(feature = "http")]
    pub(super) fn uncached(&self, reason: Uncached) {
        self.0.uncached.with(&self.0.names, reason as usize, |counter| counter.increment(1));
    }
}

/// Work in progress. On drop its gauge falls and its time is recorded, also if its future is dropped.
pub(crate) struct Timed {
    _gauge: Raised,
    seconds: Histogram,
    began: Timestamp,
}

impl Timed {
    fn new(gauge: Gauge, seconds: Histogram) -> Self {
        Self { _gauge: Raised::new(gauge), seconds, began: Timestamp::now() }
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.seconds.record(Timestamp::now().since(self.began).as_secs_f64());
    }
}

/// A gauge that is raised by one until this is dropped. It falls through the handle that raised it, so that a recorder
/// that is installed meanwhile sees neither.
struct Raised(Gauge);

impl Raised {
    fn new(gauge: Gauge) -> Self {
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// The gauge of open circuit breakers.
pub(crate) struct OpenBreakers(Family<Gauge, 1>);

/// An open circuit breaker, until it is dropped.
pub(crate) struct OpenBreaker(#[expect(dead_code, reason = "held for its drop")] Raised);

impl OpenBreakers {
    pub(crate) fn open(&self) -> OpenBreaker {
        OpenBreaker(Raised::new(self.0.handle(&[])))
    }
}

impl Default for OpenBreakers {
    fn default() -> Self {
        Self(breaker_open())
    }
}

/// The part of one near cache in the gauge of all near caches.
pub(crate) struct NearCacheBytes {
    gauge: Family<Gauge, 1>,
    /// What was added, and the handle through which it was.
    added: Mutex<(Gauge, u64)>,
}

impl NearCacheBytes {
    /// Sets the part to what the function returns. The function is called under the lock, so that of two threads the
    /// later one has the later value.
    pub(crate) fn set(&self, bytes: impl Fn() -> u64) {
        let new = self.gauge.handle(&[]);
        let (after, (old, before)) = {
            let mut added = self.added.lock();
            let after = bytes();
            (after, std::mem::replace(&mut *added, (new.clone(), after)))
        };
        new.increment(after as f64);
        old.decrement(before as f64);
    }
}

impl Default for NearCacheBytes {
    fn default() -> Self {
        Self { gauge: near_cache_bytes(), added: Mutex::new((Gauge::noop(), 0)) }
    }
}

impl Drop for NearCacheBytes {
    fn drop(&mut self) {
        let (gauge, bytes) = &*self.added.get_mut();
        gauge.decrement(*bytes as f64);
    }
}
