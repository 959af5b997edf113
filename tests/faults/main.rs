//! Single faults around the guard, and their cost. No request fails that the origin could have answered, and the
//! concurrent origin calls of one process for one key are bounded.
//!
//! ```text
//! cargo test --all-features --test faults                              # about a minute
//! cargo test --all-features --test faults -- --nocapture matrix        # the table of docs/lab/faults.md
//! cargo test --all-features --test faults -- --nocapture --ignored     # the long variants, some minutes
//! ```
//!
//! Outcomes and counts are asserted. Times are only printed because they depend on the machine; only a hang is a
//! failure.
#![cfg(all(feature = "bincode", feature = "redis"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod ended_leases;
mod fault;
mod leaders;
mod load;
mod matrix;
mod operation;
mod silence;
mod stalls;
mod witness;
mod world;

use stampede_guard_support as support;
use support::{Down, MS, SECOND};
