//! Counters, and with their features metrics, events and spans. No other file names them.
//!
//! Keys appear as hashes, because they come from URLs and may contain what must not be logged.
//! [`log_keys`](crate::StampedeGuard::log_keys) shows them.

#[cfg(feature = "redis")]
pub(crate) mod connection;
mod counters;
mod events;
mod labels;
mod meter;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "telemetry/no_metrics.rs"]
mod metrics;
#[cfg(feature = "http")]
pub(crate) mod routes;
mod spans;
mod stats;

pub use self::stats::Stats;
pub(crate) use self::{
    counters::NamedCounters,
    events::*,
    labels::{FetchFailure, FrontEnd, StoreOperation},
    meter::Meter,
    metrics::{NearCacheBytes, OpenBreaker, OpenBreakers, Timed},
    spans::{RequestSpan, Role, record_lease_wait, record_role},
};
