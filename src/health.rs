//! What a guard knows of its store without asking it.

use crate::{
    clock::Timestamp,
    store::{error::StoreError, port::Store},
    sync::mutex::Mutex,
    telemetry::StoreOperation,
};
use std::time::Duration;

/// The health of a guard's store, as its operations so far have shown it. See
/// [`StampedeGuard::health`](crate::StampedeGuard::health).
///
/// With a feature for typed values (`bincode`, `postcard`, `json`) it implements serde's `Serialize`, with the age in
/// seconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "_typed", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// Whether the store replied to its last operation. If reads have a connection of their own, only reads count. In a
    /// cluster, whether each node replied. A probe of the circuit breaker of writes counts as none. A refusal is a reply,
    /// for example of a full server or of one without the database of the URL; see
    /// [`last_error`](Self::last_error). A server that [refuses the credentials](Self::credentials_refused) is not
    /// reachable. `None` before the first operation has ended. A store in this process is always reachable.
    pub store_reachable: Option<bool>,
    /// Whether the server, or a node of a cluster, has refused user and password at the last operation. An operator has
    /// to correct them.
    pub credentials_refused: bool,
    /// Whether a circuit breaker of the guard or one of its clones is open: the store, or a node of it, is not asked by
    /// requests, or asked to read only, if it is reachable and pauses its writes. About once per store timeout a request
    /// sends a probe in the background, and so do pending invalidations and fills; without them there is none.
    pub breaker_open: bool,
    /// The last store operation that failed, if any. Later successes do not remove it: see [`LastError::age`].
    pub last_error: Option<LastError>,
    /// Whether wake-ups of other processes arrive, as the last message of this process to itself has shown. Otherwise
    /// waiters poll. `Some(false)` also before the first operation, which starts the subscriber. `None` if the store has no
    /// subscriber: a store in this process needs none.
    pub subscriber_up: Option<bool>,
    /// Number of invalidations that the store has not acknowledged yet. They are sent again until it does, and
    /// until then this process serves their keys from no store; other processes may serve the old values.
    pub pending_invalidations: usize,
}

/// A store operation that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "_typed", derive(serde::Serialize))]
#[non_exhaustive]
pub struct LastError {
    /// The operation: `get`, `get_or_lease`, `fill`, `extend`, `release`, `invalidate`, or `probe`.
    pub operation: &'static str,
    /// The error of the store. It contains no key and no password.
    pub message: String,
    /// The time since the operation failed.
    #[cfg_attr(feature = "_typed", serde(serialize_with = "crate::codec::serialize_seconds"))]
    pub age: Duration,
}

impl Health {
    /// Returns the health of a store, by the state of its circuit breakers (whether it is reachable, whether one is open,
    /// and whether the credentials are refused) and its failures.
    pub(crate) fn of(
        store: &dyn Store,
        (is_reachable, breaker_open, credentials_refused): (Option<bool>, bool, bool),
        failures: &Failures,
        pending_invalidations: usize,
    ) -> Self {
        let store_reachable = is_reachable.or((!store.is_shared()).then_some(true));
        let last_error = failures.last(Timestamp::now());
        let subscriber_up = store.is_subscribed();
        Self { store_reachable, credentials_refused, breaker_open, last_error, subscriber_up, pending_invalidations }
    }
}

/// The last failed operation of a store.
#[derive(Default)]
pub(crate) struct Failures(Mutex<Option<(StoreOperation, StoreError, Timestamp)>>);

impl Failures {
    pub(crate) fn record(&self, operation: StoreOperation, error: &StoreError) {
        *self.0.lock() = Some((operation, error.clone(), Timestamp::now()));
    }

    fn last(&self, now: Timestamp) -> Option<LastError> {
        let last = self.0.lock();
        let (operation, error, at) = last.as_ref()?;
        Some(LastError { operation: operation.as_str(), message: error.with_cause(), age: now.since(*at) })
    }
}
