//! Cost curves: what grows with the number of callers, keys, processes, bytes and misses, and what does not.
//!
//! ```text
//! cargo bench --bench scale                  # all, in about four minutes
//! cargo bench --bench scale -- payloads      # one table
//! cargo bench --bench scale -- --test        # all, a few of each
//! ```
//!
//! Prints the tables of docs/lab/scale.md: costs, callers, keys, threads, processes, waiters, payloads, misses, reality.
//! Figures of the table `fills` are in docs/decisions/0120-staged-fills.md. Does not use criterion, because most of it is counted or takes as long as its fetch. Child processes run this
//! binary. If cargo does not start it as a bench, it is as short as with `--test`.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time, and makes its own randomness")]

mod callers;
mod costs;
mod fills;
mod kit;
mod misses;
mod payloads;
mod processes;
mod reality;
mod threads;
mod waiters;

use serde::{Deserialize, Serialize};
use stampede_guard_support as support;
use std::{env, time::Instant};
use support::child;

/// How much is measured.
#[derive(Clone, Copy)]
struct Extent {
    smoke: bool,
}

impl Extent {
    /// Returns all of them, or the first two.
    fn of<T>(self, all: &[T]) -> &[T] {
        if self.smoke { &all[..all.len().min(2)] } else { all }
    }

    fn times(self, usual: usize) -> usize {
        if self.smoke { (usual / 100).max(1) } else { usual }
    }
}

#[derive(Serialize, Deserialize)]
enum Task {
    Crowd(processes::Crowd),
    Load(reality::Load),
    Waiters(waiters::Waiters),
}

#[tokio::main]
async fn main() {
    match child::enabled::<Task>() {
        Some(child::Env { task: Task::Crowd(crowd), .. }) => return processes::be_one(crowd).await,
        Some(child::Env { task: Task::Load(load), .. }) => return reality::be_one(load).await,
        Some(child::Env { task: Task::Waiters(waiters), .. }) => return waiters::be_some(waiters).await,
        None => {}
    }
    let args: Vec<String> = env::args().skip(1).collect();
    let smoke = args.iter().any(|arg| arg == "--test") || !args.iter().any(|arg| arg == "--bench");
    let (extent, began) = (Extent { smoke }, Instant::now());
    let wanted: Vec<_> = args.iter().filter(|arg| !arg.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|wanted| *wanted == name);
    for name in
        ["costs", "fills", "callers", "keys", "threads", "processes", "waiters", "payloads", "misses", "reality"]
    {
        if !is_wanted(name) {
            continue;
        }
        println!("\n### {name}\n");
        match name {
            "costs" => costs::measure(extent).await,
            "fills" => fills::measure(extent).await,
            "callers" => callers::of_one_key(extent).await,
            "keys" => callers::of_many_keys(extent).await,
            "threads" => threads::measure(extent).await,
            "processes" => processes::measure(extent).await,
            "waiters" => waiters::measure(extent).await,
            "payloads" => payloads::measure(extent).await,
            "misses" => misses::measure(extent).await,
            _ => reality::measure(extent).await,
        }
    }
    println!("\n{:.0} s", began.elapsed().as_secs_f64());
}
