//! The error of all operations of a guard.

use std::{borrow::Cow, error, fmt, sync::Arc, time::Duration};

/// An error that can be sent between threads; fetches may return it.
pub type BoxError = Box<dyn error::Error + Send + Sync>;

/// The reason why there is no answer.
///
/// Cheap to clone, because all waiters of a failed fetch get it. [`source`](error::Error::source) is the origin's own
/// error, and [`origin`](Self::origin) returns it typed:
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use stampede_guard::{ErrorKind, StampedeGuard};
///
/// let guard = StampedeGuard::in_memory();
/// let error = guard.fetch("user:0", async || "x".parse::<u8>()).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Origin);
/// assert!(error.origin::<std::num::ParseIntError>().is_some());
/// # }
/// ```
#[derive(Clone)]
pub struct Error(Arc<Inner>);

struct Inner {
    kind: ErrorKind,
    what: Cow<'static, str>,
    code: u16,
    retry_in: Option<Duration>,
    source: Option<BoxError>,
}

/// The kind of failure of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The fetch failed; the source is its error.
    Origin,
    /// The fetch failed recently, usually in another process, and left a failure marker. [`Error::retry_in`] says when
    /// to retry, and [`Error::status`] what was recorded.
    RecentlyFailed,
    /// The fetch took longer than `fetch_timeout` and was aborted.
    TimedOut,
    /// The fetch panicked.
    Panicked,
    /// The store did not acknowledge an [`invalidate`](crate::StampedeGuard::invalidate), or it is unavailable under
    /// [`StoreFailure::FailClosed`](crate::StoreFailure::FailClosed). In all other cases a fetch goes on without the
    /// store.
    Store,
    /// The URL to invalidate names no host, which is part of the keys.
    InvalidUrl,
    /// Rejected: there are too many waiters, no `max_fallback_fetches` permit became free within one second, the wait
    /// timeout passed under [`WaitTimeout::Reject`](crate::WaitTimeout::Reject), or the deadline has passed or is near.
    /// [`Error::retry_in`] says when to retry.
    Overloaded,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: impl Into<Cow<'static, str>>) -> Self {
        Self::build(kind, what.into(), 0, None, None)
    }

    pub(crate) fn with_source(kind: ErrorKind, what: impl Into<Cow<'static, str>>, source: BoxError) -> Self {
        Self::build(kind, what.into(), 0, None, Some(source))
    }

    pub(crate) fn origin_failed(source: BoxError) -> Self {
        Self::with_source(ErrorKind::Origin, "the fetch failed", source)
    }

    pub(crate) fn recently_failed(code: u16, retry_in: Duration) -> Self {
        let what = format!("the fetch failed recently; retry in {retry_in:?}");
        Self::build(ErrorKind::RecentlyFailed, what.into(), code, Some(retry_in), None)
    }

    pub(crate) fn store_down(source: BoxError) -> Self {
        let what = "the store is unavailable, and `StoreFailure::FailClosed` rejects requests without it";
        Self::build(ErrorKind::Store, what.into(), 0, Some(LATER), Some(source))
    }

    pub(crate) fn overloaded(what: &'static str) -> Self {
        Self::build(ErrorKind::Overloaded, what.into(), 0, Some(LATER), None)
    }

    /// Rejects a request whose answer would come after its deadline.
    pub(crate) fn deadline_exceeded() -> Self {
        Self::overloaded("the answer would come after the deadline")
    }

    /// Rejects a request after its wait timeout.
    pub(crate) fn wait_timed_out() -> Self {
        Self::overloaded("no result came within the wait timeout (`WaitTimeout::Reject`)")
    }

    fn build(
        kind: ErrorKind,
        what: Cow<'static, str>,
        code: u16,
        retry_in: Option<Duration>,
        source: Option<BoxError>,
    ) -> Self {
        Self(Arc::new(Inner { kind, what, code, retry_in, source }))
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the origin's own error, if it is an `E`.
    #[must_use]
    pub fn origin<E: error::Error + 'static>(&self) -> Option<&E> {
        self.0.source.as_ref()?.downcast_ref()
    }

    /// Returns the time until a retry, for a recent failure and for a rejected request.
    #[must_use]
    pub fn retry_in(&self) -> Option<Duration> {
        self.0.retry_in
    }

    /// Returns the HTTP status recorded with a recent failure. `None` for other kinds, and for failures that had none.
    #[must_use]
    pub fn status(&self) -> Option<u16> {
        (self.0.code != 0).then_some(self.0.code)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.what)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("what", &self.0.what)
            .field("source", &self.0.source)
            .finish_non_exhaustive()
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Time until a rejected request may be retried.
const LATER: Duration = Duration::from_secs(1);
