//! Errors of lock operations.

use crate::store::error::StoreError;
use std::{borrow::Cow, error, fmt, sync::Arc};

/// An error of acquiring, releasing, extending or checking a lock.
///
/// It names the lock and the reason. A lock held by another client and a server that does not reply are different
/// [kinds](LockErrorKind).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = stampede_guard_support::RedisServer::start();
/// # let lock = stampede_guard::Lock::new(server.client());
/// use stampede_guard::lock::LockErrorKind;
///
/// let _held = lock.acquire("printer").await?;
/// let error = lock.acquire("printer").await.unwrap_err();
/// match error.kind() {
///     LockErrorKind::Acquisition => println!("{} is in use", error.lock()),
///     _ => return Err(error.into()), // it is not known whether the lock is held
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockError {
    kind: LockErrorKind,
    lock: Arc<str>,
    reason: Cow<'static, str>,
    source: Option<StoreError>,
}

/// The kind of failure of a [`LockError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockErrorKind {
    /// Other clients held the lock during the whole wait of [`acquire`](super::Lock::acquire).
    Acquisition,
    /// The lock had expired or was taken over before it was [released](super::LockGuard::release).
    Release,
    /// The lock had expired or was taken over before it was [extended](super::LockGuard::extend). Also
    /// [`keep_alive`](super::LockGuard::keep_alive) outside of a tokio runtime.
    Extend,
    /// The server did not reply in time, or refused the command. The operation may have been executed. A lock that was
    /// acquired this way is released in the background if the recipe can do so, and the server executes the release
    /// within 5 s; otherwise it ends with its ttl.
    Store,
    /// The name or the ttl is invalid. Nothing was sent.
    Input,
}

impl LockError {
    pub(crate) fn new(kind: LockErrorKind, lock: &Arc<str>, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, lock: lock.clone(), reason: reason.into(), source: None }
    }

    pub(crate) fn store(lock: &Arc<str>, reason: &'static str, source: StoreError) -> Self {
        Self { kind: LockErrorKind::Store, lock: lock.clone(), reason: reason.into(), source: Some(source) }
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> LockErrorKind {
        self.kind
    }

    /// Returns the name of the lock, truncated if it exceeds the limit for names.
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
