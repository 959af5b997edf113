//! What a process is besides its flights.

use crate::{
    flight::Place,
    load::{Time, WINDOW},
};
use fastrand::Rng;
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Process {
    /// The breaker: until when Redis is not asked, if it did not answer in time.
    shut: Option<Time>,
    since: Time,
    /// Computations without Redis: those that run, those that wait for one of the places.
    pub(crate) local: u32,
    pub(crate) queued: VecDeque<Place>,
}

/// Whether Redis is asked.
pub(crate) enum Gate {
    Ask,
    Shut,
    /// Not by this one, but somebody sees whether it answers again.
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
