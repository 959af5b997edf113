//! The circuit breakers of one engine, one per failure domain of the store.

use super::{
    breaker::{Breaker, FailureKind, Permit},
    resource::Resource,
};
use crate::{
    clock::{self, Timestamp},
    store::error::StoreError,
    sync::mutex::Mutex,
    telemetry,
};
use std::{
    collections::HashMap,
    error, fmt,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};
use tokio::sync::{Notify, futures::Notified};

/// A failure domain of the store, with the `store_timeout` of the clone. A store may be too slow only for a clone
/// with a short timeout. That must not cut off the other clones, and probes with the short timeout would never succeed.
type FailureDomain = (u16, Duration);

/// The circuit breakers by failure domain. A breaker with nothing recorded is not in the table.
#[derive(Default)]
pub(super) struct Breakers {
    by_domain: Mutex<HashMap<FailureDomain, Breaker>>,
    /// Whether the table has breakers, so that a healthy store costs one load per operation.
    is_recording: AtomicBool,
    opened: Notify,
}

impl Breakers {
    fn with<T>(&self, domain: FailureDomain, access: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut by_domain = self.by_domain.lock();
        let breaker = by_domain.entry(domain).or_default();
        let result = access(breaker);
        if breaker.is_idle() {
            by_domain.remove(&domain);
        }
        self.is_recording.store(!by_domain.is_empty(), Relaxed);
        result
    }

    /// Returns a future that resolves when the next breaker opens, so that leaders that wait for another process learn
    /// that the store is unavailable.
    pub(super) fn opened(&self) -> Notified<'_> {
        self.opened.notified()
    }

    fn is_idle(&self) -> bool {
        !self.is_recording.load(Relaxed)
    }
}

impl Resource {
    /// Checks whether the breaker allows an operation. At the end of a window a probe is sent in the background, and no
    /// caller waits for it.
    pub(super) fn check_breaker(&self) -> Result<(), StoreError> {
        if self.engine.breakers.is_idle() {
            return Ok(());
        }
        let now = Timestamp::now();
        match self.with_breaker(|breaker| breaker.permit(now, clock::random_unit())) {
            Permit::Allow => Ok(()),
            Permit::Deny => Err(StoreError::new(BreakerOpen)),
            Permit::Probe => {
                let resource = self.clone();
                self.engine.tasks.spawn(async move {
                    // Not through the near cache, whose connection may fail while the store works.
                    resource.with_timeout("probe", resource.engine.store.get(&resource.key)).await
                });
                Err(StoreError::new(BreakerOpen))
            }
        }
    }

    /// Records the result of an operation that was sent at `sent_at`.
    pub(super) fn record<T>(&self, answer: &Result<T, StoreError>, sent_at: Timestamp) {
        let kind = match answer {
            Err(error) if error.is_timed_out() => FailureKind::TimedOut,
            Err(error) if !error.is_refused() => FailureKind::Error,
            _ if self.engine.breakers.is_idle() => return,
            // A refusal is a reply: the store is alive.
            _ => {
                let now = Timestamp::now();
                return self.with_breaker(|breaker| breaker.answered(sent_at, now));
            }
        };
        let now = Timestamp::now();
        if self.with_breaker(|breaker| breaker.failed(kind, sent_at, now, clock::random_unit())) {
            telemetry::breaker_opened(&self.engine.stats, &self.key);
            self.engine.breakers.opened.notify_waiters();
        }
    }

    fn with_breaker<T>(&self, access: impl FnOnce(&mut Breaker) -> T) -> T {
        let domain = (self.engine.store.failure_domain(&self.key), self.config.store_timeout);
        self.engine.breakers.with(domain, access)
    }
}

/// The error of an operation that an open circuit breaker denied.
#[derive(Debug)]
struct BreakerOpen;

impl fmt::Display for BreakerOpen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("circuit breaker open: the store failed recently")
    }
}

impl error::Error for BreakerOpen {}
