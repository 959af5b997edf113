//! The circuit breakers of one engine, one per failure domain of the store, and one more for its writes if its reads have
//! a connection of their own. A [`Breaker`] is pure: the clock is a parameter.

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
/// The breaker opens at the first timeout, or after [`ERRORS`] errors without a success in between. Then requests probe
/// the store in the background, at once and again when a probe is over, and a reply closes the breaker. So a probe is
/// in flight when the store answers again. After a timeout requests wait a little for the probe, because the store may
/// be late, not down. Afterwards no request waits for the store.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Breaker {
    Closed { errors: u32, last: Option<Timestamp>, closed_at: Option<Timestamp>, is_refused: bool },
    Open { since: Timestamp, next_probe: Timestamp, cause: FailureKind },
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
    pub(crate) fn permit(&mut self, now: Timestamp, store_timeout: Duration) -> Permit {
        // While requests wait for a reply, more than one probe is sent, because the first one may be lost.
        let probes = if self.patience(now, store_timeout).is_zero() { 1 } else { PROBES_AT_ONCE };
        match self {
            Self::Closed { .. } => Permit::Allow,
            Self::Open { next_probe, .. } if now < *next_probe => Permit::Deny,
            Self::Open { next_probe, .. } => {
                *next_probe = now.after((store_timeout / probes).min(MAX_PROBE_INTERVAL));
                Permit::Probe
            }
        }
    }

    /// Returns for how long a request that is denied still waits for the reply to a probe.
    pub(crate) fn patience(&self, now: Timestamp, store_timeout: Duration) -> Duration {
        match self {
            Self::Open { since, cause: FailureKind::TimedOut, .. } => since.after(store_timeout / 2).since(now),
            _ => Duration::ZERO, // a server that is gone is not late
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
                *self = Self::closed(closed_at.filter(|closed_at| now.since(*closed_at) < REMEMBERED));
                None
            }
        }
    }

    /// Records a failed operation that was sent at `sent_at`. Returns `true` if it opens the breaker.
    pub(crate) fn failed(&mut self, kind: FailureKind, sent_at: Timestamp, now: Timestamp) -> bool {
        let Self::Closed { errors, last, closed_at, .. } = self else { return false };
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
            *self = Self::Open { since: now, next_probe: now, cause: kind };
        }
        opens
    }

    /// Records, after the reply, that it refuses the credentials.
    pub(crate) fn refused(&mut self, now: Timestamp) {
        if let Self::Closed { last, is_refused, .. } = self {
            (*last, *is_refused) = (Some(now), true);
        }
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self, Self::Closed { is_refused: true, .. })
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self, Self::Open { .. })
    }

    /// Reports whether the breaker is closed, and was open at this time or later.
    pub(crate) fn has_closed_since(&self, at: Timestamp) -> bool {
        matches!(self, Self::Closed { closed_at: Some(closed_at), .. } if *closed_at >= at)
    }

    /// Reports whether operations have failed since the last reply.
    pub(crate) fn is_failing(&self) -> bool {
        !matches!(self, Self::Closed { errors: 0, .. })
    }

    /// Reports whether nothing is recorded.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, Self::Closed { errors: 0, closed_at: None, is_refused: false, .. })
    }

    /// Reports whether nothing was recorded for a minute, and no probe was sent, because no request is for this domain any
    /// more: a master of a cluster has lost its slots.
    fn is_abandoned(&self, now: Timestamp) -> bool {
        let last_used = match *self {
            Self::Open { next_probe, .. } => Some(next_probe),
            Self::Closed { last, closed_at, .. } => last.max(closed_at),
        };
        last_used.is_some_and(|at| now.since(at) >= REMEMBERED)
    }

    fn closed(closed_at: Option<Timestamp>) -> Self {
        Self::Closed { errors: 0, last: None, closed_at, is_refused: false }
    }
}

impl Default for Breaker {
    fn default() -> Self {
        Self::closed(None)
    }
}

/// What an operation does. A server may pause its writes, and answer reads meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Access {
    /// A read, or any operation while all of them share a connection.
    Read,
    /// Any other operation: a script, which the server pauses even if it writes nothing.
    Write,
}

impl Access {
    pub(super) const ALL: [Self; 2] = [Self::Read, Self::Write];
}

/// A failure domain of the store, the access, and the `store_timeout` of the clone. A store may be too slow only for a
/// clone with a short timeout. That must not cut off the other clones, and probes with the short timeout would never
/// succeed.
pub(super) type FailureDomain = (u16, Access, Duration);

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
    changed: Notify,
}

impl Breakers {
    /// Accesses the breaker of the domain.
    pub(super) fn with<T>(&self, domain: FailureDomain, access: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut by_domain = self.by_domain.lock();
        let now = Timestamp::now();
        by_domain.retain(|at, recorded| *at == domain || !recorded.breaker.is_abandoned(now));
        let Recorded { breaker, open } = by_domain.entry(domain).or_default();
        let result = access(breaker);
        let changes = breaker.is_open() != open.is_some();
        if changes {
            *open = breaker.is_open().then(telemetry::open_breaker);
        }
        if breaker.is_idle() {
            by_domain.remove(&domain);
        }
        self.is_idle.store(by_domain.is_empty() && self.has_answered.load(Relaxed), Relaxed);
        drop(by_domain);
        if changes {
            self.changed.notify_waiters(); // not under the lock, which the woken tasks take
        }
        result
    }

    /// Records that the store has answered.
    pub(super) fn set_answered(&self) {
        self.has_answered.store(true, Relaxed);
    }

    /// Reports whether all domains have answered their last read, if there was one, whether a breaker is open, and
    /// whether a domain refuses the credentials.
    pub(super) fn state(&self) -> (Option<bool>, bool, bool) {
        let by_domain = self.by_domain.lock();
        let is_failing =
            by_domain.iter().any(|((_, access, _), of)| *access == Access::Read && of.breaker.is_failing());
        let is_reachable = (is_failing || self.has_answered.load(Relaxed)).then_some(!is_failing);
        let has_any = |state: fn(&Breaker) -> bool| by_domain.values().any(|recorded| state(&recorded.breaker));
        let is_refused = has_any(Breaker::is_refused);
        (is_reachable.map(|is_reachable| is_reachable && !is_refused), has_any(Breaker::is_open), is_refused)
    }

    /// Returns a future that resolves when the next breaker opens or closes.
    pub(super) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
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
/// Number of probes in a store timeout while requests wait for a reply.
const PROBES_AT_ONCE: u32 = 8;
/// Maximum time between two probes. A probe takes up to one store timeout, and the next one follows then.
const MAX_PROBE_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time for which a breaker remembers when it closed. Until then, failures of operations that were sent before
/// it closed do not count. A breaker that no request is for is kept as long.
const REMEMBERED: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STORE_TIMEOUT: Duration = Duration::from_millis(250);

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_micros(0).after(Duration::from_millis(ms))
    }

    /// A breaker that has opened at a timeout at 250 ms.
    fn open() -> Breaker {
        let mut breaker = Breaker::default();
        assert!(breaker.failed(FailureKind::TimedOut, at(0), at(250)));
        breaker
    }

    /// The slots of a dead master of a cluster are spread among others. Requests for other domains go on.
    ///
    /// Seen to fail if breakers stay until a request is for their domain.
    #[tokio::test(start_paused = true)]
    async fn breaker_of_a_lost_domain_is_forgotten_after_a_minute() {
        let breakers = Breakers::default();
        let domain = |number| (number, Access::Read, STORE_TIMEOUT);
        let now = Timestamp::now();
        assert!(breakers.with(domain(1), |breaker| breaker.failed(FailureKind::TimedOut, now, now)));
        for (seconds, is_open) in [(0, true), (59, true), (2, false)] {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            breakers.with(domain(0), |_| {});
            assert_eq!(breakers.state().1, is_open);
        }
    }

    #[test]
    fn breaker_opens_at_first_timeout_and_closes_at_answered_probe() {
        assert_eq!(Breaker::default().permit(at(0), STORE_TIMEOUT), Permit::Allow);
        let mut breaker = open();
        for (ms, permit) in [(250, Permit::Probe), (281, Permit::Deny), (282, Permit::Probe)] {
            assert_eq!(breaker.permit(at(ms), STORE_TIMEOUT), permit, "at {ms} ms");
        }
        for (ms, permit) in [(400, Permit::Probe), (649, Permit::Deny), (650, Permit::Probe)] {
            assert_eq!(breaker.permit(at(ms), STORE_TIMEOUT), permit, "at {ms} ms");
        }
        assert!(!breaker.failed(FailureKind::TimedOut, at(400), at(650)), "the breaker is open already");
        assert_eq!(breaker.answered(at(650), at(660)), Some(Duration::from_millis(410)));
        assert_eq!(breaker.answered(at(655), at(665)), None, "the breaker is closed already");
        assert_eq!(breaker.permit(at(666), STORE_TIMEOUT), Permit::Allow);
    }

    #[test]
    fn breaker_stays_open_at_reply_to_an_earlier_operation() {
        let mut breaker = open();
        assert_eq!(breaker.answered(at(249), at(255)), None);
        assert!(breaker.is_open());
        breaker.answered(at(260), at(270));
        assert_eq!(breaker.permit(at(270), STORE_TIMEOUT), Permit::Allow);
        assert!(!breaker.failed(FailureKind::TimedOut, at(100), at(350)), "earlier failures do not open it");
        assert!(breaker.failed(FailureKind::TimedOut, at(300), at(550)));
    }

    #[test]
    fn breaker_counts_simultaneous_errors_once_until_a_success() {
        let mut breaker = Breaker::default();
        for _ in 0..100 {
            assert!(!breaker.failed(FailureKind::Error, at(0), at(0)));
        }
        for n in 1..4 {
            assert!(!breaker.failed(FailureKind::Error, at(n * 20), at(n * 20)));
        }
        breaker.answered(at(70), at(70));
        assert!(breaker.is_idle(), "{breaker:?}");
        let opened = (0..5)
            .map(|n| breaker.failed(FailureKind::Error, at(1000 + n * 20), at(1000 + n * 20)))
            .collect::<Vec<_>>();
        assert_eq!(opened, [false, false, false, false, true]);
        assert_eq!(breaker.patience(at(1080), STORE_TIMEOUT), Duration::ZERO, "a server that is gone is not late");
    }

    /// The probes follow each other without a gap if the store timeout is short, and overlap if it is long.
    #[test]
    fn breaker_is_probed_while_requests_come() {
        for (store_timeout, interval) in [(50, 50), (250, 250), (500, 500), (5000, 500)] {
            let mut breaker = open();
            let mut probed = |ms: &u64| breaker.permit(at(*ms), Duration::from_millis(store_timeout)) == Permit::Probe;
            let begin = 250 + store_timeout / 2;
            let probes: Vec<_> = (begin..begin + 4 * interval).filter(&mut probed).collect();
            assert_eq!(probes, [0, 1, 2, 3].map(|n| begin + n * interval), "store timeout {store_timeout} ms");
        }
    }

    #[test]
    fn request_waits_half_a_store_timeout_for_the_first_probe() {
        let mut breaker = open();
        for (ms, patience) in [(250, 125), (300, 75), (375, 0), (1000, 0)] {
            let patience = Duration::from_millis(patience);
            assert_eq!(breaker.patience(at(ms), STORE_TIMEOUT), patience, "at {ms} ms");
        }
        breaker.answered(at(250), at(300));
        let has_closed_since = [299, 300, 301].map(|ms| breaker.has_closed_since(at(ms)));
        assert_eq!(has_closed_since, [true, true, false]);
        breaker.failed(FailureKind::TimedOut, at(300), at(550));
        assert!(!breaker.has_closed_since(at(299)), "it is open again");
    }

    proptest! {
        /// I6: for any sequence of requests, at most one operation per store timeout reaches a dead store, in the
        /// background, and four before that.
        #[test]
        fn breaker_probes_once_per_store_timeout(pauses in prop::collection::vec(0_u64..50, 1..400)) {
            let (mut breaker, mut now, mut last) = (open(), 250, None);
            for pause in pauses {
                now += pause;
                match breaker.permit(at(now), STORE_TIMEOUT) {
                    Permit::Allow => prop_assert!(false, "the breaker closed without a reply"),
                    Permit::Deny => prop_assert!(last.is_some_and(|last| now - last < 250), "no probe is in flight"),
                    Permit::Probe => {
                        let apart = if last.is_some_and(|last| last >= 375) { 250 } else { 31 };
                        prop_assert!(last.is_none_or(|last| now - last >= apart));
                        last = Some(now);
                        breaker.failed(FailureKind::TimedOut, at(now), at(now));
                    }
                }
            }
        }
    }
}
