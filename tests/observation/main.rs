//! What a guard shows of its work: statistics by name, metrics, and spans.
//!
//! The tests run in one thread each, because the recorder and the subscriber of a test belong to its thread.
#![cfg(all(
    feature = "axum",
    feature = "bincode",
    feature = "lock",
    feature = "metrics",
    feature = "testing",
    feature = "tracing"
))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod collector;
mod floods;
mod gauges;
mod locks;
mod metrics;
mod names;
mod recorder;
mod spans;

use stampede_guard_support as support;
