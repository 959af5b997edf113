//! What goes wrong around the guard, one thing at a time, and what it costs: no request fails that the origin could have
//! answered, and no process asks the origin twice at a time for one key.
//!
//! ```text
//! cargo test --all-features --test faults                              # about a minute
//! cargo test --all-features --test faults -- --nocapture matrix        # the table of docs/faults.md
//! cargo test --all-features --test faults -- --nocapture --ignored     # the long variants, some minutes
//! ```
//!
//! Outcomes and counts are asserted. Times are printed: they are the machine's as much as the guard's, and only what
//! hangs is a failure.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod fault;
mod leaders;
mod load;
mod matrix;
mod operation;
mod silence;
mod witness;
mod world;

use support::{Down, MS, SECOND};
