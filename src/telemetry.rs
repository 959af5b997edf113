//! Counters and, with the feature `tracing`, events. No other file names them.
//!
//! Keys appear as hashes, because they come from URLs and may contain what must not be logged.

#[cfg(feature = "redis")]
pub(crate) mod connection;
mod counters;
mod events;
#[cfg(feature = "http")]
pub(crate) mod routes;
mod spans;
mod stats;

pub use self::stats::Stats;
pub(crate) use self::{counters::Counters, events::*, spans::in_current_span};
