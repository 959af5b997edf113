//! The state of a process besides its flights.

use crate::{
    flight::Place,
    load::{Time, WINDOW},
};
use fastrand::Rng;
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Process {
    /// The circuit breaker: the time until which Redis is not asked after a timeout.
    shut: Option<Time>,
    since: Time,
    /// Local fetches that run, and flights that queue for a permit.
    pub(crate) local: u32,
    pub(crate) queued: VecDeque<Place>,
}

/// The decision of the circuit breaker.
pub(crate) enum Gate {
    Ask,
    Shut,
    /// Redis is not asked for this flight, but a `PING` probes whether it answers again.
    Probe,
}

impl Process {
    pub(crate) fn gate(&mut self, now: Time, rng: &mut Rng) -> Gate {
        match self.shut {
            None => Gate::Ask,
            Some(until) if now < until => Gate::Shut,
            Some(_) => {
                self.shut = Some(window(now, rng));
                Gate::Probe
            }
        }
    }

    pub(crate) fn answered(&mut self, asked: Time) {
        if asked >= self.since {
            self.shut = None;
        }
    }

    pub(crate) fn timed_out(&mut self, now: Time, rng: &mut Rng) {
        if self.shut.is_none() {
            (self.since, self.shut) = (now, Some(window(now, rng)));
        }
    }
}

fn window(now: Time, rng: &mut Rng) -> Time {
    now + (WINDOW * (0.5 + 0.5 * rng.f64())) as Time
}
