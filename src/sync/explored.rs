//! Threads under control: `cargo test --lib schedules`. In unit tests nothing else may use these: they panic outside of
//! [`explore`].
//!
//! A program is run again and again, each time under another schedule of its threads and tasks. They take turns where one
//! of them takes or gives back a lock, and where it awaits. What lies between is one step, a call of tokio's `Notify` too:
//! tokio explores that itself (its `loom_notify`), and between two calls there is always a lock. Memory orderings are not
//! explored; here everything shared is behind a lock.
//!
//! A program may not depend on anything else: no time that passes, no iteration over a map of several keys.
//!
//! | variable | default | |
//! |---|---|---|
//! | `SCHEDULES` | 1000 | so many schedules at random, and as many with few preemptions (PCT), of each program |
//! | `SHUTTLE_RANDOM_SEED` | 1 | other ones |
//! | `SCHEDULE` | | this one only, as printed when it failed; name its test |

pub(crate) use shuttle::sync::{Mutex, MutexGuard};

use shuttle::{
    Runner,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
};
use std::env;

/// Runs the program under many schedules. One that panics or in which nobody can go on is printed.
pub(crate) fn explore(program: impl Fn() + Clone + Send + Sync + 'static) {
    if let Ok(schedule) = env::var("SCHEDULE") {
        return shuttle::replay(program, &schedule);
    }
    let schedules = env::var("SCHEDULES").map_or(1000, |text| text.parse().expect("SCHEDULES is a number"));
    run(RandomScheduler::new_from_seed(SEED, schedules), program.clone());
    run(PctScheduler::new_from_seed(SEED, PREEMPTIONS, schedules), program);
}

fn run(scheduler: impl Scheduler + 'static, program: impl Fn() + Send + Sync + 'static) {
    let _ = Runner::new(scheduler, shuttle::Config::default()).run(program);
}

/// One of these, drawn anew for each schedule and recorded with it.
pub(crate) fn any<T: Copy>(of: &[T]) -> T {
    of[thread_rng().gen_range(0..of.len())]
}

/// Fixed, so that what passed once passes again.
const SEED: u64 = 1;
const PREEMPTIONS: usize = 3;
