//! What happens, as counts and events.

#[cfg(feature = "http")]
use super::routes::Route;
use super::{
    labels::{FetchFailure, FrontEnd, StoreOperation},
    meter::Meter,
    metrics::Timed,
    spans::{record_fetch, record_status},
};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    error::Error,
    health::Failures,
    key::{CacheKey, CacheKeyRef},
    store::{entry::Kind, error::StoreError, lease::FillOutcome},
};
#[cfg(feature = "_typed")]
use crate::{codec::Codec, error::BoxError};
use futures_util::FutureExt;
#[cfg(feature = "tracing")]
use std::fmt;
use std::{
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
    time::Duration,
};

/// Emits an event. Its fields are evaluated only if it is enabled.
macro_rules! event {
    ($level:ident, $log_keys:expr, $key:expr, $($fields:tt)*) => {
        #[cfg(feature = "tracing")]
        tracing::event!(
            target: "stampede_guard",
            tracing::Level::$level,
            key = ?LoggedKey { key: $key.into(), log_keys: $log_keys },
            $($fields)*
        );
        #[cfg(not(feature = "tracing"))]
        let _ = ($key, $log_keys);
    };
}

/// Emits an event at level `WARN` if it is due, otherwise at level `DEBUG`.
macro_rules! throttled_event {
    (WARN, $is_due:expr, $($event:tt)*) => {
        if $is_due {
            event!(WARN, $($event)*);
        } else {
            event!(DEBUG, $($event)*);
        }
    };
}

/// Counts an answer to a request that has a span.
pub(crate) fn answered_in_span(
    meter: &Meter,
    key: &CacheKey,
    front_end: FrontEnd,
    status: CacheStatus,
    fetched: bool,
    took: impl Fn() -> Duration,
) {
    record_status(status);
    answered(meter, key, front_end, status, fetched, took);
}

/// Counts an answer. `fetched` says whether the request has called the origin itself, or may do so yet: a stale answer
/// may replace its failed fetch, or come before its refresh.
///
/// PERF: `took` is called only if its result is used, because reading a clock is a large part of the cost of a hit.
pub(crate) fn answered<'a>(
    meter: &Meter,
    key: impl Into<CacheKeyRef<'a>>,
    front_end: FrontEnd,
    status: CacheStatus,
    fetched: bool,
    took: impl Fn() -> Duration,
) {
    let key: CacheKeyRef<'a> = key.into();
    meter.counters.count(|stripe| match status {
        CacheStatus::Hit => &stripe.hits,
        CacheStatus::Stale => &stripe.stale_hits,
        CacheStatus::Miss => &stripe.misses,
        CacheStatus::Coalesced => &stripe.coalesced,
        CacheStatus::Bypass => &stripe.bypassed,
        CacheStatus::FailOpen => &stripe.failed_open,
        CacheStatus::Rejected => &stripe.rejected,
    });
    let is_saved = !fetched && matches!(status, CacheStatus::Hit | CacheStatus::Stale | CacheStatus::Coalesced);
    meter.metrics.answered(front_end, status, is_saved);
    if let Some(hot_keys) = &meter.hot_keys {
        hot_keys.record_answer(key, is_saved, took());
    }
    event!(DEBUG, meter.log_keys, key, front_end = front_end.as_str(), status = status.as_str(), took = ?took(), "answered");
}

/// Counts a response of the HTTP layer that was neither answered from the cache nor stored. Reports its route if no
/// response of the route is ever cacheable.
#[cfg(feature = "http")]
pub(crate) fn uncached(meter: &Meter, route: Option<&Route>, reason: Uncached) {
    meter.counters.uncached.count(reason);
    meter.metrics.uncached(reason);
    let report = route.filter(|_| reason.is_about_route()).and_then(|route| route.was_uncached(reason));
    if let Some((route, reason)) = report {
        let hint = reason.way_out();
        #[cfg(feature = "tracing")]
        tracing::warn!(
            target: "stampede_guard",
            route,
            %reason,
            hint,
            "no response of this route was stored or shared so far; the layer only delays it"
        );
        let _ = (route, hint);
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

pub(crate) fn near_hit(meter: &Meter) {
    meter.counters.count(|stripe| &stripe.near_hits);
}

pub(crate) fn outage_cache_hit(meter: &Meter) {
    meter.counters.count(|stripe| &stripe.outage_cache_hits);
}

pub(crate) fn filled(meter: &Meter, key: &CacheKey, kind: Kind, outcome: FillOutcome) {
    match outcome {
        FillOutcome::Stored => {
            event!(DEBUG, meter.log_keys, key, ?kind, "stored");
        }
        FillOutcome::Fenced => {
            meter.counters.count(|stripe| &stripe.fenced);
            event!(INFO, meter.log_keys, key, ?kind, "a late fill was refused");
        }
    }
    let _ = kind;
}

pub(crate) fn lease_lost(meter: &Meter, key: &CacheKey) {
    meter.counters.count(|stripe| &stripe.lease_losses);
    meter.metrics.lease_lost();
    event!(INFO, meter.log_keys, key, "the lease was lost while its fetch was running");
}

pub(crate) fn wait_timed_out(meter: &Meter, key: &CacheKey) {
    meter.counters.count(|stripe| &stripe.wait_timeouts);
    let is_due = meter.counters.reported_wait_timeouts.is_due(Timestamp::now());
    throttled_event!(WARN, is_due, meter.log_keys, key, "the wait timeout passed before the leader had finished");
}

/// Measures a call of the origin, until the returned value is dropped.
pub(crate) fn fetching<'a>(meter: &'a Meter, key: &'a CacheKey) -> Fetching<'a> {
    Fetching { meter, key, _timed: meter.metrics.fetching(), began: Timestamp::now() }
}

/// Measures a call of the origin for one caller. Counts its panic, which goes on to the caller.
pub(crate) async fn fetching_alone<T>(meter: &Meter, key: &CacheKey, call: impl Future<Output = T>) -> T {
    let ended = {
        let _timed = fetching(meter, key);
        AssertUnwindSafe(call).catch_unwind().await
    };
    ended.unwrap_or_else(|panic| {
        fetch_failed(meter, key, FetchFailure::Panicked);
        resume_unwind(panic)
    })
}

/// A call of the origin in progress.
pub(crate) struct Fetching<'a> {
    meter: &'a Meter,
    key: &'a CacheKey,
    _timed: Timed,
    began: Timestamp,
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        let took = Timestamp::now().since(self.began);
        record_fetch(took);
        if let Some(hot_keys) = &self.meter.hot_keys {
            hot_keys.record_fetch(self.key.into(), took);
        }
    }
}

/// Measures the wait for the fetch of another request, until the returned value is dropped.
pub(crate) fn waiting(meter: &Meter) -> Timed {
    meter.metrics.waiting()
}

/// Counts a failed fetch, once however many requests wait for it.
pub(crate) fn fetch_failed(meter: &Meter, key: &CacheKey, kind: FetchFailure) {
    meter.metrics.fetch_failed(kind);
    event!(DEBUG, meter.log_keys, key, kind = kind.as_str(), "the fetch failed");
}

/// Measures an operation of the store that has ended.
pub(crate) fn store_answered(meter: &Meter, operation: StoreOperation, took: impl Fn() -> Duration) {
    meter.metrics.store_answered(operation, took);
}

/// Reports a failed operation, at level `DEBUG`, because while the store is down each request has one. The connection and
/// the circuit breaker report the cause once. Only a refusal has no such line, if the store is full for example.
pub(crate) fn store_failed(
    meter: &Meter,
    failures: &Failures,
    key: &CacheKey,
    operation: StoreOperation,
    error: &StoreError,
) {
    meter.counters.count(|stripe| &stripe.store_errors);
    meter.metrics.store_failed(operation);
    event!(DEBUG, meter.log_keys, key, operation = operation.as_str(), %error, "the store operation failed");
    // An invalidation has a line at its beginning and one at its end.
    let is_refusal = error.is_refused() && !error.is_misconfigured() && operation != StoreOperation::Invalidate;
    if failures.record(operation.as_str(), error, is_refusal) {
        event!(WARN, meter.log_keys, key, operation = operation.as_str(), %error, "the store refuses operations; reported at most once a minute");
    }
}

pub(crate) fn invalidation_failed(meter: &Meter, key: &CacheKey, error: &StoreError) {
    event!(WARN, meter.log_keys, key, %error, "the invalidation was not acknowledged; it is retried in the background");
    let _ = error;
}

/// Reports the end of an invalidation that failed at first.
pub(crate) fn invalidation_ended(meter: &Meter, key: &CacheKey, acknowledged: bool) {
    let outcome = match acknowledged {
        true => "acknowledged after a retry",
        false => "given up: the old value may be served until it expires",
    };
    event!(WARN, meter.log_keys, key, outcome, "the retries of an invalidation have ended");
    let _ = outcome;
}

/// Reports an entry whose bytes cannot be read.
#[cfg(feature = "redis")]
pub(crate) fn corrupt_entry(key: &CacheKey, error: crate::store::envelope::EnvelopeError) {
    event!(WARN, false, key, %error, "the stored entry is corrupt and counts as absent");
    let _ = error;
}

pub(crate) fn breaker_opened(meter: &Meter, key: &CacheKey, error: &StoreError) {
    meter.counters.count(|stripe| &stripe.breaker_opened);
    event!(WARN, meter.log_keys, key, %error, "circuit breaker opened: the store is unavailable; requests probe it in the background");
    let _ = error;
}

pub(crate) fn breaker_closed(meter: &Meter, key: &CacheKey, open_for: Duration) {
    event!(WARN, meter.log_keys, key, ?open_for, "circuit breaker closed: the store answers again");
    let _ = open_for;
}

pub(crate) fn replaying_invalidations(meter: &Meter, key: &CacheKey, invalidations: usize) {
    event!(
        INFO,
        meter.log_keys,
        key,
        invalidations,
        "the store may have lost recent invalidations; they are sent again"
    );
    let _ = invalidations;
}

pub(crate) fn overloaded(meter: &Meter, key: &CacheKey, error: &Error) {
    meter.counters.count(|stripe| &stripe.overloaded);
    // A wait timeout has a line of its own.
    let is_due = !error.is_wait_timeout() && meter.counters.reported_rejections.is_due(Timestamp::now());
    throttled_event!(WARN, is_due, meter.log_keys, key, %error, "the request was rejected");
    let _ = error;
}

/// Reports a fetch that was dropped because no request waits for it and all `max_detached` permits are in use.
pub(crate) fn fetch_dropped(meter: &Meter, key: &CacheKey) {
    meter.counters.count(|stripe| &stripe.fetches_dropped);
    let is_due = meter.counters.reported_drops.is_due(Timestamp::now());
    throttled_event!(
        WARN,
        is_due,
        meter.log_keys,
        key,
        "the fetch was dropped: its clients have left, and all `max_detached` permits are in use"
    );
}

pub(crate) fn deadlock_avoided(meter: &Meter, key: &CacheKey) {
    meter.counters.count(|stripe| &stripe.deadlocks_avoided);
    event!(WARN, meter.log_keys, key, "a fetch would have waited for itself through other fetches");
}

pub(crate) fn too_large(meter: &Meter, key: &CacheKey) {
    meter.counters.count(|stripe| &stripe.too_large);
    event!(DEBUG, meter.log_keys, key, "the entry is too large to be kept in this process");
}

/// Counts a value that does not survive its codec. Reports each type once, because the cause is in the code and stays.
#[cfg(feature = "_typed")]
pub(crate) fn codec_failed(meter: &Meter, key: &CacheKey, kind: &'static str, codec: Codec, error: &BoxError) {
    meter.counters.count(|stripe| &stripe.codec_failures);
    meter.metrics.fetch_failed(FetchFailure::Codec);
    if meter.counters.uncodable_types.lock().insert((kind, codec)) {
        let hint = codec.way_out();
        // The message of a codec may quote the value.
        #[cfg(feature = "tracing")]
        let error = meter.log_keys.then(|| tracing::field::display(error));
        event!(
            ERROR,
            meter.log_keys,
            key,
            r#type = kind,
            ?codec,
            error,
            hint,
            "values of this type are not cached: they do not survive the codec"
        );
        let _ = (error, hint);
    }
}

/// A key in a log. PERF: hashed only if the event is enabled.
#[cfg(feature = "tracing")]
struct LoggedKey<'a> {
    key: CacheKeyRef<'a>,
    /// Whether to show the key itself.
    log_keys: bool,
}

#[cfg(feature = "tracing")]
impl fmt::Debug for LoggedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.log_keys {
            true => f.write_str(&self.key.to_readable()),
            false => fmt::Debug::fmt(&self.key.hash(), f),
        }
    }
}
