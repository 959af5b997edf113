//! The spans of requests.

use std::future::Future;

/// Attaches the current span to the flight, because a spawned task inherits none.
pub(crate) fn in_current_span<F: Future>(flight: F) -> impl Future<Output = F::Output> {
    #[cfg(feature = "tracing")]
    let flight = tracing::Instrument::in_current_span(flight);
    flight
}
