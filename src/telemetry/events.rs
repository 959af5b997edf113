//! What happens, as counts and events.

use super::counters::Counters;
#[cfg(feature = "http")]
use super::routes::Route;
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{
    cache_status::CacheStatus,
    error::Error,
    health::Failures,
    key::{CacheKey, CacheKeyRef},
    store::{entry::Kind, error::StoreError, lease::FillOutcome},
};
use std::time::Duration;

/// Emits an event. Its fields are evaluated only if it is enabled.
macro_rules! event {
    ($level:ident, $key:expr, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "stampede_guard", tracing::Level::$level, key = ?LazyKeyHash($key.into()), $($fields)*);
        #[cfg(not(feature = "tracing"))]
        let _ = $key;
    };
}

/// Counts an answer. PERF: `took` is called only if the event is enabled, because reading a clock is a large part of
/// the cost of a hit.
pub(crate) fn answered<'a>(
    stats: &Counters,
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
    event!(DEBUG, key, ?status, took = ?took(), "answered");
    let _ = took;
}

/// Counts a response of the HTTP layer that was neither answered from the cache nor stored. Reports its route if no
/// response of the route is ever cacheable.
#[cfg(feature = "http")]
pub(crate) fn uncached(stats: &Counters, route: Option<&Route>, reason: Uncached) {
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
pub(crate) fn cacheable(route: Option<&Route>) {
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

/// Reports a failed operation, at level `DEBUG`, because while the store is down each request has one. The connection and
/// the circuit breaker report the cause once. Only a refusal has no such line, if the store is full for example.
pub(crate) fn store_failed(
    stats: &Counters,
    failures: &Failures,
    key: &CacheKey,
    operation: &'static str,
    error: &StoreError,
) {
    stats.count(|stripe| &stripe.store_errors);
    event!(DEBUG, key, operation, %error, "the store operation failed");
    // An invalidation has a line at its beginning and one at its end.
    let is_refusal = error.is_refused() && !error.is_misconfigured() && operation != INVALIDATE;
    if failures.record(operation, error, is_refusal) {
        event!(WARN, key, operation, %error, "the store refuses operations; reported at most once a minute");
    }
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

pub(crate) fn breaker_opened(stats: &Counters, key: &CacheKey, error: &StoreError) {
    stats.count(|stripe| &stripe.breaker_opened);
    event!(WARN, key, %error, "circuit breaker opened: the store is unavailable and is probed in the background");
    let _ = error;
}

pub(crate) fn breaker_closed(key: &CacheKey, open_for: Duration) {
    event!(WARN, key, ?open_for, "circuit breaker closed: the store answers again");
    let _ = open_for;
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
