//! The validity of a held lock, and the heartbeat that extends it.

use super::{attempt::HeldState, limits::with_timeout};
use crate::{clock::Timestamp, store::lease::LeaseStatus, sync::watch::Watched};
use std::{sync::Arc, time::Duration};
use tokio::time::timeout;

/// The validity of a lock, as known by this process.
#[derive(Clone)]
pub(super) struct Validity(Arc<Watched<ValidityState>>);

#[derive(Clone, Copy)]
struct ValidityState {
    /// The end of the validity; `None` if the lock does not expire.
    until: Option<Timestamp>,
    /// Whether the server has reported the lock as lost.
    is_lost: bool,
    /// The number of extensions requested.
    extensions: u64,
}

/// A requested extension.
pub(super) struct Extension {
    number: u64,
    until: Timestamp,
}

impl Validity {
    pub(super) fn new(from: Timestamp, valid: Duration) -> Self {
        let until = (valid < Duration::MAX).then(|| from.after(valid));
        Self(Arc::new(Watched::new(ValidityState { until, is_lost: false, extensions: 0 })))
    }

    /// Records an extension before its request is sent. If it shortens the lock, the shorter time applies at once,
    /// because the server may execute the request although the reply is lost.
    pub(super) fn begin_extension(&self, valid: Duration) -> Extension {
        let mut extension = Extension { number: 0, until: Timestamp::now().after(valid) };
        self.0.send_modify(|state| {
            state.extensions += 1;
            extension.number = state.extensions;
            state.shorten(extension.until);
        });
        extension
    }

    /// Records that the server executed the extension. If a later extension was requested, the server may have executed
    /// that one last, so the shorter time applies.
    pub(super) fn confirm_extension(&self, extension: &Extension) {
        self.0.send_modify(|state| {
            if state.extensions == extension.number {
                state.until = Some(extension.until);
            } else {
                state.shorten(extension.until);
            }
        });
    }

    /// Records that the server reported the lock as lost.
    pub(super) fn mark_lost(&self) {
        self.0.send_modify(|state| state.is_lost = true);
    }

    /// Returns the time left: zero if the lock is lost, `None` if it does not expire.
    pub(super) fn remaining(&self) -> Option<Duration> {
        match self.0.get() {
            ValidityState { is_lost: true, .. } => Some(Duration::ZERO),
            ValidityState { until, .. } => until.map(|until| until.since(Timestamp::now())),
        }
    }

    /// Waits until the validity has ended. Cancel safe.
    pub(super) async fn ended(&self) {
        let state = &self.0;
        loop {
            let before = state.get();
            let changed = state.wait_for(|now| now.is_lost || now.until != before.until);
            match self.remaining() {
                Some(Duration::ZERO) => return,
                Some(left) => drop(timeout(left, changed).await),
                None => drop(changed.await),
            }
        }
    }
}

impl ValidityState {
    fn shorten(&mut self, until: Timestamp) {
        self.until = Some(self.until.map_or(until, |current| current.min(until)));
    }
}

/// A heartbeat: extends a lock every third of its ttl.
pub(super) struct Heartbeat {
    pub(super) held: Arc<dyn HeldState>,
    pub(super) validity: Validity,
    pub(super) ttl: Duration,
    pub(super) store_timeout: Duration,
    /// No extension starts after this time.
    pub(super) until: Timestamp,
}

impl Heartbeat {
    /// Runs until the lock is lost or `until` has passed. If the task is aborted, a pending extension may or may not be
    /// executed.
    pub(super) async fn run(self) {
        let mut pause = self.ttl / 3;
        loop {
            self.sleep(pause).await;
            if Timestamp::now() >= self.until {
                return;
            }
            let extension = self.validity.begin_extension(self.ttl.saturating_sub(self.held.margin(self.ttl)));
            pause = match with_timeout(self.store_timeout, self.held.extend(self.ttl)).await {
                Ok(LeaseStatus::Held) => {
                    self.validity.confirm_extension(&extension);
                    self.ttl / 3
                }
                Ok(LeaseStatus::Lost) => return self.validity.mark_lost(),
                // Retry soon. If the server does not reply to the retries, the validity ends.
                Err(_) => self.ttl / 10,
            };
        }
    }

    /// Sleeps for `pause`, or for a third of the time left if that is shorter. The time left may be less than a ttl
    /// from the start, or after a concurrent `extend` with a shorter ttl, which restarts the sleep.
    async fn sleep(&self, pause: Duration) {
        let state = &self.validity.0;
        loop {
            let before = state.get();
            let pause = match self.validity.remaining() {
                None | Some(Duration::ZERO) => pause,
                Some(left) => pause.min(left / 3),
            };
            let changed = state.wait_for(|now| now.until != before.until);
            if timeout(pause.max(MIN_PAUSE), changed).await.is_err() {
                return;
            }
        }
    }
}

/// Minimum pause between two extensions.
const MIN_PAUSE: Duration = Duration::from_millis(1);
