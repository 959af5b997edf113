//! Table 11.2 of *Redis in Action*, with every recipe of this crate. It shows how many times 1, 2, 5 and 10 clients
//! acquire and release one lock, and how many tries they need.
//!
//! ```console
//! cargo run --release -p lock-table -- --seconds 5
//! cargo run --release -p lock-table -- --seconds 5 --recipes bare,fused --clients 1,10 --json
//! cargo run --release -p lock-table -- --seconds 5 --svg docs/lab/lock_table.svg
//! ```
//!
//! Each client is a process with its own connections, and all clients start at the same time. Figures that are compared
//! are measured one after another: all recipes with one client, then all with two. `bare` is not a recipe of this
//! crate, but the lock that users write without it: `SET NX PX`, and a script that compares and deletes, with plain
//! redis-rs.
//!
//! # Tries
//!
//! A try is every request that could have acquired the lock. A spinning client counts its own tries, which are
//! `--delay` apart. A queued client does not see all of them, so the server is asked how many scripts it ran. The
//! scripts that were not releases were tries, and so is the `SET` with which `set-px` begins. With `--redis`, scripts
//! of other clients are counted as well.
//!
//! # Mutual exclusion
//!
//! The holder of the lock also holds a file lock of the operating system, from acquisition to release. If another
//! client holds the file lock, there were two holders. The check costs two system calls, the same for every recipe. No
//! work is done while the lock is held, so the check sees only overlaps at that moment: it finds locks that do not
//! exclude at all, and one in many rare accidents. `--recipes none` locks nothing, to show that the check can fail.
#![allow(clippy::disallowed_methods, reason = "it measures real time, and makes its own randomness")]

mod args;
mod bare;
mod book;
mod cell;
mod client;
mod oracle;
mod picture;
mod recipes;
mod run;
mod table;

use args::{Args, Mode};
use std::process::ExitCode;
use tokio::signal;

/// Any error ends the measurement and is only printed.
type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let done = match Args::checked().mode() {
        Mode::Client(duty) => client::work(&duty).await.map(|()| true),
        // Dropping the run kills the processes that it started.
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

/// The exit status that shells report for a program ended by Ctrl-C.
const INTERRUPTED: u8 = 130;
