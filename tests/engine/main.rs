//! The engine within one process: who computes, who waits, and what becomes of it when somebody goes away.
//!
//! Time is paused where it matters, so nothing here depends on how fast the machine is.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod cancel;
mod coalesce;
mod faults;
mod freshness;
mod invalidate;
mod share;
mod typed;
mod wire;

use std::{error, fmt, time::Duration};

/// The origin's error in these tests.
#[derive(Debug, PartialEq)]
struct Down;

impl fmt::Display for Down {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the origin is down")
    }
}

impl error::Error for Down {}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A fetch that must not be needed.
async fn never<T>() -> Result<T, Down> {
    panic!("there was an answer without")
}
