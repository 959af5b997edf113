//! Several processes, or several guards in one process, over one real Redis: one of them computes.
#![cfg(all(
    feature = "bincode",
    feature = "connection-manager",
    feature = "http",
    feature = "json",
    feature = "lock",
    feature = "postcard"
))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod cache;
mod codecs;
mod commands;
mod corruption;
mod herd;
mod layouts;
mod near;
mod outage;
mod put;
mod refresh;
mod takeover;
mod validation;
mod waiters;

use stampede_guard_support as support;
use support::{Down, MS, SECOND, never};
