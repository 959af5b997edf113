//! Counters and, with the feature `tracing`, events. No other file names them.
//!
//! Keys appear as hashes, because they come from URLs and may contain what must not be logged.

#[cfg(feature = "http")]
pub(crate) mod routes;

#[cfg(feature = "http")]
use crate::uncached::{Uncached, UncachedCounters, UncachedCounts};
pub(crate) use crate::{
    cache_status::CacheStatus,
    error::Error,
    key::{CacheKey, CacheKeyRef},
    store::{entry::Kind, error::StoreError, lease::FillOutcome},
};
use crate::{
    clock::Timestamp,
    hot_keys::{HotKey, HotKeys},
    sync::stripes::{self, STRIPES},
};
use std::{
    future::Future,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Emits an event. Its fields are evaluated only if it is enabled.
macro_rules! event {
    ($level:ident, $key:expr, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "stampede_guard", tracing::Level::$level, key = ?LazyKeyHash($key.into()), $($fields)*);
        #[cfg(not(feature = "tracing"))]
        let _ = $key;
    };
}

/// The counters of an engine.
#[derive(Default)]
pub(crate) struct Counters {
    /// Threads that count the same seldom write to the same cache line.
    stripes: [Stripe; STRIPES], // of 256 bytes each
    /// Not in stripes: the origin has answered each of these requests, which takes longer.
    #[cfg(feature = "http")]
    uncached: UncachedCounters,
    #[cfg(feature = "http")]
    pub(crate) routes: routes::Routes,
}

/// PERF: aligned to two lines, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
struct Stripe {
    hits: AtomicU64,
    near_hits: AtomicU64,
    outage_cache_hits: AtomicU64,
    stale_hits: AtomicU64,
    misses: AtomicU64,
    coalesced: AtomicU64,
    bypassed: AtomicU64,
    failed_open: AtomicU64,
    rejected: AtomicU64,
    fenced: AtomicU64,
    lease_losses: AtomicU64,
    wait_timeouts: AtomicU64,
    store_errors: AtomicU64,
    breaker_opened: AtomicU64,
    overloaded: AtomicU64,
    deadlocks_avoided: AtomicU64,
    too_large: AtomicU64,
    fetches_dropped: AtomicU64,
}

/// The statistics of a guard and all its clones since it was created. The number of answers is the sum of the first
/// nine fields without `near_hits` and `outage_cache_hits`, which `hits` include.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Answers with [`CacheStatus::Hit`].
    pub hits: u64,
    /// Hits that were served from a copy of the [near cache](crate::NearCacheConfig).
    pub near_hits: u64,
    /// Answers from the [outage cache](crate::OutageCacheConfig), because the store was unavailable or refused writes.
    pub outage_cache_hits: u64,
    /// Answers with [`CacheStatus::Stale`].
    pub stale_hits: u64,
    /// Answers with [`CacheStatus::Miss`].
    pub misses: u64,
    /// Answers with [`CacheStatus::Coalesced`]: calls of the origin that were saved.
    pub coalesced: u64,
    /// Answers with [`CacheStatus::Bypass`].
    pub bypassed: u64,
    /// Answers with [`CacheStatus::FailOpen`]: from a fetch for this process only, for example without the store.
    pub failed_open: u64,
    /// Answers with [`CacheStatus::Rejected`].
    pub rejected: u64,
    /// Fills that came too late and were refused by the store.
    pub fenced: u64,
    /// Leases that were lost while their fetch was running.
    pub lease_losses: u64,
    /// Requests that reached their wait timeout, whatever answer they got then.
    pub wait_timeouts: u64,
    /// Store operations that failed or timed out.
    pub store_errors: u64,
    /// Times that a circuit breaker opened because the store was unavailable.
    pub breaker_opened: u64,
    /// Requests rejected with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    pub overloaded: u64,
    /// Fetches that would have waited for themselves through other fetches. Each request got a fetch of its own.
    pub deadlocks_avoided: u64,
    /// Entries that a [`MemoryStore`](crate::MemoryStore) or the [near cache](crate::NearCacheConfig) could not keep,
    /// because they are too large for it.
    pub too_large: u64,
    /// Fetches that were dropped before their response, because no request waited for them any more and
    /// [`max_detached`](crate::StampedeGuard::max_detached) other such fetches were running.
    pub fetches_dropped: u64,
    /// Reads of corrupt entries in the store: the bytes have changed since they were written, or were never an entry.
    /// Each was a miss. Guards that share a store object share the number.
    pub corrupt_entries: u64,
    /// The busiest keys of the clone that was asked, the busiest one first. Empty without
    /// [`track_hot_keys`](crate::StampedeGuard::track_hot_keys).
    pub hot_keys: Vec<HotKey>,
    #[cfg(feature = "http")]
    uncached: UncachedCounts,
}

#[cfg(feature = "http")]
impl Stats {
    /// Returns the number of responses of the HTTP layer that were neither answered from the cache nor stored, for this
    /// reason. It is the number of responses with this `detail` in `Cache-Status`, with two exceptions, because the
    /// field is sent before the end of the body: a response of unknown length counts only if it is not stored after
    /// all, then for the reason that is found at its end, and a response that breaks off counts although its field says
    /// `stored`.
    ///
    /// The sum is not [`bypassed`](Self::bypassed), which counts requests that have a key. Requests that are forwarded
    /// without one, such as a POST, count only here.
    ///
    /// ```
    /// use stampede_guard::{StampedeGuard, http::Uncached};
    ///
    /// let stats = StampedeGuard::in_memory().stats();
    /// for reason in Uncached::ALL {
    ///     println!("stampede_guard_uncached_total{{reason=\"{reason}\"}} {}", stats.uncached(*reason));
    /// }
    /// ```
    #[must_use]
    pub fn uncached(&self, reason: Uncached) -> u64 {
        self.uncached.of(reason)
    }
}

impl Counters {
    pub(crate) fn snapshot(&self, corrupt_entries: u64) -> Stats {
        let sum =
            |counter: fn(&Stripe) -> &AtomicU64| self.stripes.iter().map(|stripe| counter(stripe).load(Relaxed)).sum();
        Stats {
            hits: sum(|stripe| &stripe.hits),
            near_hits: sum(|stripe| &stripe.near_hits),
            outage_cache_hits: sum(|stripe| &stripe.outage_cache_hits),
            stale_hits: sum(|stripe| &stripe.stale_hits),
            misses: sum(|stripe| &stripe.misses),
            coalesced: sum(|stripe| &stripe.coalesced),
            bypassed: sum(|stripe| &stripe.bypassed),
            failed_open: sum(|stripe| &stripe.failed_open),
            rejected: sum(|stripe| &stripe.rejected),
            fenced: sum(|stripe| &stripe.fenced),
            lease_losses: sum(|stripe| &stripe.lease_losses),
            wait_timeouts: sum(|stripe| &stripe.wait_timeouts),
            store_errors: sum(|stripe| &stripe.store_errors),
            breaker_opened: sum(|stripe| &stripe.breaker_opened),
            overloaded: sum(|stripe| &stripe.overloaded),
            deadlocks_avoided: sum(|stripe| &stripe.deadlocks_avoided),
            too_large: sum(|stripe| &stripe.too_large),
            fetches_dropped: sum(|stripe| &stripe.fetches_dropped),
            corrupt_entries,
            hot_keys: Vec::new(),
            #[cfg(feature = "http")]
            uncached: self.uncached.snapshot(),
        }
    }

    /// Adds one to the counter, in the stripe of this thread.
    fn count(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64) {
        counter(&self.stripes[stripes::of_this_thread()]).fetch_add(1, Relaxed);
    }
}

/// Counts an answer. PERF: `took` is called only if its result is used, because reading a clock is a large part of the
/// cost of a hit.
pub(crate) fn answered<'a>(
    stats: &Counters,
    hot_keys: Option<&HotKeys>,
    key: impl Into<CacheKeyRef<'a>>,
    status: CacheStatus,
    took: impl Fn() -> Duration,
) {
    let key: CacheKeyRef<'a> = key.into();
    stats.count(|stripe| match status {
        CacheStatus::Hit => &stripe.hits,
        CacheStatus::Stale => &stripe.stale_hits,
        CacheStatus::Miss => &stripe.misses,
        CacheStatus::Coalesced => &stripe.coalesced,
        CacheStatus::Bypass => &stripe.bypassed,
        CacheStatus::FailOpen => &stripe.failed_open,
        CacheStatus::Rejected => &stripe.rejected,
    });
    if let Some(hot_keys) = hot_keys {
        hot_keys.record_answer(key, status, took());
    }
    event!(DEBUG, key, ?status, took = ?took(), "answered");
}

/// Records a call of the origin by its beginning and by the time of its response head, whatever that says.
pub(crate) fn fetched(hot_keys: Option<&HotKeys>, key: &CacheKey, (began, ended): (Timestamp, Timestamp)) {
    if let Some(hot_keys) = hot_keys {
        hot_keys.record_fetch(key.into(), ended.since(began));
    }
}

/// Counts a response of the HTTP layer that was neither answered from the cache nor stored. Reports its route if no
/// response of the route is ever cacheable.
#[cfg(feature = "http")]
pub(crate) fn uncached(stats: &Counters, route: Option<&routes::Route>, reason: Uncached) {
    stats.uncached.count(reason);
    let report = route.filter(|_| reason.is_about_route()).and_then(|route| route.was_uncached(reason));
    if let Some((route, reason)) = report {
        let way_out = reason.way_out();
        #[cfg(feature = "tracing")]
        tracing::warn!(
            target: "stampede_guard",
            route,
            %reason,
            way_out,
            "no response of this route was stored or shared so far; the layer only delays it"
        );
        let _ = (route, way_out);
    }
}

/// Records a response of the HTTP layer that was answered from the cache, shared or stored.
#[cfg(feature = "http")]
pub(crate) fn cacheable(route: Option<&routes::Route>) {
    if let Some(route) = route {
        route.was_cacheable();
    }
}

/// Reports a request that bypasses the cache because of this field.
#[cfg(feature = "http")]
pub(crate) fn contradiction(field: &str) {
    #[cfg(feature = "tracing")]
    tracing::debug!(target: "stampede_guard", field, "the request bypasses the cache: a forwarded field contradicts it");
    let _ = field;
}

pub(crate) fn near_hit(stats: &Counters) {
    stats.count(|stripe| &stripe.near_hits);
}

pub(crate) fn outage_cache_hit(stats: &Counters) {
    stats.count(|stripe| &stripe.outage_cache_hits);
}

pub(crate) fn filled(stats: &Counters, key: &CacheKey, kind: Kind, outcome: FillOutcome) {
    match outcome {
        FillOutcome::Stored => {
            event!(DEBUG, key, ?kind, "stored");
        }
        FillOutcome::Fenced => {
            stats.count(|stripe| &stripe.fenced);
            event!(INFO, key, ?kind, "a late fill was refused");
        }
    }
    let _ = kind;
}

pub(crate) fn lease_lost(stats: &Counters, key: &CacheKey) {
    stats.count(|stripe| &stripe.lease_losses);
    event!(INFO, key, "the lease was lost while its fetch was running");
}

pub(crate) fn wait_timed_out(stats: &Counters, key: &CacheKey) {
    stats.count(|stripe| &stripe.wait_timeouts);
    event!(WARN, key, "the wait timeout passed before the leader had finished");
}

pub(crate) fn store_failed(stats: &Counters, key: &CacheKey, operation: &'static str, error: &StoreError) {
    stats.count(|stripe| &stripe.store_errors);
    if operation == INVALIDATE {
        // Its attempts would fill the log; it has one line at its beginning and one at its end.
        event!(DEBUG, key, operation, %error, "the store operation failed");
    } else {
        event!(WARN, key, operation, %error, "the store operation failed");
    }
    let _ = error;
}

pub(crate) fn invalidation_failed(key: &CacheKey, error: &StoreError) {
    event!(WARN, key, %error, "the invalidation was not acknowledged; it is retried in the background");
    let _ = error;
}

/// Reports the end of an invalidation that failed at first.
pub(crate) fn invalidation_ended(key: &CacheKey, acknowledged: bool) {
    let outcome = match acknowledged {
        true => "acknowledged after a retry",
        false => "given up: the old value may be served until it expires",
    };
    event!(WARN, key, outcome, "the invalidation has ended");
    let _ = outcome;
}

/// Reports an entry whose bytes cannot be read.
#[cfg(feature = "redis")]
pub(crate) fn corrupt_entry(key: &CacheKey, error: crate::store::envelope::EnvelopeError) {
    event!(WARN, key, %error, "the stored entry is corrupt and counts as absent");
    let _ = error;
}

/// Reports a server setting that an operator has to correct. Until then the origin answers.
#[cfg(feature = "redis")]
pub(crate) fn misconfigured(connection: &'static str, error: &dyn std::fmt::Display, hint: &'static str) {
    #[cfg(feature = "tracing")]
    tracing::error!(target: "stampede_guard", connection, %error, hint, "the redis server refuses to serve this client");
    let _ = (connection, error, hint);
}

pub(crate) fn breaker_opened(stats: &Counters, key: &CacheKey) {
    stats.count(|stripe| &stripe.breaker_opened);
    event!(WARN, key, "circuit breaker opened: the store is unavailable and is probed in the background");
}

pub(crate) fn replaying_invalidations(key: &CacheKey, invalidations: usize) {
    event!(INFO, key, invalidations, "the store may have lost recent invalidations; they are sent again");
    let _ = invalidations;
}

pub(crate) fn overloaded(stats: &Counters, key: &CacheKey, error: &Error) {
    stats.count(|stripe| &stripe.overloaded);
    event!(WARN, key, %error, "the request was rejected");
    let _ = error;
}

/// Reports a fetch that was dropped because no request waits for it and all `max_detached` permits are in use.
pub(crate) fn fetch_dropped(stats: &Counters, key: &CacheKey) {
    stats.count(|stripe| &stripe.fetches_dropped);
    event!(WARN, key, "the fetch was dropped: its clients have left, and all `max_detached` permits are in use");
}

pub(crate) fn deadlock_avoided(stats: &Counters, key: &CacheKey) {
    stats.count(|stripe| &stripe.deadlocks_avoided);
    event!(WARN, key, "a fetch would have waited for itself through other fetches");
}

pub(crate) fn too_large(stats: &Counters, key: &CacheKey) {
    stats.count(|stripe| &stripe.too_large);
    event!(DEBUG, key, "the entry is too large to be kept in this process");
}

pub(crate) fn codec_failed(key: &CacheKey, kind: &'static str, what: &str) {
    event!(ERROR, key, r#type = kind, what, "the value cannot be cached");
    let _ = (kind, what);
}

/// Attaches the current span to the flight, because a spawned task inherits none.
pub(crate) fn in_current_span<F: Future>(flight: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "tracing")]
    let flight = tracing::Instrument::in_current_span(flight);
    flight
}

/// The operation that drops an entry.
pub(crate) const INVALIDATE: &str = "invalidate";

/// The hash of a key. PERF: computed only if the event is enabled.
#[cfg(feature = "tracing")]
struct LazyKeyHash<'a>(CacheKeyRef<'a>);

#[cfg(feature = "tracing")]
impl std::fmt::Debug for LazyKeyHash<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0.hash(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Seen to fail when a snapshot read one stripe only.
    #[test]
    fn counts_of_all_threads_add_up_exactly() {
        let (stats, key) = (Counters::default(), CacheKey::new("n", 0, "k"));
        let (threads, answers) = (2 * STRIPES as u64, 1_000);
        thread::scope(|scope| {
            for thread in 0..threads {
                let (stats, key) = (&stats, &key);
                let status = if thread % 2 == 0 { CacheStatus::Hit } else { CacheStatus::Miss };
                scope.spawn(move || (0..answers).for_each(|_| answered(stats, None, key, status, || Duration::ZERO)));
            }
        });
        let half = threads / 2 * answers;
        assert_eq!(stats.snapshot(7), Stats { hits: half, misses: half, corrupt_entries: 7, ..Stats::default() });
    }

    #[test]
    fn counters_of_an_engine_take_at_most_16_kib() {
        assert!(size_of::<Counters>() <= 16 << 10, "{}", size_of::<Counters>());
    }
}
