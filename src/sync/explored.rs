//! Threads under control: `cargo test --lib schedules`. In unit tests nothing else may use these: they panic outside of
//! [`explore`].
//!
//! A program is run again and again, each time under another schedule of its threads and tasks. They take turns where one
//! of them takes or gives back a lock, where it is about to call a watch channel, and where it awaits. What lies between
//! is one step, the inside of tokio's channel too: tokio explores that itself (its `loom_watch`), and what matters to us
//! is in which order the calls come. Memory orderings are not explored; here everything shared is behind a lock.
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
use std::{env, time::Duration};

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

/// Lets another thread in.
fn turn() {
    shuttle::thread::sleep(Duration::ZERO); // no time is modelled: it is a switch, and no hint to prefer others
}

/// tokio's channel, with a turn before every call.
pub(crate) mod watch {
    use super::turn;
    use std::ops::{Deref, DerefMut};
    use tokio::sync::watch;

    #[derive(Default)]
    pub(crate) struct Sender<T>(watch::Sender<T>);

    pub(crate) struct Receiver<T>(watch::Receiver<T>);

    impl<T> Sender<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(watch::Sender::new(value))
        }

        pub(crate) fn subscribe(&self) -> Receiver<T> {
            Receiver((**self).subscribe())
        }
    }

    impl<T> Deref for Sender<T> {
        type Target = watch::Sender<T>;

        fn deref(&self) -> &Self::Target {
            turn();
            &self.0
        }
    }

    impl<T> Deref for Receiver<T> {
        type Target = watch::Receiver<T>;

        fn deref(&self) -> &Self::Target {
            turn();
            &self.0
        }
    }

    impl<T> DerefMut for Receiver<T> {
        fn deref_mut(&mut self) -> &mut Self::Target {
            turn();
            &mut self.0
        }
    }
}
