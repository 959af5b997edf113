//! Helpers of the integration tests: a real Redis, an origin that counts, herds, and child processes.
//!
//! No test is skipped, except in `tests/ops` and by [`skip`]: if the machine lacks something that a test needs, the test
//! panics and names it.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]
#![allow(
    missing_debug_implementations,
    missing_docs,
    clippy::must_use_candidate,
    clippy::new_without_default,
    reason = "only tests and benches use it"
)]

pub mod child;
pub mod monitor;
pub mod processes;
pub mod program;
pub mod relay;

mod down;
mod eventually;
mod herd;
mod origin;
mod redis_server;
mod signal;
mod skip;

pub use self::{
    down::{Down, MS, SECOND, never},
    eventually::eventually,
    herd::herd,
    monitor::{Command, Monitor},
    origin::Origin,
    program::example,
    redis_server::{CLOSED_PORT, RedisServer},
    relay::Relay,
    signal::signal,
    skip::skip,
};
