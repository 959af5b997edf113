//! The circuit breakers of one engine, one per failure domain of the store.

use super::breaker::Breaker;
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
        match breaker.is_open() {
            true => _ = open.get_or_insert_with(telemetry::open_breaker),
            false => *open = None,
        }
        if breaker.is_idle() {
            by_domain.remove(&domain);
        }
        self.is_idle.store(by_domain.is_empty() && self.has_answered.load(Relaxed), Relaxed);
        result
    }

    /// Records a reply to an operation that was sent at `sent_at`. Returns for how long the breaker of the domain was
    /// open if the reply closes it.
    pub(super) fn answered(&self, domain: FailureDomain, sent_at: Timestamp) -> Option<Duration> {
        self.has_answered.store(true, Relaxed);
        self.with(domain, |breaker| breaker.answered(sent_at, Timestamp::now()))
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

    pub(super) fn notify_opened(&self) {
        self.opened.notify_waiters();
    }

    /// Reports whether the store has answered, and all breakers are closed with nothing recorded.
    pub(super) fn is_idle(&self) -> bool {
        self.is_idle.load(Relaxed)
    }
}
