//! What fleets of 10 to 10,000 processes do to one Redis and to their origin: a discrete-event simulation of the guard's
//! protocol, with costs that were measured.
//!
//! ```console
//! cargo run --release --example fleet
//! cargo run --release --example fleet -- --processes 1000,3000 --near --early 1 --shards 4
//! cargo run --release --example fleet -- --rate 50 --zipf 0.8 --ttl 10 --compute 200 --json
//! ```
//!
//! Requests arrive at random, fall on any process, and ask for keys of which few are asked for often. From then on each
//! command goes its way: half a round trip, the queue of the one thread that is Redis, half a round trip. A hit is one
//! `GET`. A miss is `GET`, `lead`, a computation, `fill`; other processes that ask meanwhile `lead` as well, leave an inbox,
//! are told, and ask again; those beyond the 64th inbox ask by themselves. Who asks in a process where somebody asks
//! already waits for that answer. A Redis that takes longer than 250 ms is done without: processes compute for themselves.
//!
//! It ends with the first thing that there is too little of, at which size, and with what was found by simulating that size
//! again with each remedy.
//!
//! # What it leaves out
//!
//! Crashes, failing origins, invalidations, stale answers, sizes of values, what the processes themselves can do, and, with
//! several shards, that each shard of a cluster passes published messages on to all others. It begins as if it had run for
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
