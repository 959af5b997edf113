//! What the error of a fetch means for other callers.

use std::{error::Error, fmt, sync::Arc};

/// The class of an error of a fetch: an answer, or a failure of the origin. See [`StampedeGuard::classify`](crate::StampedeGuard::classify).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureClass {
    /// The origin works, and the error is an answer of the origin, for example "no such row". Requests of this process that wait get the
    /// error. There is no failure marker, and the count of earlier failures is forgotten: the next request calls the
    /// origin. In each other process one waiter calls it, one process after the other.
    ///
    /// No stale value replaces the error, and a stored value stays: requests that may have it stale get it, while it is
    /// refreshed or while the origin is down. Each such request begins a refresh, if none is running.
    /// [`invalidate`](crate::StampedeGuard::invalidate) drops the value.
    Answer,
    /// The origin does not work. All waiters get the error. A [failure marker](crate::StampedeGuard::failure_ttl) blocks
    /// the key, and the stale value is served if the policy permits that on errors.
    #[default]
    OriginDown,
}

/// A function that classifies the errors of fetches.
#[derive(Clone)]
pub(crate) struct Classifier(Arc<Classify>);

type Classify = dyn Fn(&(dyn Error + 'static)) -> FailureClass + Send + Sync;

impl Classifier {
    pub(crate) fn new(classify: impl Fn(&(dyn Error + 'static)) -> FailureClass + Send + Sync + 'static) -> Self {
        Self(Arc::new(classify))
    }

    pub(crate) fn classify(&self, error: &(dyn Error + 'static)) -> FailureClass {
        (self.0)(error)
    }
}

impl Default for Classifier {
    fn default() -> Self {
        Self::new(|_| FailureClass::default())
    }
}

impl fmt::Debug for Classifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Classifier")
    }
}
