//! What store operations return, and their errors.

use crate::error::BoxError;
use std::{error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

/// A boxed future, as methods of a `dyn` trait return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The future that an operation of a store returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// The error of a store operation: the operation failed, or its outcome is unknown.
#[derive(Clone, Debug)]
pub struct StoreError {
    source: Arc<dyn error::Error + Send + Sync>,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    TimedOut,
    Disconnected,
    Refused,
    /// Refused until an operator corrects a setting.
    Misconfigured {
        of_credentials: bool,
    },
}

impl StoreError {
    /// Creates an error with unknown outcome: the operation may or may not have been done.
    #[must_use]
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self { source: Arc::from(source.into()), outcome: Outcome::Unknown }
    }

    /// Creates the error of a broken connection. The outcome is unknown, but a retry may succeed at once.
    #[must_use]
    pub fn disconnected(source: impl Into<BoxError>) -> Self {
        Self { outcome: Outcome::Disconnected, ..Self::new(source) }
    }

    /// Creates the error of a refusal, for instance because the store is full. The operation was not done.
    #[must_use]
    pub fn refused(source: impl Into<BoxError>) -> Self {
        Self { outcome: Outcome::Refused, ..Self::new(source) }
    }

    /// Creates the error of a refusal that the connection has reported, because an operator has to correct its cause.
    /// With `of_credentials` these are user and password.
    pub(crate) fn misconfigured(source: impl Into<BoxError>, of_credentials: bool) -> Self {
        Self { outcome: Outcome::Misconfigured { of_credentials }, ..Self::new(source) }
    }

    /// Creates the error of an operation without an answer within the store timeout of a guard or a lock.
    pub(crate) fn timed_out(store_timeout: Duration) -> Self {
        Self { outcome: Outcome::TimedOut, ..Self::new(format!("no answer within store_timeout ({store_timeout:?})")) }
    }

    pub(crate) fn is_timed_out(&self) -> bool {
        self.outcome == Outcome::TimedOut
    }

    /// Reports whether the connection broke.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.outcome == Outcome::Disconnected
    }

    /// Reports whether the store refused the operation.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.outcome == Outcome::Refused || self.is_misconfigured()
    }

    /// Returns the text of the error and of its cause, for a log.
    pub(crate) fn with_cause(&self) -> String {
        format!("{self}: {}", self.source)
    }

    pub(crate) fn is_misconfigured(&self) -> bool {
        matches!(self.outcome, Outcome::Misconfigured { .. })
    }

    pub(crate) fn is_unauthorized(&self) -> bool {
        self.outcome == Outcome::Misconfigured { of_credentials: true }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the store failed")
    }
}

impl error::Error for StoreError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.source)
    }
}
