//! The engine within one process: who computes, who waits, and what becomes of it when somebody goes away.
//!
//! Time is paused where it matters, so nothing here depends on how fast the machine is.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod cancel;
mod coalesce;
mod cycles;
mod faults;
mod freshness;
mod invalidate;
mod outage;
mod patience;
mod reads;
mod share;
mod typed;

use support::{Down, MS, SECOND, never};
