//! Functions that record events: one for each row of the table, and further functions that record several rows or
//! depend on a condition.
#![cfg_attr(
    not(all(feature = "metrics", feature = "tracing")),
    allow(unused_variables, reason = "what only metrics or only events show")
)]

#[cfg(feature = "lock")]
use super::metrics::LockMeter;
#[cfg(feature = "http")]
use super::routes::Route;
use super::{
    counters::Meter,
    metrics::Timed,
    spans::{record_error, record_fetch},
    table::{FetchFailure, FrontEnd, StoreOperation, table},
};
#[cfg(feature = "_typed")]
use crate::error::BoxError;
#[cfg(feature = "lock")]
use crate::store::token::Token;
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    error::Error,
    key::{CacheKey, CacheKeyRef},
    store::{entry::Kind, error::StoreError, lease::FillOutcome},
};
#[cfg(feature = "tracing")]
use std::fmt;
use std::{fmt::Display, time::Duration};

/// Defines the function of an event: it adds one to the counter, if there is one, and to a member of a metric, and emits
/// an event of this level, text and fields. The fields are evaluated only if the event is enabled.
///
/// An event without `meter` and `key` has only its fields.
macro_rules! event {
    ([$($counter:ident)?]) => {};
    ([$counter:ident] $(#[$if:meta])? $event:ident($meter:ident) $(+ $metric:ident[$index:expr])?) => {
        $(#[$if])?
        pub(crate) fn $event($meter: &Meter) {
            $meter.counters.count(|stripe| &stripe.$counter);
            $(metric!($meter.$metric[$index]);)?
        }
    };
    (
        [$($counter:ident)?] $(#[$if:meta])? $event:ident($meter:ident, $key:ident $(, $arg:ident: $type:ty)*)
        $(+ $metric:ident[$index:expr],)? $level:ident $([$condition:expr])? $text:literal $([$($field:tt)+])?
    ) => {
        $(#[$if])?
        pub(crate) fn $event<'k>($meter: &Meter, $key: impl Into<CacheKeyRef<'k>> $(, $arg: $type)*) {
            $($meter.counters.count(|stripe| &stripe.$counter);)?
            $(metric!($meter.$metric[$index]);)?
            line!(
                $level $([$condition])?,
                key = ?LoggedKey($key.into(), $meter.log_keys), $($($field)+,)? $text
            );
        }
    };
    (
        [] $(#[$if:meta])? $event:ident($($arg:ident: $type:ty),+)
        $(+ $meter:ident.$metric:ident,)? $level:ident $([$condition:expr])? $text:literal [$($field:tt)+]
    ) => {
        $(#[$if])?
        pub(crate) fn $event($($arg: $type),+) {
            $(metric!($meter => $metric[0]);)?
            line!($level $([$condition])?, $($field)+, $text);
        }
    };
}

macro_rules! line {
    ($level:ident[$condition:expr], $($line:tt)+) => {
        if $condition {
            line!($level, $($line)+);
        } else {
            line!(DEBUG, $($line)+);
        }
    };
    ($level:ident, $($line:tt)+) => {
        #[cfg(feature = "tracing")]
        tracing::event!(target: "stampede_guard", tracing::Level::$level, $($line)+);
    };
}

/// Adds one to a member of a metric.
macro_rules! metric {
    ($meter:ident.$metric:ident[$index:expr]) => {
        metric!($meter.metrics => $metric[$index]);
    };
    ($registered:expr => $metric:ident[$index:expr]) => {
        #[cfg(feature = "metrics")]
        if let Some(metrics) = $registered.get() {
            metrics.$metric[$index].increment(1);
        }
        #[cfg(not(feature = "metrics"))]
        let _ = $index;
    };
}

/// Raises a gauge until the returned value is dropped, and then records the time.
macro_rules! timed {
    ($registered:expr, $gauge:ident, $seconds:ident) => {
        Timed::new(
            #[cfg(feature = "metrics")]
            $registered.get().map(|group| (&group.$gauge[0], &group.$seconds[0])),
        )
    };
}

macro_rules! events {
    (
        events { $($($(#[$doc:meta])+ $counter:ident $(= $status:ident)?)? $({ $($event:tt)+ })?;)+ }
        $($metrics:tt)+
    ) => {
        $(event! { [$($counter)?] $($($event)+)? })+
    };
}

table!(events);

/// Counts an answer. `fetched` says whether the request has called the origin itself, or may do so yet: a stale answer
/// may replace its failed fetch, or come before its refresh.
///
/// PERF: `took` is called only if its result is used, because reading a clock is a large part of the cost of a hit.
pub(crate) fn answered(
    meter: &Meter,
    key: CacheKeyRef<'_>,
    front_end: FrontEnd,
    status: CacheStatus,
    fetched: bool,
    took: &dyn Fn() -> Duration,
) {
    meter.counters.count(|stripe| stripe.answers(status));
    metric!(meter.requests[front_end as usize * CacheStatus::NAMES.len() + status as usize]);
    let is_saved = !fetched && matches!(status, CacheStatus::Hit | CacheStatus::Stale | CacheStatus::Coalesced);
    if is_saved {
        metric!(meter.saved_calls[0]);
    }
    if let Some(hot_keys) = &meter.hot_keys {
        hot_keys.record_answer(key, is_saved, took());
    }
    log_answer(meter, key, front_end, status, took);
}

/// Counts a response of the HTTP layer that was neither answered from the cache nor stored. Reports its route if no
/// response of the route is ever cacheable.
#[cfg(feature = "http")]
pub(crate) fn uncached(meter: &Meter, route: Option<&Route>, reason: Uncached) {
    meter.counters.count_uncached(reason);
    if reason == Uncached::TooLarge {
        too_large_to_store(meter, route.map_or("a response", |route| &route.name));
    }
    metric!(meter.uncached[reason as usize]);
    let route = route.filter(|_| reason.way_out().is_some());
    if let Some((route, reason)) = route.and_then(|route| route.was_uncached(reason)) {
        uncacheable_route(route, reason, reason.way_out());
    }
}

pub(crate) fn filled(meter: &Meter, key: &CacheKey, kind: Kind, outcome: FillOutcome) {
    match outcome {
        FillOutcome::Stored => stored(meter, key, kind),
        FillOutcome::Fenced => fenced(meter, key, kind),
    }
}

/// Measures a call of the origin that began then, until the returned value is dropped.
pub(crate) fn fetching<'a>(meter: &'a Meter, key: &'a CacheKey, began: Timestamp) -> Fetching<'a> {
    Fetching { meter, key, _timed: timed!(meter.metrics, in_flight, fetch_seconds), began }
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
        let took = || Timestamp::now().since(self.began);
        record_fetch(took);
        if let Some(hot_keys) = &self.meter.hot_keys {
            hot_keys.record_fetch(self.key.into(), took());
        }
    }
}

/// Measures the wait for the fetch of another request, until the returned value is dropped.
pub(crate) fn waiting(meter: &Meter) -> Timed {
    timed!(meter.metrics, waiters, wait_seconds)
}

/// Measures the acquisition of a lock, until the returned value is dropped.
#[cfg(feature = "lock")]
pub(crate) fn lock_acquiring(meter: &LockMeter) -> Timed {
    timed!(meter, waiters, wait_seconds)
}

/// Measures how long a lock is held, until the returned value is dropped.
#[cfg(feature = "lock")]
pub(crate) fn lock_holding(meter: &LockMeter) -> Timed {
    timed!(meter, held, hold_seconds)
}

/// Measures an operation of the store that has ended.
pub(crate) fn store_answered(meter: &Meter, operation: StoreOperation, took: impl Fn() -> Duration) {
    #[cfg(feature = "metrics")]
    if let Some(metrics) = meter.metrics.get() {
        metrics.store_seconds[operation as usize].record(took().as_secs_f64());
    }
}

/// Reports a failed operation. Only a refusal has no line about its cause, if the store is full for example.
pub(crate) fn store_failed(meter: &Meter, key: &CacheKey, operation: StoreOperation, error: &StoreError) {
    store_operation_failed(meter, key, operation, error);
    // Invalidations that fail have a line of their own.
    let is_refusal = error.is_refused() && !error.is_misconfigured() && operation != StoreOperation::Invalidate;
    if is_refusal && meter.counters.reported_refusals.is_due() {
        store_refuses(meter, key, operation, error);
    }
}

/// Reports invalidations that fail, at most once a minute. Returns whether it does now.
pub(crate) fn invalidations_failed(meter: &Meter, key: &CacheKey, invalidations: usize, error: &StoreError) -> bool {
    let is_due = meter.counters.reported_invalidations.is_due();
    if is_due {
        invalidations_pending(meter, key, invalidations, error);
    }
    is_due
}

/// Counts a failed fetch, once however many requests wait for it.
pub(crate) fn fetch_failed(meter: &Meter, key: &CacheKey, kind: FetchFailure) {
    record_error(kind.as_str());
    log_failure(meter, key, kind);
}

/// Reports a request that is answered with this error.
pub(crate) fn rejected(meter: &Meter, key: &CacheKey, error: &Error) {
    let kind = format!("{:?}", error.kind()).to_lowercase();
    record_error(if error.is_timeout() { FetchFailure::TimedOut.as_str() } else { &kind });
    if error.is_overloaded() {
        overloaded(meter, key, error);
    }
}

/// Counts a value of this type that does not survive this codec. Reports each type once, because the cause is in the
/// code and stays.
#[cfg(feature = "_typed")]
pub(crate) fn codec_failed(meter: &Meter, key: &CacheKey, of: &(&'static str, String), error: &BoxError, hint: &str) {
    uncodable_value(meter);
    if meter.counters.uncodable_types.lock().insert(of.clone()) {
        uncodable_type(meter, key, of.0, &of.1, error, hint);
    }
}

/// A key in a log, and whether to show the key itself. PERF: hashed only if the event is enabled.
#[cfg(feature = "tracing")]
struct LoggedKey<'a>(CacheKeyRef<'a>, bool);

#[cfg(feature = "tracing")]
impl fmt::Debug for LoggedKey<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            true => f.write_str(&self.0.to_readable()),
            false => fmt::Debug::fmt(&self.0.hash(), f),
        }
    }
}
