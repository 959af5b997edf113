//! The origin, with a limited number of workers.

use crate::{flight::Place, load::Time};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Origin {
    busy: u32,
    queue: VecDeque<(Place, Time)>,
    pub(crate) calls: u64,
    /// Total duration of all calls, including queued ones.
    pub(crate) work: f64,
}

impl Origin {
    /// Adds a call with this duration. Returns whether it starts now.
    pub(crate) fn call(&mut self, place: Place, takes: Time, workers: u32) -> bool {
        self.calls += 1;
        self.work += takes as f64;
        let begins = self.busy < workers;
        if begins {
            self.busy += 1;
        } else {
            self.queue.push_back((place, takes));
        }
        begins
    }

    /// Ends one call. Returns the next call of the queue and its duration.
    pub(crate) fn over(&mut self) -> Option<(Place, Time)> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.busy -= 1;
        }
        next
    }
}
