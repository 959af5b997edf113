//! Several processes, or guards as if in several, over one real Redis: one of them computes.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod commands;
mod herd;
mod near;
mod outage;
mod takeover;

use support::{Down, MS, SECOND, never};
