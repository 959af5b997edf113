//! The load that fleets of 10 to 10,000 processes put on one Redis and their origin: a discrete-event simulation of the
//! guard's protocol, with measured costs.
//!
//! ```console
//! cargo run --release -p fleet
//! cargo run --release -p fleet -- --processes 1000,3000 --near --early 1 --shards 4
//! cargo run --release -p fleet -- --rate 50 --zipf 0.8 --ttl 10 --compute 200 --json
//! ```
//!
//! Requests arrive at random times at random processes, and ask for keys of which few are popular. Each command takes
//! half a round trip, the queue of the single thread of Redis, and half a round trip. A hit is one `GET`. A miss is
//! `GET`, `get_or_lease`, a fetch, and `fill`. Other processes that ask in the meantime send `get_or_lease` as well,
//! register an inbox, are notified, and ask again. Processes beyond the 128th inbox poll. A caller joins the flight of
//! its process if there is one. If Redis takes longer than 250 ms, processes fetch without it.
//!
//! The output ends with the first bottleneck, the size at which it is reached, and the result of simulating that size
//! again with each remedy.
//!
//! # What it leaves out
//!
//! Crashes, failing origins, invalidations, stale responses, sizes of values, and the capacity of the processes
//! themselves. With several shards, it also leaves out that each shard of a cluster forwards published messages to all
//! others. The simulation starts in a steady state: the popularity of a key decides whether it is present, and at which
//! age (`--cold`: no key is present).
//! long: a key is there with the likelihood, and at an age, that its popularity gives it (`--cold`: nothing is there).
#![allow(clippy::disallowed_methods, reason = "it measures itself, and makes its own randomness from a seed")]

mod advice;
mod args;
mod chance;
mod event;
mod fleet;
mod flight;
mod load;
mod origin;
mod picture;
mod process;
mod redis;
mod row;
mod tally;

use args::Args;
use clap::Parser;
use std::{process::ExitCode, time::Instant};

fn main() -> ExitCode {
    let (args, began) = (Args::parse(), Instant::now());
    println!("{}", args.load);
    row::print_head();
    let mut rows = Vec::new();
    for &processes in &args.processes {
        let row = fleet::simulate(&args.load, processes, args.seconds(processes));
        row.print();
        rows.push(row);
    }
    let advice = advice::on(&args, &rows);
    println!("\n{advice}\nsimulated in {:.1} s", began.elapsed().as_secs_f64());
    if let Some(path) = &args.svg
        && let Err(error) = picture::draw(path, &args)
    {
        eprintln!("error: {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    if args.json {
        let json = serde_json::json!({ "rows": rows, "first": advice.first, "remedies": advice.remedies });
        println!("{json}");
    }
    ExitCode::SUCCESS
}
