//! The validity of a held lock, and the heartbeat that extends it.

use super::{
    attempt::{HeldState, retry_once_if_disconnected, with_timeout},
    handle::Lock,
};
use crate::{
    clock::Timestamp,
    store::{error::StoreError, lease::LeaseStatus},
    sync::watch::Watched,
    telemetry,
};
use std::{
    future::Future,
    sync::{Arc, Once},
    time::Duration,
};
use tokio::time::timeout;

/// A held lock and its validity, as known by this process.
pub(super) struct ValidLock {
    pub(super) lock: Lock,
    pub(super) name: Arc<str>,
    pub(super) held: Arc<dyn HeldState>,
    validity: Watched<Validity>,
    /// The report of the loss.
    report: Once,
}

#[derive(Clone, Copy)]
struct Validity {
    /// The end of the validity; `None` if the lock does not expire.
    until: Option<Timestamp>,
    /// Whether the server has reported the lock as lost.
    is_lost: bool,
    /// The end of the validity that the last extension has requested.
    requested: Option<Timestamp>,
}

impl ValidLock {
    /// Creates a lock that is valid for `valid`, counted from `from`.
    pub(super) fn new(lock: Lock, name: Arc<str>, held: Arc<dyn HeldState>, from: Timestamp, valid: Duration) -> Self {
        let until = (valid < Duration::MAX).then(|| from.after(valid));
        let validity = Watched::new(Validity { until, is_lost: false, requested: None });
        Self { lock, name, held, validity, report: Once::new() }
    }

    /// Sets the expiry to `ttl` from now.
    ///
    /// If that shortens the lock, the shorter time applies at once, because the server may execute the request although
    /// the reply is lost.
    pub(super) async fn extend(&self, ttl: Duration) -> Result<LeaseStatus, StoreError> {
        let until = Timestamp::now().after(ttl.saturating_sub(self.held.margin(ttl)));
        self.validity.send_modify(|validity| {
            validity.requested = Some(until);
            validity.shorten(until);
        });
        let operation = retry_once_if_disconnected(self.held.extend(ttl), || self.held.extend(ttl));
        let reply = self.confirm(operation).await;
        if let Ok(LeaseStatus::Held) = reply {
            self.validity.send_modify(|validity| {
                if validity.requested == Some(until) {
                    validity.until = Some(until);
                } else {
                    validity.shorten(until); // the server may have executed the later extension last
                }
            });
        }
        reply
    }

    /// Asks the server whether the lock is held.
    pub(super) async fn check(&self) -> Result<LeaseStatus, StoreError> {
        self.confirm(self.held.check()).await
    }

    /// Awaits a reply. The validity ends if the server has lost the lock.
    async fn confirm(
        &self,
        operation: impl Future<Output = Result<LeaseStatus, StoreError>>,
    ) -> Result<LeaseStatus, StoreError> {
        let reply = with_timeout(self.lock.store_timeout, operation).await;
        if let Ok(LeaseStatus::Lost) = reply {
            self.lost_by_server();
        }
        self.report_loss();
        reply
    }

    /// Ends the validity, because the server has replied that it no longer has the lock.
    pub(super) fn lost_by_server(&self) {
        self.validity.send_modify(|validity| validity.is_lost = true);
        self.report_loss();
    }

    /// Reports once that the lock is lost, if it is.
    pub(super) fn report_loss(&self) {
        let (is_lost, is_over) = (self.validity.get().is_lost, self.remaining() == Some(Duration::ZERO));
        let cause = if is_lost { "the server no longer has it" } else { "its time is over without an extension" };
        if is_over {
            self.report.call_once(|| telemetry::lock_lost(&self.lock.meter, &self.name, cause));
        }
    }

    /// Returns the time left: zero if the lock is lost, `None` if it does not expire.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self.validity.get() {
            Validity { is_lost: true, .. } => Some(Duration::ZERO),
            Validity { until, .. } => until.map(|until| until.since(Timestamp::now())),
        }
    }

    /// Waits until the validity has ended. Cancel safe.
    pub(super) async fn ended(&self) {
        loop {
            let before = self.validity.get();
            let changed = self.validity.wait_for(|now| now.is_lost || now.until != before.until);
            match self.remaining() {
                Some(Duration::ZERO) => return self.report_loss(),
                left => drop(timeout(left.unwrap_or(Duration::MAX), changed).await),
            }
        }
    }

    /// Runs the heartbeat: extends the lock after a third of the time left, at most a third of `ttl`, until the server has
    /// lost it or `until` has passed. If the task is aborted, a pending extension may or may not be executed.
    pub(super) async fn keep_alive(self: Arc<Self>, ttl: Duration, until: Timestamp) {
        loop {
            // Less than a ttl may be left from the start, after an extension that failed, or after a concurrent `extend`
            // with a shorter ttl, which restarts the pause.
            let before = self.validity.get();
            let left = self.remaining().filter(|left| !left.is_zero()).map_or(ttl, |left| left.min(ttl));
            let changed = self.validity.wait_for(|now| now.until != before.until);
            if timeout((left / 3).max(MIN_PAUSE), changed).await.is_ok() {
                continue;
            }
            if Timestamp::now() >= until {
                return telemetry::heartbeat_ended(&self.name, self.lock.max_hold);
            }
            // An extension that failed is repeated. If the server does not reply, the validity ends.
            if matches!(self.extend(ttl).await, Ok(LeaseStatus::Lost)) {
                return;
            }
        }
    }
}

impl Validity {
    fn shorten(&mut self, until: Timestamp) {
        self.until = Some(self.until.map_or(until, |current| current.min(until)));
    }
}

/// Minimum pause between two extensions.
const MIN_PAUSE: Duration = Duration::from_millis(1);
