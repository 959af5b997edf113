//! The engine within one process: which caller fetches, which callers wait, and what happens when a caller is dropped.
//!
//! Tests that depend on time run with paused time, so the speed of the machine does not matter.
#![cfg(all(feature = "bincode", feature = "testing", feature = "unstable"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod cache;
mod cancel;
mod coalesce;
mod cycles;
mod detached;
mod expire;
mod failures;
mod faults;
mod freshness;
mod health;
mod heartbeats;
mod hot_keys;
mod invalidate;
mod near;
mod outage;
mod outage_cache;
mod patience;
mod put;
mod reads;
mod refresh;
mod settings;
mod share;
mod sizes;
mod slow;
mod typed;
mod validation;

use stampede_guard_support as support;
use support::{Down, MS, SECOND, never};
