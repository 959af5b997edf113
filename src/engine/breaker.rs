//! The circuit breakers of one engine, one per failure domain of the store. A [`Breaker`] is pure: the clock and the
//! random numbers are parameters.

use crate::{
    clock::Timestamp,
    sync::mutex::Mutex,
    telemetry::{self, OpenBreaker},
};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::{Notify, futures::Notified};

/// A circuit breaker: keeps requests from waiting for a store that does not answer.
///
/// The breaker opens at the first timeout, or after [`ERRORS`] errors without a success in between. While it is open no
/// request waits for the store. At the end of each window one probe is sent in the background, and a reply closes the
/// breaker. So an outage delays the requests in flight when it begins, and none afterwards.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Breaker {
    Closed { errors: u32, last: Option<Timestamp>, closed_at: Option<Timestamp> },
    Open { since: Timestamp, until: Timestamp },
}

/// The permission of one operation on the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Permit {
    Allow,
    /// Denied: continue without the store.
    Deny,
    /// Denied, but probe in the background whether the store answers again.
    Probe,
}

/// The way an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    TimedOut,
    Error,
}

impl Breaker {
    pub(crate) fn permit(&mut self, now: Timestamp, random: f64) -> Permit {
        match self {
            Self::Closed { .. } => Permit::Allow,
            Self::Open { until, .. } if now < *until => Permit::Deny,
            // The window starts again: if a probe never ends, a second one follows.
            Self::Open { until, .. } => {
                *until = window(now, random);
                Permit::Probe
            }
        }
    }

    /// Records a reply, a refusal included, to an operation that was sent at `sent_at`. A reply to an operation that
    /// was sent before the breaker opened does not close it, because other operations of that time are still without a
    /// reply. Returns for how long the breaker was open if the reply closes it.
    pub(crate) fn answered(&mut self, sent_at: Timestamp, now: Timestamp) -> Option<Duration> {
        match self {
            Self::Open { since, .. } if sent_at < *since => None,
            Self::Open { since, .. } => {
                let open_for = now.since(*since);
                *self = Self::closed(Some(now));
                Some(open_for)
            }
            Self::Closed { closed_at, .. } => {
                *self = Self::closed(closed_at.filter(|closed_at| now.since(*closed_at) < CLOSE_REMEMBERED));
                None
            }
        }
    }

    /// Records a failed operation that was sent at `sent_at`. Returns `true` if it opens the breaker.
    pub(crate) fn failed(&mut self, kind: FailureKind, sent_at: Timestamp, now: Timestamp, random: f64) -> bool {
        let Self::Closed { errors, last, closed_at } = self else { return false };
        if closed_at.is_some_and(|closed_at| sent_at < closed_at) {
            return false; // the store has answered since
        }
        // All operations in flight on a connection fail with it: that is one error.
        if last.is_none_or(|last| now.since(last) >= TOGETHER) {
            *errors += 1;
            *last = Some(now);
        }
        let opens = kind == FailureKind::TimedOut || *errors >= ERRORS;
        if opens {
            *self = Self::Open { since: now, until: window(now, random) };
        }
        opens
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// Reports whether operations have failed since the last reply.
    pub(crate) fn is_failing(&self) -> bool {
        !matches!(self, Self::Closed { errors: 0, .. })
    }

    /// Reports whether nothing is recorded.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Closed { errors: 0, closed_at: None, .. })
    }

    fn closed(closed_at: Option<Timestamp>) -> Self {
        Self::Closed { errors: 0, last: None, closed_at }
    }
}

fn window(now: Timestamp, random: f64) -> Timestamp {
    now.after(WINDOW.mul_f64(0.5 + 0.5 * random))
}

impl Default for Breaker {
    fn default() -> Self {
        Self::closed(None)
    }
}

/// A failure domain of the store, with the `store_timeout` of the clone. A store may be too slow only for a clone
/// with a short timeout. That must not cut off the other clones, and probes with the short timeout would never succeed.
pub(super) type FailureDomain = (u16, Duration);

/// A breaker, and its part in the gauge of open breakers.
#[derive(Default)]
struct Recorded {
    breaker: Breaker,
    open: Option<OpenBreaker>,
}

/// The circuit breakers by failure domain. A breaker with nothing recorded is not in the table.
#[derive(Default)]
pub(super) struct Breakers {
    by_domain: Mutex<HashMap<FailureDomain, Recorded>>,
    /// Whether the store has answered, and the table is empty. So a healthy store costs one load per operation.
    is_idle: AtomicBool,
    has_answered: AtomicBool,
    opened: Notify,
}

impl Breakers {
    /// Accesses the breaker of the domain.
    pub(super) fn with<T>(&self, domain: FailureDomain, access: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut by_domain = self.by_domain.lock();
        let Recorded { breaker, open } = by_domain.entry(domain).or_default();
        let result = access(breaker);
        let opens = breaker.is_open() && open.is_none();
        if opens {
            *open = Some(telemetry::open_breaker());
        } else if !breaker.is_open() {
            *open = None;
        }
        if breaker.is_idle() {
            by_domain.remove(&domain);
        }
        self.is_idle.store(by_domain.is_empty() && self.has_answered.load(Relaxed), Relaxed);
        drop(by_domain);
        if opens {
            self.opened.notify_waiters(); // not under the lock, which who is woken takes
        }
        result
    }

    /// Records that the store has answered.
    pub(super) fn set_answered(&self) {
        self.has_answered.store(true, Relaxed);
    }

    /// Reports whether all domains have answered their last operation, if there was one, and whether a breaker is open.
    pub(super) fn state(&self) -> (Option<bool>, bool) {
        let by_domain = self.by_domain.lock();
        let is_failing = by_domain.values().any(|recorded| recorded.breaker.is_failing());
        let is_reachable = (is_failing || self.has_answered.load(Relaxed)).then_some(!is_failing);
        (is_reachable, by_domain.values().any(|recorded| recorded.breaker.is_open()))
    }

    /// Returns a future that resolves when the next breaker opens, so that leaders that wait for another process learn
    /// that the store is unavailable.
    pub(super) fn opened(&self) -> Notified<'_> {
        self.opened.notified()
    }

    /// Reports whether the store has answered, and all breakers are closed with nothing recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle.load(Relaxed)
    }
}

/// Number of consecutive errors that open the breaker.
const ERRORS: u32 = 5;
/// Time within which errors count as one.
const TOGETHER: Duration = Duration::from_millis(20);
/// Maximum time that the breaker stays open. Each time is random between half of this and all of it, so that not all
/// processes of a fleet return at once.
const WINDOW: Duration = Duration::from_secs(1);
/// Maximum time for which a breaker remembers when it closed. Until then, failures of operations that were sent before
/// it closed do not count.
const CLOSE_REMEMBERED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_micros(0).after(Duration::from_millis(ms))
    }

    #[test]
    fn breaker_opens_at_first_timeout_and_closes_at_answered_probe() {
        let mut breaker = Breaker::default();
        assert_eq!(breaker.permit(at(0), 0.0), Permit::Allow);
        assert!(breaker.failed(FailureKind::TimedOut, at(0), at(0), 0.0));
        assert_eq!(breaker.permit(at(499), 0.0), Permit::Deny);
        assert_eq!(breaker.permit(at(500), 0.0), Permit::Probe);
        assert_eq!(breaker.permit(at(501), 0.0), Permit::Deny, "one probe at a time");
        assert!(!breaker.failed(FailureKind::TimedOut, at(750), at(750), 0.0), "the breaker is open already");
        assert_eq!(breaker.permit(at(1000), 0.0), Permit::Probe);
        assert_eq!(breaker.answered(at(1000), at(1000)), Some(Duration::from_secs(1)));
        assert_eq!(breaker.answered(at(1005), at(1005)), None, "the breaker is closed already");
        assert_eq!(breaker.permit(at(1010), 0.0), Permit::Allow);
    }

    #[test]
    fn breaker_stays_open_at_reply_to_an_earlier_operation() {
        let mut breaker = Breaker::default();
        breaker.failed(FailureKind::TimedOut, at(250), at(250), 0.0);
        assert_eq!(breaker.answered(at(249), at(249)), None);
        assert_eq!(breaker.permit(at(260), 0.0), Permit::Deny);
        breaker.answered(at(260), at(270));
        assert_eq!(breaker.permit(at(270), 0.0), Permit::Allow);
        assert!(!breaker.failed(FailureKind::TimedOut, at(100), at(350), 0.0), "earlier failures do not open it");
        assert!(breaker.failed(FailureKind::TimedOut, at(300), at(550), 0.0));
    }

    #[test]
    fn breaker_counts_simultaneous_errors_once_until_a_success() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(FailureKind::Error, at(0), at(0), 0.0));
        }
        for n in 1..4 {
            assert!(!breaker.failed(FailureKind::Error, at(n * 20), at(n * 20), 0.0));
        }
        breaker.answered(at(70), at(70));
        assert!(breaker.is_idle(), "{breaker:?}");
        let opened = (0..5)
            .map(|n| breaker.failed(FailureKind::Error, at(1000 + n * 20), at(1000 + n * 20), 0.0))
            .collect::<Vec<_>>();
        assert_eq!(opened, [false, false, false, false, true]);
    }

    #[test]
    fn breaker_probes_again_when_a_probe_never_ends() {
        let mut breaker = Breaker::default();
        breaker.failed(FailureKind::TimedOut, at(0), at(0), 0.0);
        let probes = (0..=10).filter(|n| breaker.permit(at(n * 500), 0.0) == Permit::Probe).count();
        assert_eq!(probes, 10);
    }

    proptest! {
        /// I6: for any sequence of requests, at most one operation per half second reaches a dead store, in the
        /// background.
        #[test]
        fn breaker_probes_once_per_window(steps in prop::collection::vec((0_u64..50, 0.0_f64..1.0), 1..400)) {
            let (mut breaker, mut now, mut last) = (Breaker::default(), 0, None);
            breaker.failed(FailureKind::TimedOut, at(0), at(0), 0.0);
            for (pause, random) in steps {
                now += pause;
                match breaker.permit(at(now), random) {
                    Permit::Allow => prop_assert!(false, "the breaker closed without a reply"),
                    Permit::Deny => {}
                    Permit::Probe => {
                        prop_assert!(now - last.unwrap_or(0) >= 500);
                        last = Some(now);
                        breaker.failed(FailureKind::TimedOut, at(now), at(now), random);
                    }
                }
            }
        }
    }
}
