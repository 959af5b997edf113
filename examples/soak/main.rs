//! A fleet under a mixed load, while things break around it; and what must hold all the same.
//!
//! ```console
//! cargo run --release --example soak -- --seconds 60 --processes 3
//! cargo run --release --example soak -- --seconds 60 --processes 3 --seed 42      # the same faults again
//! cargo run --release --example soak -- --seconds 10 --sabotage stale             # to see that it can fail
//! ```
//!
//! The parent has the origin and a `redis-server` of its own, and breaks the latter, its connections and the workers at
//! random. The workers ask, through the guard, for values that are cheap, slow, failing, panicking, private or not to be
//! stored, alone and in herds, and go away half-way. It ends with 1 if
//!
//! - an answer was an error, although the origin could give one, or did not come at all;
//! - a value was older than an invalidation that had been acknowledged before it was asked for;
//! - a value was another key's, or another caller's private one;
//! - a worker grew, or kept tasks, flights or leases.
#![allow(clippy::disallowed_methods, reason = "it measures real time, and makes its own randomness")]

mod args;
mod check;
mod faults;
mod fleet;
mod load;
mod message;
mod origin;
#[path = "../support/redis_server.rs"]
mod redis_server;
mod run;
mod source;
mod worker;

use args::{Args, Mode};
use std::process::ExitCode;
use tokio::signal;

/// Whatever ends the soak early: it is only ever printed.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::checked();
    let done = match args.mode() {
        Mode::Worker(duty) => worker::work(&duty).await.map(|()| true),
        // Dropping the run kills what it started.
        Mode::Parent => tokio::select! {
            biased;
            _ = signal::ctrl_c() => return ExitCode::from(INTERRUPTED),
            done = run::run(&args) => done,
        },
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What shells report for a program that Ctrl-C ended.
const INTERRUPTED: u8 = 130;
