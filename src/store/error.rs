//! What store operations return, and their errors.

use crate::error::BoxError;
use std::{error, fmt, future::Future, pin::Pin, sync::Arc};

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

    pub(crate) fn timed_out(source: impl Into<BoxError>) -> Self {
        Self { outcome: Outcome::TimedOut, ..Self::new(source) }
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
        self.outcome == Outcome::Refused
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store failed: {}", self.source)
    }
}

impl error::Error for StoreError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.source)
    }
}
