//! Simulation: the real engine, in fleets of several nodes, with scripted faults, from a seed.
//!
//! Each seed draws a [`Plan`](plan::Plan): two to four nodes over one server, callers of every kind, invalidations
//! and faults. It runs on one thread in virtual time. Whatever happens, the guarantees of the guard must hold
//! ([`check`](mod@check)). The same seed repeats the same run, to the millisecond and the line.
//!
//! The simulation notices when one of these mechanisms of the engine or the store is switched off, each within the seeds
//! of a usual run:
//!
//! | switched off | seed | what does not hold |
//! |---|---|---|
//! | the fence of a fill | 14 | stored without the right to it |
//! | the stamp in the fence | 292 | the same, after a late copy of a request |
//! | the end of the lease in an invalidation | 14 | stored without the right to it |
//! | a flight that is dropped releases its waiters | 133 | a waiter asks the store |
//! | an invalidation makes flights unjoinable | 865 | no value from before an invalidation |
//! | a flight that receives an invalidation may not be joined | 31 | the same, once a node has received it |
//! | the store's reply about the stale candidate | 6465 | no value from before an invalidation, after a failed fetch |
//! | a lease that is dropped is released | 7 | nothing is left |
//! | polls, and the timer for the end of the lease | 42 | an answer in time |
//! | the heartbeat | 12 | one call in the fleet |
//! | a lease is kept after its end | 2339 | one call in the fleet |
//! | the mark of a lease that has ended | 5213 | the same |
//! | a waiter is rejected, and does not fetch | 32 | one call in the fleet |
//! | a leader that has heard of a lease waits while the store is silent | 121 | one call in the fleet |
//! | a flight without callers leaves the wait, and takes no lease | 1 | a call is for a caller |
//! | a flight without callers does not continue after a question | 18 | the same |
//! | `do_not_store` is not stored | 9 | shared with waiters only |
//! | `private` is not shared | 4 | not shared |
//! | a read goes on when its caller leaves | 26 | one call in the fleet; without that property 52, a fresh hit in time |
//!
//! Each field of a plan is drawn [independently](dice::Dice), so a setting that goes leaves the rest of each plan. One
//! mechanism is redundant here, so removing it goes unnoticed: the reply to `release` before a stale entry is served. It
//! has tests of its own.
//!
//! `STAMPEDE_SIM_SEEDS=100000` runs that number of seeds. `STAMPEDE_SIM_SEED=123` runs that seed and prints all events.
//! `STAMPEDE_SIM_REPORT=path` writes the [figures](report) of each seed, so that two builds can be compared.
#![cfg(all(feature = "bincode", feature = "testing", feature = "unstable"))]
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

mod calls;
mod check;
mod dice;
mod plan;
mod report;
mod run;
mod shown;
mod world;

use plan::Plan;
use report::Figures;
use run::{Outcome, run};
use shown::Shown;
use stampede_guard_support as support;
use std::{
    env,
    fmt::Write,
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

#[test]
fn guarantees_hold_in_every_simulation() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    // Before any virtual clock advances, because timestamps count from here.
    let _ = stampede_guard::store::Timestamp::now();
    if let Some(seed) = number("STAMPEDE_SIM_SEED") {
        println!("{}", story(seed));
        assert_eq!(checked(seed).map(drop), Ok(()));
        return;
    }
    let report = env::var_os("STAMPEDE_SIM_REPORT");
    let (next, seeds) = (AtomicU64::new(0), number("STAMPEDE_SIM_SEEDS").unwrap_or(SEEDS));
    // A report has all seeds. Otherwise a violated property ends the worker.
    let worker = || {
        let mut results = Vec::new();
        while let Some(seed) = Some(next.fetch_add(1, Relaxed)).filter(|seed| *seed < seeds) {
            let result = checked(seed);
            let is_last = result.is_err() && report.is_none();
            results.push((seed, result));
            if is_last {
                break;
            }
        }
        results
    };
    let mut results: Vec<_> = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(2, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect()
    });
    results.sort_by_key(|(seed, _)| *seed);
    if let Some(path) = report {
        let figures = results.iter().filter_map(|(seed, result)| Some((*seed, result.as_ref().ok()?)));
        fs::write(path, report::report(figures)).expect("the report can be written");
    }
    if let Some((seed, what)) = results.into_iter().find_map(|(seed, result)| Some((seed, result.err()?))) {
        panic!(
            "seed {seed}: {what}\nagain: STAMPEDE_SIM_SEED={seed} cargo test --all-features --test sim -- --nocapture"
        );
    }
}

/// Seen to fail with `tokio::sync::watch`, which wakes in random order, in place of `src/sync/watch.rs`.
#[test]
fn a_seed_repeats_itself() {
    let _ = stampede_guard::store::Timestamp::now();
    for seed in 0..200 {
        let [one, other] = [(); 2].map(|()| lines(&run(seed, &Plan::of(seed))));
        assert_eq!(one, other, "seed {seed}");
    }
}

/// Returns the figures of a seed, or the first property that does not hold.
fn checked(seed: u64) -> Result<Figures, String> {
    let plan = Plan::of(seed);
    let outcome =
        catch_unwind(AssertUnwindSafe(|| run(seed, &plan))).map_err(|_| "the simulation panicked".to_owned())?;
    check::check(&plan, &outcome)?;
    Ok(Figures::of(&plan, &outcome))
}

/// Returns the plan and all events of a seed.
fn story(seed: u64) -> String {
    let plan = Plan::of(seed);
    let outcome = run(seed, &plan);
    let mut lines = lines(&outcome);
    lines.sort_by_key(|(at, _)| *at);
    let mut story = format!("{plan:#?}\n");
    for (at, line) in lines {
        let _ = writeln!(story, "{:>6} ms  {line}", at.as_millis());
    }
    let _ = writeln!(story, "{:?}", outcome.rest);
    story
}

/// Returns the events seen by callers, origin and server.
fn lines(outcome: &Outcome) -> Vec<(Duration, String)> {
    let server = outcome.history.iter().map(|event| (event.at, format!("    {}", Shown(event))));
    outcome.record.trace.iter().cloned().chain(server).collect()
}

/// Takes a minute in a debug build on two busy cores.
const SEEDS: u64 = 11_000;
