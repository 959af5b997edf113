//! Simulation: the real engine, whole fleets of it, over scripted faults, from a seed.
//!
//! Each seed draws a [`Plan`](plan::Plan): two to four processes over one server, callers of every kind, invalidations,
//! and what goes wrong. It is run on one thread in virtual time, and whatever the outcome, what the guard guarantees must
//! hold of it ([`check`](mod@check)). The same seed is the same run, to the millisecond and the line.
//!
//! It finds what is taken out of the engine or the store, at these seeds of those below 10,000:
//!
//! | switched off | seed | what does not hold |
//! |---|---|---|
//! | the fence of a fill | 7 | stored without the right to it |
//! | the stamp in the fence | 47 | the same, after a late copy of a question |
//! | the end of the lease in an invalidation | 7 | stored without the right to it |
//! | a flight that is dropped releases those who joined | 48 | an answer in time |
//! | an invalidation makes flights unjoinable | 118 | nothing from before an invalidation |
//! | what the store says of the entry at hand | 7201 | the same, when the fetch fails |
//! | a lease that is dropped is given back | 372 | nothing is left |
//! | polls, and the look at the end of the lease | 13 | an answer in time |
//! | the heartbeat | 17 | one call in the fleet |
//! | `do_not_store` is not stored | 13 | shared with those who waited only |
//! | `private` is not shared | 1 | shared with nobody |
//!
//! Seeds move when plans are drawn differently. Two mechanisms it cannot miss, as others stand behind them: the answer
//! to `abandon` before a stale entry stands in, and local flights that began before their caller asked. They have tests
//! of their own.
//!
//! `STAMPEDE_SIM_SEEDS=100000` runs more of them, `STAMPEDE_SIM_SEED=123` runs that one and prints what happened.
#![allow(clippy::disallowed_methods, reason = "tests make their own time and randomness")]

#[path = "../support/mod.rs"]
mod support;

mod check;
mod plan;
mod run;
mod world;

use plan::Plan;
use run::{Outcome, run};
use std::{
    env,
    fmt::Write,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    thread,
    time::Duration,
};

#[test]
fn whatever_happens_what_is_guaranteed_holds() {
    let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    // Before any virtual clock runs ahead: timestamps count from here.
    let _ = stampede_guard::store::Timestamp::now();
    if let Some(seed) = number("STAMPEDE_SIM_SEED") {
        println!("{}", story(seed));
        assert_eq!(holds(seed), Ok(()));
        return;
    }
    let (next, seeds) = (AtomicU64::new(0), number("STAMPEDE_SIM_SEEDS").unwrap_or(SEEDS));
    let worker = || {
        let mut seeds = std::iter::repeat_with(|| next.fetch_add(1, Relaxed)).take_while(|seed| *seed < seeds);
        seeds.find_map(|seed| holds(seed).err().map(|what| (seed, what)))
    };
    let failed = thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(2, usize::from);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().filter_map(|worker| worker.join().expect("no panic")).min()
    });
    if let Some((seed, what)) = failed {
        panic!(
            "seed {seed}: {what}\nagain: STAMPEDE_SIM_SEED={seed} cargo test --all-features --test sim -- --nocapture"
        );
    }
}

/// Seen to fail with `tokio::sync::watch` in place of `src/watch.rs`, which wakes in random order.
#[test]
fn a_seed_repeats_itself() {
    let _ = stampede_guard::store::Timestamp::now();
    for seed in 0..200 {
        let [one, other] = [(); 2].map(|()| lines(&run(seed, &Plan::of(seed))));
        assert_eq!(one, other, "seed {seed}");
    }
}

fn holds(seed: u64) -> Result<(), String> {
    let plan = Plan::of(seed);
    let outcome =
        catch_unwind(AssertUnwindSafe(|| run(seed, &plan))).map_err(|_| "the simulation panicked".to_owned())?;
    check::check(&plan, &outcome)
}

/// All that was planned and all that happened.
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

/// What callers, origin and server saw.
fn lines(outcome: &Outcome) -> Vec<(Duration, String)> {
    let server = outcome.history.iter().map(|event| (event.at, format!("    {event}")));
    outcome.record.trace.iter().cloned().chain(server).collect()
}

/// A minute of a debug build on two cores that have other things to do.
const SEEDS: u64 = 10_000;
