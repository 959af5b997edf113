//! An axum app with a slow report, and a herd of concurrent requests for it.
//!
//! ```console
//! cargo run --release --example axum_app                                    # serves a page to try it, until Ctrl-C
//! cargo run --release --example axum_app -- --own-redis                     # the page can stop and start a Redis
//! cargo run --release --example axum_app -- --herd 1000                     # one process, embedded store
//! cargo run --release --example axum_app -- --herd 1000 --processes 4       # a fleet that shares a Redis
//! cargo run --release --example axum_app -- --herd 1000 --redis redis://127.0.0.1:6379
//! cargo run --release --example axum_app --features metrics -- --metrics    # with /metrics for Prometheus, see ops/
//! ```
//!
//! `app.rs` shows how to use the guard. The rest is the proof: real servers, real sockets, one connection per request,
//! and everything counted.
#![allow(clippy::disallowed_methods, reason = "it measures real time")]

mod app;
mod args;
mod client;
mod commands;
mod compare;
mod demo;
mod fleet;
mod herd;
mod metrics;
mod origin;
mod report;
mod serve;

use args::{Args, Mode};
use std::process::ExitCode;

/// Any error ends the demo and is only printed.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::checked();
    example_support::log();
    let done = match args.mode() {
        Mode::Serve => serve::until_interrupted(&args).await,
        Mode::Child => serve::until_parent_leaves(&args).await,
        // Dropping the comparison kills the servers that it started.
        Mode::Herd(herd) => tokio::select! {
            biased;
            () = example_support::told_to_stop() => return ExitCode::from(INTERRUPTED),
            done = compare::compare(herd, &args) => done,
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The exit status that shells report for a program ended by Ctrl-C.
const INTERRUPTED: u8 = 130;
