//! Why there is no lock, or not any more.

use crate::store::StoreError;
use std::{borrow::Cow, error, fmt, sync::Arc};

/// A lock was not acquired, released or extended. Names the lock and the reason; "somebody else holds it" and "the server
/// does not answer" are different [kinds](LockErrorKind).
#[derive(Clone, Debug)]
pub struct LockError {
    kind: LockErrorKind,
    lock: Arc<str>,
    reason: Cow<'static, str>,
    source: Option<StoreError>,
}

/// What kind of failure a [`LockError`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockErrorKind {
    /// Somebody else held it all the time that [`acquire`](super::Lock::acquire) was willing to wait.
    Acquisition,
    /// It had expired, or was taken over, by the time it was [released](super::LockGuard::release).
    Release,
    /// It had expired, or was taken over, by the time it was [extended](super::LockGuard::extend).
    Extend,
    /// It was held all the time that [`check`](super::Lock::check) was willing to wait.
    Held,
    /// The server did not answer in time, or refused. What was asked for may have been done: an acquisition is undone
    /// behind where the recipe can, and else ends with its ttl.
    Store,
    /// A name or a ttl that cannot be one. Nothing was sent.
    Input,
    /// The recipe cannot do what was asked of it: extend a lock, or carry a [guard](crate::store::LockedStore). Nothing was
    /// sent; take another recipe.
    Recipe,
}

impl LockError {
    pub(crate) fn new(kind: LockErrorKind, lock: &Arc<str>, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, lock: lock.clone(), reason: reason.into(), source: None }
    }

    pub(crate) fn store(lock: &Arc<str>, reason: &'static str, source: StoreError) -> Self {
        Self { kind: LockErrorKind::Store, lock: lock.clone(), reason: reason.into(), source: Some(source) }
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> LockErrorKind {
        self.kind
    }

    /// The name of the lock, cut off where it is too long to be one.
    #[must_use]
    pub fn lock(&self) -> &str {
        &self.lock
    }
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?}: {}", self.lock, self.reason)
    }
}

impl error::Error for LockError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}
