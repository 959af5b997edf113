//! The span of a request that is not answered from this process's memory at once.
//!
//! Values that are known later are recorded in the current span, because each future of the engine runs in the span of
//! its request. A handle in each of them would make a waiter larger.

use super::{labels::FrontEnd, meter::Meter};
use crate::{cache_status::CacheStatus, key::CacheKey};
use std::{future::Future, time::Duration};
#[cfg(feature = "tracing")]
use tracing::{Instrument, Span, field::Empty};

/// Creates the span of a request.
#[cfg(feature = "tracing")]
macro_rules! request_span {
    ($meter:expr, $key:expr, $front_end:expr $(, parent: $parent:expr)?) => {
        tracing::info_span!(
            target: "stampede_guard",
            $(parent: $parent,)?
            "stampede_guard.fetch",
            otel.kind = "internal",
            stampede_guard.namespace = $key.namespace(),
            stampede_guard.name = $meter.name(),
            stampede_guard.front_end = $front_end.as_str(),
            stampede_guard.key_hash = ?$key.hash(),
            stampede_guard.key = $meter.log_keys.then(|| crate::key::CacheKeyRef::from($key).to_readable()),
            stampede_guard.status = Empty,
            stampede_guard.role = Empty,
            stampede_guard.lease_wait_ms = Empty,
            stampede_guard.fetch_ms = Empty,
        )
    };
}

/// The part of a request in its fetch.
#[derive(Clone, Copy)]
pub(crate) enum Role {
    Leader,
    Waiter,
}

#[cfg(feature = "tracing")]
impl Role {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Waiter => "waiter",
        }
    }
}

/// The span of a request.
pub(crate) struct RequestSpan(#[cfg(feature = "tracing")] Span);

impl RequestSpan {
    /// Creates the span, below the current one.
    pub(crate) fn new(meter: &Meter, key: &CacheKey, front_end: FrontEnd) -> Self {
        let _ = (meter, key, front_end);
        Self(
            #[cfg(feature = "tracing")]
            request_span!(meter, key, front_end),
        )
    }

    /// Returns the span of a leader: that of its request, or that of a refresh in the background.
    pub(crate) fn of_leader(in_background: bool, meter: &Meter, key: &CacheKey, front_end: FrontEnd) -> Self {
        if in_background {
            return Self::of_refresh(meter, key, front_end);
        }
        record_role(Role::Leader);
        Self::current()
    }

    /// Creates the span of a refresh in the background. It is below no other span, because its request ends before it,
    /// and a trace is complete only when all its spans have ended.
    fn of_refresh(meter: &Meter, key: &CacheKey, front_end: FrontEnd) -> Self {
        #[cfg(feature = "tracing")]
        {
            let request = Span::current();
            let span = request_span!(meter, key, front_end, parent: None);
            span.follows_from(request);
            span.record("stampede_guard.role", Role::Leader.as_str());
            Self(span)
        }
        #[cfg(not(feature = "tracing"))]
        Self::new(meter, key, front_end)
    }

    /// Returns the current span, because a spawned task inherits none.
    fn current() -> Self {
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
pub(super) fn record_status(status: CacheStatus) {
    #[cfg(feature = "tracing")]
    Span::current().record("stampede_guard.status", status.as_str());
    let _ = status;
}

/// Records the part of the request of the current span. A request that waits first may lead later.
pub(crate) fn record_role(role: Role) {
    #[cfg(feature = "tracing")]
    Span::current().record("stampede_guard.role", role.as_str());
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
