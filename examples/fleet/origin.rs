//! Where answers are computed, so many at once.

use crate::{flight::Place, load::Time};
use std::collections::VecDeque;

#[derive(Default)]
pub(crate) struct Origin {
    busy: u32,
    queue: VecDeque<(Place, Time)>,
    pub(crate) calls: u64,
    /// What all calls take, those that have yet to begin included.
    pub(crate) work: f64,
}

impl Origin {
    /// A call that takes that long; whether it begins now.
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

    /// One call is over. The next one, if any waits, and what it takes.
    pub(crate) fn over(&mut self) -> Option<(Place, Time)> {
        let next = self.queue.pop_front();
        if next.is_none() {
            self.busy -= 1;
        }
        next
    }
}
