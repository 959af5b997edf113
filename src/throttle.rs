//! A bound on how often something is reported.

use crate::clock::Timestamp;
use std::{
    sync::atomic::{AtomicI64, Ordering::Relaxed},
    time::Duration,
};

/// Lets one report pass per minute. What is reported may occur with each request.
pub(crate) struct Throttle {
    /// When the last report passed, in microseconds of [`Timestamp`]. The smallest number before the first one.
    last: AtomicI64,
}

impl Throttle {
    /// Reports whether a report may pass now, and counts it if so. Of several threads at the same time one may report.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        let last = self.last.load(Relaxed);
        now.since(Timestamp::from_micros(last)) >= PAUSE
            && self.last.compare_exchange(last, now.as_micros(), Relaxed, Relaxed).is_ok()
    }
}

impl Default for Throttle {
    fn default() -> Self {
        Self { last: AtomicI64::new(i64::MIN) }
    }
}

/// Minimum time between two reports.
const PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttle_lets_one_report_pass_per_minute() {
        let throttle = Throttle::default();
        let at = |seconds: i64| throttle.is_due(Timestamp::from_micros(seconds * 1_000_000));
        let passed = [-70, -60, -11, -10, 0, 49, 50, 51].map(at);
        assert_eq!(passed, [true, false, false, true, false, false, true, false]);
    }
}
