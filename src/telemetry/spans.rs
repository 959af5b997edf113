//! The span of a request that is not answered from this process's memory at once.
//!
//! Values that are known later are recorded in the current span, because each future of the engine runs in the span of
//! its request. A handle in each of them would make a waiter larger.

use super::{labels::FrontEnd, meter::Meter};
use crate::{cache_status::CacheStatus, key::CacheKey};
use std::{future::Future, time::Duration};
#[cfg(feature = "tracing")]
use tracing::{Instrument, Span, field::Empty};

/// The part of a request in its fetch.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Leader,
    Waiter,
}

/// The span of a request.
pub(crate) struct RequestSpan(#[cfg(feature = "tracing")] Span);

impl RequestSpan {
    /// Creates the span, below the current one.
    pub(crate) fn new(meter: &Meter, key: &CacheKey, front_end: FrontEnd) -> Self {
        #[cfg(feature = "tracing")]
        let span = tracing::info_span!(
            target: "stampede_guard",
            "stampede_guard.fetch",
            otel.kind = "internal",
            stampede_guard.namespace = key.namespace(),
            stampede_guard.name = meter.name(),
            stampede_guard.front_end = front_end.as_str(),
            stampede_guard.key_hash = ?key.hash(),
            stampede_guard.key = meter.log_keys.then(|| crate::key::CacheKeyRef::from(key).to_readable()),
            stampede_guard.status = Empty,
            stampede_guard.role = Empty,
            stampede_guard.lease_wait_ms = Empty,
            stampede_guard.fetch_ms = Empty,
        );
        let _ = (meter, key, front_end);
        Self(
            #[cfg(feature = "tracing")]
            span,
        )
    }

    /// Runs the request in the span.
    #[cfg_attr(not(feature = "tracing"), allow(clippy::unused_self, reason = "there is no span"))]
    pub(crate) fn instrument<F: Future>(self, request: F) -> impl Future<Output = F::Output> {
        #[cfg(feature = "tracing")]
        let request = request.instrument(self.0);
        request
    }
}

/// Attaches the current span to the flight, because a spawned task inherits none.
pub(crate) fn in_current_span<F: Future>(flight: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "tracing")]
    let flight = flight.in_current_span();
    flight
}

/// Records how the request of the current span was answered.
pub(super) fn record_status(status: CacheStatus) {
    #[cfg(feature = "tracing")]
    Span::current().record("stampede_guard.status", status.as_str());
    let _ = status;
}

/// Records the part of the request of the current span. A request that waits first may lead later.
pub(crate) fn record_role(role: Role) {
    #[cfg(feature = "tracing")]
    Span::current().record(
        "stampede_guard.role",
        match role {
            Role::Leader => "leader",
            Role::Waiter => "waiter",
        },
    );
    let _ = role;
}

/// Records the time until the leader of the current span had the lease, or the right to fetch without one.
pub(crate) fn record_lease_wait(took: Duration) {
    #[cfg(feature = "tracing")]
    Span::current().record("stampede_guard.lease_wait_ms", millis(took));
    let _ = took;
}

/// Records the time of the fetch until its response head or its value.
pub(super) fn record_fetch(took: Duration) {
    #[cfg(feature = "tracing")]
    Span::current().record("stampede_guard.fetch_ms", millis(took));
    let _ = took;
}

#[cfg(feature = "tracing")]
fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
