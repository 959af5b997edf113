//! The circuit breakers of one engine, one per failure domain of the store.

use super::breaker::Breaker;
use crate::{
    sync::mutex::Mutex,
    telemetry::{OpenBreaker, OpenBreakers},
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
    open: OpenBreakers,
    /// Whether the table has breakers, so that a healthy store costs one load per operation.
    is_recording: AtomicBool,
    opened: Notify,
}

impl Breakers {
    /// Accesses the breaker of the domain.
    pub(super) fn with<T>(&self, domain: FailureDomain, access: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut by_domain = self.by_domain.lock();
        let Recorded { breaker, open } = by_domain.entry(domain).or_default();
        let result = access(breaker);
        match breaker.is_open() {
            true => _ = open.get_or_insert_with(|| self.open.open()),
            false => *open = None,
        }
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

    pub(super) fn notify_opened(&self) {
        self.opened.notify_waiters();
    }

    /// Reports whether all breakers are closed, with nothing recorded.
    pub(super) fn is_idle(&self) -> bool {
        !self.is_recording.load(Relaxed)
    }
}
