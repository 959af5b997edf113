//! Explored schedules: `cargo test --lib schedules`.
//!
//! A program is run many times, each time under another schedule of its threads and tasks. The schedule may switch
//! wherever a thread or task takes or releases a lock, and wherever a task awaits. The code in between is one step. A
//! call of tokio's `Notify` is part of a step too: tokio explores it itself (`loom_notify`), and between two calls
//! there is always a lock. Memory orderings are not explored; all shared data of these programs is protected by a lock,
//! except for `is_queued` of a shared future, which has the strictest ordering.
//!
//! A program may not depend on anything else: no passing of time, no iteration over a map of several keys.
//!
//! | variable | default | |
//! |---|---|---|
//! | `SCHEDULES` | 1000 | number of random schedules of each program, and of schedules with few preemptions (PCT) |
//! | `SHUTTLE_RANDOM_SEED` | 1 | seed of the schedules |
//! | `SCHEDULE` | | run only this schedule, as printed by a failure; name its test |

use shuttle::{
    Runner,
    current::try_get_current_task,
    rand::{Rng, thread_rng},
    scheduler::{PctScheduler, RandomScheduler, Scheduler},
    sync as explored, thread,
};
use std::{
    env,
    ops::{Deref, DerefMut},
    sync::{self, LockResult, PoisonError},
    time::Duration,
};

/// A mutex of std. Inside [`explore`], where shuttle chooses the task that runs, it takes a lock of shuttle's first.
/// Outside, that lock would panic.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    turn: explored::Mutex<()>,
    value: sync::Mutex<T>,
}

/// The fields are dropped in this order, so that the value is free before another task gets its turn.
pub(crate) struct MutexGuard<'a, T> {
    value: sync::MutexGuard<'a, T>,
    _turn: Turn<'a>,
}

struct Turn<'a>(Option<explored::MutexGuard<'a, ()>>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { turn: explored::Mutex::new(()), value: sync::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let turn = try_get_current_task().map(|_| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(MutexGuard { value: self.value.lock().unwrap_or_else(PoisonError::into_inner), _turn: Turn(turn) })
    }
}

impl Drop for Turn<'_> {
    /// Releases the lock, and then lets other tasks run. Shuttle does so only before the release, so that a call of
    /// `Notify` would be one step with the lock before it.
    fn drop(&mut self) {
        if self.0.take().is_some() {
            thread::sleep(Duration::ZERO); // a switch: time does not pass
        }
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Runs the program under many schedules. Prints a schedule that panics or deadlocks.
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

/// Returns one of these values, drawn for each schedule and recorded with it.
pub(crate) fn any<T: Copy>(of: &[T]) -> T {
    of[thread_rng().gen_range(0..of.len())]
}

/// Fixed, so that a test that passed once passes again.
const SEED: u64 = 1;
const PREEMPTIONS: usize = 3;
