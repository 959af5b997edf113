//! The counters of a simulated fleet.

use crate::load::Time;

/// A logarithmic histogram of times, each within 1.6 %.
#[derive(Default)]
pub(crate) struct Times {
    counts: Vec<u64>,
    total: u64,
}

impl Times {
    pub(crate) fn add(&mut self, took: Time) {
        let at = ((took.max(1) as f64).ln() * STEPS) as usize;
        if at >= self.counts.len() {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.total += 1;
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Returns the time within which this part of all times lies, in nanoseconds; 0 if there are none.
    pub(crate) fn quantile(&self, part: f64) -> f64 {
        let mut left = (self.total as f64 * part).ceil() as u64;
        for (at, count) in self.counts.iter().enumerate() {
            if left <= *count && left > 0 {
                return ((at as f64 + 0.5) / STEPS).exp();
            }
            left = left.saturating_sub(*count);
        }
        0.0
    }

    pub(crate) fn and(&self, other: &Self) -> Self {
        let length = self.counts.len().max(other.counts.len());
        let of = |times: &Self, at: usize| times.counts.get(at).copied().unwrap_or_default();
        let counts = (0..length).map(|at| of(self, at) + of(other, at)).collect();
        Self { counts, total: self.total + other.total }
    }
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) requests: u64,
    pub(crate) near_hits: u64,
    /// Answered from the cache.
    pub(crate) hits: Times,
    /// Answered by a fetch: of its own, joined, or waited for.
    pub(crate) misses: Times,
    pub(crate) timeouts: u64,
}

const STEPS: f64 = 64.0;
