//! The circuit breakers of one engine: one for each part of the store that fails on its own.

use super::Place;
use crate::{
    breaker::{Breaker, Gate, Trouble},
    clock::{self, Timestamp},
    store::StoreError,
    telemetry,
};
use std::{
    collections::HashMap,
    error, fmt,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::sync::{Notify, futures::Notified};

/// A part of the store, and how long whoever asks waits for it: what is too slow for a hasty clone is no reason for the
/// others to do without, and its probes would say that of it for ever.
type Part = (u16, Duration);

/// Breakers by the part of the store. Calm ones are not in the table.
#[derive(Default)]
pub(super) struct Gates {
    troubled: Mutex<HashMap<Part, Breaker>>,
    /// Whether the table has anything in it: a store in good health costs one load per operation.
    trouble: AtomicBool,
    opened: Notify,
}

impl Gates {
    fn with<T>(&self, part: Part, look: impl FnOnce(&mut Breaker) -> T) -> T {
        // Nothing in here panics while it holds the lock.
        let mut troubled = self.troubled.lock().unwrap_or_else(PoisonError::into_inner);
        let breaker = troubled.entry(part).or_default();
        let seen = look(breaker);
        if breaker.is_calm() {
            troubled.remove(&part);
        }
        self.trouble.store(!troubled.is_empty(), Relaxed);
        seen
    }

    /// Whoever waits for another process learns with the next breaker that opens, from now on, that the store is gone.
    pub(super) fn opened(&self) -> Notified<'_> {
        self.opened.notified()
    }

    fn is_calm(&self) -> bool {
        !self.trouble.load(Relaxed)
    }
}

impl Place {
    /// Whether the store is to be asked. At the end of a window it is tried behind: nobody waits for that.
    pub(super) fn gate(&self) -> Result<(), StoreError> {
        if self.engine.gates.is_calm() {
            return Ok(());
        }
        let now = Timestamp::now();
        match self.with_breaker(|breaker| breaker.gate(now, clock::draw())) {
            Gate::Ask => Ok(()),
            Gate::Shut => Err(StoreError::new(Shut)),
            Gate::Probe => {
                let place = self.clone();
                self.engine
                    .tasks
                    .spawn(async move { place.within("probe", place.get(std::slice::from_ref(&place.at))).await });
                Err(StoreError::new(Shut))
            }
        }
    }

    /// Takes note of what an operation came to that was begun then.
    pub(super) fn note<T>(&self, answer: &Result<T, StoreError>, asked: Timestamp) {
        let trouble = match answer {
            Err(error) if error.is_timed_out() => Trouble::TimedOut,
            Err(error) if !error.is_refused() => Trouble::Error,
            _ if self.engine.gates.is_calm() => return,
            // A store that says no is alive.
            _ => {
                let now = Timestamp::now();
                return self.with_breaker(|breaker| breaker.answered(asked, now));
            }
        };
        let now = Timestamp::now();
        if self.with_breaker(|breaker| breaker.failed(trouble, asked, now, clock::draw())) {
            telemetry::breaker_opened(&self.engine.stats, &self.at);
            self.engine.gates.opened.notify_waiters();
        }
    }

    fn with_breaker<T>(&self, look: impl FnOnce(&mut Breaker) -> T) -> T {
        let part = (self.engine.store.part(&self.at), self.config.op_timeout);
        self.engine.gates.with(part, look)
    }
}

/// The store was not asked.
#[derive(Debug)]
struct Shut;

impl fmt::Display for Shut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it did not answer lately, and is not asked for a moment")
    }
}

impl error::Error for Shut {}
