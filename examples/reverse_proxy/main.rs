//! A shared cache in front of any HTTP/1.1 origin: of many concurrent requests for one page, only one reaches the
//! origin.
//!
//! ```console
//! cargo run --release --example reverse_proxy -- --origin http://127.0.0.1:9000
//! cargo run --release --example reverse_proxy -- --origin http://127.0.0.1:9000 --redis redis://127.0.0.1:6379
//! ```
//!
//! A request passes three stages: `front.rs` changes it to what the origin will see, the guard answers it or lets it
//! through, and `upstream.rs` asks the origin. This order matters, because the cache key must contain what the client
//! asked for and nothing that the origin does not receive.
#![allow(clippy::disallowed_methods, reason = "an example has a clock of its own")]

mod args;
mod fields;
mod front;
mod serve;
mod target;
mod upstream;

use clap::Parser;
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    example_support::log();
    match serve::until_stopped(args::Args::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
