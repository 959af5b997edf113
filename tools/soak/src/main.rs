//! A fleet under a mixed load, with random faults around it, and the checks that must hold nevertheless.
//!
//! ```console
//! cargo run --release -p soak -- --seconds 60 --processes 3
//! cargo run --release -p soak -- --seconds 60 --processes 3 --seed 42      # the same faults again
//! cargo run --release -p soak -- --seconds 10 --sabotage stale             # to see that it can fail
//! ```
//!
//! The parent runs the origin and a `redis-server`. It breaks the server, its connections and the workers at random.
//! The workers use the guard to fetch values that are cheap, slow, failing, panicking, private or not to be stored.
//! They ask alone and in herds, and drop some futures half-way. The run exits with 1 if
//!
//! - an answer was an error although the origin did not fail, or there was no answer;
//! - a value was older than an invalidation that had been acknowledged before the request;
//! - a value belonged to another key, or was private to another caller;
//! - a worker's memory grew, or a worker kept tasks, flights or leases.
#![allow(clippy::disallowed_methods, reason = "it measures real time, and makes its own randomness")]

mod args;
mod check;
mod faults;
mod fleet;
mod load;
mod message;
mod origin;
mod run;
mod source;
mod worker;

use args::{Args, Mode};
use std::process::ExitCode;
use tokio::signal;

/// Any error ends the soak and is only printed.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::checked();
    let done = match args.mode() {
        Mode::Worker(duty) => worker::work(&duty).await.map(|()| true),
        // Dropping the run kills the processes that it started.
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

/// The exit status that shells report for a program ended by Ctrl-C.
const INTERRUPTED: u8 = 130;
