//! Counters, and with their features metrics, events and spans. No other file names them.
//!
//! Keys appear as hashes, because they come from URLs and may contain what must not be logged.
//! [`log_keys`](crate::StampedeGuard::log_keys) shows them.

mod counters;
mod events;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "telemetry/no_metrics.rs"]
mod metrics;
#[cfg(feature = "http")]
pub(crate) mod routes;
mod spans;
mod table;

pub use self::counters::Stats;
#[cfg(feature = "metrics")]
pub use self::metrics::HISTOGRAM_BUCKETS;
#[cfg(feature = "lock")]
pub(crate) use self::metrics::LockMeter;
pub(crate) use self::{
    counters::{Meter, NamedCounters},
    events::*,
    metrics::{NearCacheBytes, OpenBreaker, PendingInvalidation, Timed, open_breaker, pending_invalidation},
    spans::{RequestSpan, record_lease_wait, record_role, record_status},
    table::{FetchFailure, FrontEnd, StoreOperation},
};
