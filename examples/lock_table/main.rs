//! Table 11.2 of *Redis in Action*, with every recipe of this crate: how often one lock is acquired and released by 1, 2,
//! 5 and 10 clients, and how often they have to try.
//!
//! ```console
//! cargo run --release --example lock_table -- --seconds 5
//! cargo run --release --example lock_table -- --seconds 5 --recipes bare,fused --clients 1,10 --json
//! cargo run --release --example lock_table -- --seconds 5 --svg docs/lock_table.svg
//! ```
//!
//! Each client is a process with connections of its own that does nothing else, and all start at one moment. What is
//! compared is measured next to each other: all recipes with one client, then all with two. `bare` is no recipe but what
//! one writes without this crate, `SET NX PX` and a script that compares and deletes, over plain redis-rs.
//!
//! # Tries
//!
//! Every request that could have acquired the lock. A client that spins counts its own, `--delay` apart. A client that is
//! queued does not see all of them, so the server is asked how many scripts it ran: those that were not releases were
//! tries, and so is the `SET` that `set-px` begins with. With `--redis`, whatever others do there meanwhile would be
//! counted as well.
//!
//! # Mutual exclusion
//!
//! Who holds the lock holds a file lock of the operating system as well, from its acquisition to its release; where that
//! is somebody else's there were two holders. It costs two system calls and is the same for all. Nothing is done while
//! the lock is held, so it sees whoever is in another's way at that very moment: locks that do not exclude at all, and of
//! rare accidents one in many. `--recipes none` locks nothing, to see that the check can fail.
#![allow(clippy::disallowed_methods, reason = "it measures real time, and makes its own randomness")]

mod args;
mod bare;
mod book;
mod cell;
mod client;
mod oracle;
mod picture;
mod recipes;
#[path = "../support/redis_server.rs"]
mod redis_server;
mod run;
mod table;

use args::{Args, Mode};
use std::process::ExitCode;
use tokio::signal;

/// Whatever ends the measuring early: it is only ever printed.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Args::checked().mode() {
        Mode::Client(duty) => client::work(&duty).await.map(|()| true),
        // Dropping the run kills what it started.
        Mode::Parent(args) => tokio::select! {
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
