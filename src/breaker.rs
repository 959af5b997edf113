//! Whether the store is asked at all. Pure: the clock and the draw are handed in.

use crate::clock::Timestamp;
use std::time::Duration;

/// Keeps requests from waiting for a store that does not answer.
///
/// The first operation that is not answered in time opens it, and so do [`ERRORS`] that follow one another without a
/// success. While it is open nobody waits for the store; at the end of each window one question is asked behind, and
/// an answer closes it. So an outage costs those who are under way when it begins, and nobody afterwards.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Breaker {
    Closed { errors: u32, last: Option<Timestamp>, healed: Option<Timestamp> },
    Open { since: Timestamp, until: Timestamp },
}

/// What whoever wants to ask the store does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    Ask,
    /// Do without.
    Shut,
    /// Do without, and see behind whether it answers again.
    Probe,
}

/// How an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    TimedOut,
    Error,
}

impl Breaker {
    pub(crate) fn gate(&mut self, now: Timestamp, draw: f64) -> Gate {
        match self {
            Self::Closed { .. } => Gate::Ask,
            Self::Open { until, .. } if now < *until => Gate::Shut,
            // The window begins anew: a probe that is never heard of again is followed by another.
            Self::Open { until, .. } => {
                *until = window(now, draw);
                Gate::Probe
            }
        }
    }

    /// The store answered, if only that it will not, what it was asked then. What it was asked before the breaker opened
    /// does not close it: others that were asked with it have not been answered.
    pub(crate) fn answered(&mut self, asked: Timestamp, now: Timestamp) {
        match self {
            Self::Open { since, .. } if asked < *since => {}
            Self::Open { .. } => *self = Self::closed(Some(now)),
            Self::Closed { healed, .. } => {
                *self = Self::closed(healed.filter(|healed| now.since(*healed) < HEALED));
            }
        }
    }

    /// The store did not answer what it was asked then. `true` if that opens it.
    pub(crate) fn failed(&mut self, trouble: Trouble, asked: Timestamp, now: Timestamp, draw: f64) -> bool {
        let Self::Closed { errors, last, healed } = self else { return false };
        if healed.is_some_and(|healed| asked < healed) {
            return false; // it has answered since
        }
        // All that is under way on a connection fails with it: that is one error.
        if last.is_none_or(|last| now.since(last) >= TOGETHER) {
            *errors += 1;
            *last = Some(now);
        }
        let opens = trouble == Trouble::TimedOut || *errors >= ERRORS;
        if opens {
            *self = Self::Open { since: now, until: window(now, draw) };
        }
        opens
    }

    /// Whether it is as good as new.
    pub(crate) fn is_calm(&self) -> bool {
        matches!(self, Self::Closed { errors: 0, healed: None, .. })
    }

    fn closed(healed: Option<Timestamp>) -> Self {
        Self::Closed { errors: 0, last: None, healed }
    }
}

fn window(now: Timestamp, draw: f64) -> Timestamp {
    now.after(WINDOW.mul_f64(0.5 + 0.5 * draw))
}

impl Default for Breaker {
    fn default() -> Self {
        Self::closed(None)
    }
}

/// So many errors in a row open it,
const ERRORS: u32 = 5;
/// where those that come together are one.
const TOGETHER: Duration = Duration::from_millis(20);
/// It stays open for half of this to all of it, at random, so that the processes of a fleet do not come back as one.
const WINDOW: Duration = Duration::from_secs(1);
/// For so long it remembers when it closed: what was asked before may fail until then.
const HEALED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_micros(0).after(Duration::from_millis(ms))
    }

    #[test]
    fn the_first_timeout_opens_it_and_a_probe_that_is_answered_closes_it() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.gate(at(0), 0.0), Gate::Ask);
        assert!(breaker.failed(Trouble::TimedOut, at(0), at(0), 0.0));
        assert_eq!(breaker.gate(at(499), 0.0), Gate::Shut);
        assert_eq!(breaker.gate(at(500), 0.0), Gate::Probe);
        assert_eq!(breaker.gate(at(501), 0.0), Gate::Shut, "one probe at a time");
        assert!(!breaker.failed(Trouble::TimedOut, at(750), at(750), 0.0), "it is open already");
        assert_eq!(breaker.gate(at(1000), 0.0), Gate::Probe);
        breaker.answered(at(1000), at(1000));
        assert_eq!(breaker.gate(at(1010), 0.0), Gate::Ask);
    }

    #[test]
    fn an_answer_to_what_was_asked_before_does_not_close_it() {
        let mut breaker = Breaker::default();
        breaker.failed(Trouble::TimedOut, at(250), at(250), 0.0);
        breaker.answered(at(249), at(249));
        assert_eq!(breaker.gate(at(260), 0.0), Gate::Shut);
        breaker.answered(at(260), at(270));
        assert_eq!(breaker.gate(at(270), 0.0), Gate::Ask);
        assert!(!breaker.failed(Trouble::TimedOut, at(100), at(350), 0.0), "nor does that open it again");
        assert!(breaker.failed(Trouble::TimedOut, at(300), at(550), 0.0));
    }

    #[test]
    fn errors_that_come_together_are_one_and_a_success_forgets_them() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(Trouble::Error, at(0), at(0), 0.0));
        }
        for n in 1..4 {
            assert!(!breaker.failed(Trouble::Error, at(n * 20), at(n * 20), 0.0));
        }
        breaker.answered(at(70), at(70));
        assert!(breaker.is_calm(), "{breaker:?}");
        let opened = (0..5)
            .map(|n| breaker.failed(Trouble::Error, at(1000 + n * 20), at(1000 + n * 20), 0.0))
            .collect::<Vec<_>>();
        assert_eq!(opened, [false, false, false, false, true]);
    }

    #[test]
    fn a_probe_that_is_never_heard_of_is_followed_by_another() {
        let mut breaker = Breaker::default();
        breaker.failed(Trouble::TimedOut, at(0), at(0), 0.0);
        let probes = (0..=10).filter(|n| breaker.gate(at(n * 500), 0.0) == Gate::Probe).count();
        assert_eq!(probes, 10);
    }

    proptest! {
        /// I6: however requests fall, at most one operation in half a second is let through to a dead store, behind.
        #[test]
        fn a_dead_store_is_asked_once_per_window(steps in prop::collection::vec((0_u64..50, 0.0_f64..1.0), 1..400)) {
            let (mut breaker, mut now, mut last) = (Breaker::default(), 0, None);
            breaker.failed(Trouble::TimedOut, at(0), at(0), 0.0);
            for (pause, draw) in steps {
                now += pause;
                match breaker.gate(at(now), draw) {
                    Gate::Ask => prop_assert!(false, "nothing has answered"),
                    Gate::Shut => {}
                    Gate::Probe => {
                        prop_assert!(now - last.unwrap_or(0) >= 500);
                        last = Some(now);
                        breaker.failed(Trouble::TimedOut, at(now), at(now), draw);
                    }
                }
            }
        }
    }
}
