//! The span of a request that its first lookup does not answer. A hit has an event only.
//!
//! At level `DEBUG`, so that a log at `INFO` pays nothing for spans, and lines of handlers within a fetch do not begin
//! with the fields of ours.
//!
//! Values that are known later are recorded in the current span, because each future of the engine runs in the span of
//! its request. A handle in each of them would make a waiter larger. If our span is off, the current one belongs to the
//! application, and stays unchanged.
#![cfg_attr(not(feature = "tracing"), allow(unused_variables, reason = "what only spans show"))]

use super::{counters::Meter, table::FrontEnd};
#[cfg(feature = "tracing")]
use crate::key::CacheKeyRef;
use crate::{cache_status::CacheStatus, key::CacheKey};
use std::{future::Future, time::Duration};
#[cfg(feature = "tracing")]
use tracing::{Id, Instrument, Span, field::Empty};

/// Creates the span of a request.
#[cfg(feature = "tracing")]
fn request_span(meter: &Meter, key: &CacheKey, front_end: FrontEnd, parent: Option<Id>) -> Span {
    tracing::debug_span!(
        target: "stampede_guard",
        parent: parent,
        NAME,
        otel.kind = "internal",
        otel.status_code = Empty,
        "error.type" = Empty,
        server.address = meter.server.as_deref(),
        stampede_guard.namespace = key.namespace(),
        stampede_guard.name = &*meter.name,
        stampede_guard.front_end = front_end.as_str(),
        stampede_guard.key_hash = ?key.hash(),
        stampede_guard.key = meter.log_keys.then(|| CacheKeyRef::from(key).to_readable()),
        stampede_guard.status = Empty,
        stampede_guard.role = Empty,
        stampede_guard.lease_wait_ms = Empty,
        stampede_guard.fetch_ms = Empty,
    )
}

#[cfg(feature = "tracing")]
const NAME: &str = "stampede_guard.fetch";

/// Records fields of the current span, if it is that of a request.
macro_rules! record {
    ($($field:literal: $value:expr),+) => {
        #[cfg(feature = "tracing")]
        if let span = Span::current()
            && span.metadata().is_some_and(|metadata| metadata.name() == NAME)
        {
            $(span.record($field, $value);)+
        }
    };
}

/// The span of a request.
pub(crate) struct RequestSpan(#[cfg(feature = "tracing")] Span);

impl RequestSpan {
    /// Creates the span, below the current one.
    pub(crate) fn new(meter: &Meter, key: &CacheKey, front_end: FrontEnd) -> Self {
        Self(
            #[cfg(feature = "tracing")]
            request_span(meter, key, front_end, Span::current().id()),
        )
    }

    /// Returns the span of a leader: that of its request, because a spawned task inherits none, or that of a refresh in
    /// the background. The latter is below no other span, because its request ends before it, and a trace is complete
    /// only when all its spans have ended.
    pub(crate) fn of_leader(in_background: bool, meter: &Meter, key: &CacheKey, front_end: FrontEnd) -> Self {
        #[cfg(feature = "tracing")]
        if in_background {
            let span = request_span(meter, key, front_end, None);
            span.follows_from(Span::current());
            span.record("stampede_guard.role", "leader");
            return Self(span);
        }
        record_role("leader");
        Self(
            #[cfg(feature = "tracing")]
            Span::current(),
        )
    }

    /// Runs the future in the span.
    pub(crate) fn instrument<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        #[cfg(feature = "tracing")]
        let future = future.instrument(self.0);
        #[cfg(not(feature = "tracing"))]
        let Self() = self;
        future
    }
}

/// Records how the request of the current span was answered.
pub(crate) fn record_status(status: CacheStatus) {
    record!("stampede_guard.status": status.as_str());
}

/// Records that the fetch of the current span has failed, or its request was rejected.
pub(super) fn record_error(kind: &str) {
    record!("otel.status_code": "ERROR", "error.type": kind);
}

/// Records the part of the request of the current span. A request that waits first may lead later.
pub(crate) fn record_role(role: &str) {
    record!("stampede_guard.role": role);
}

/// Records the time until the leader of the current span had the lease, the right to fetch without one, or a result
/// without a fetch.
pub(crate) fn record_lease_wait(took: impl FnOnce() -> Duration) {
    record!("stampede_guard.lease_wait_ms": took().as_secs_f64() * 1e3);
}

/// Records the time of the fetch until its response head or its value.
pub(super) fn record_fetch(took: impl FnOnce() -> Duration) {
    record!("stampede_guard.fetch_ms": took().as_secs_f64() * 1e3);
}
