//! The error of all operations of a guard.

use std::{error, fmt, io, iter, sync::Arc, time::Duration};

/// An error that can be sent between threads; fetches may return it.
pub type BoxError = Box<dyn error::Error + Send + Sync>;

/// The reason why there is no answer.
///
/// Cheap to clone, because all waiters of a failed fetch get it, and so do later callers while the failure
/// [blocks the key](crate::StampedeGuard::failure_ttl). [`source`](error::Error::source) is its cause, the error of the
/// fetch, and [`origin`](Self::origin) and [`origin_cloned`](Self::origin_cloned) return it typed. The error does not show
/// its cause, and its text has no numbers that vary: `anyhow`'s `{:#}` shows both, each once.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use stampede_guard::{ErrorKind, StampedeGuard};
/// use std::num::ParseIntError;
///
/// let guard = StampedeGuard::in_memory();
/// let error = guard.fetch("user:0", async || "x".parse::<u8>()).await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Origin);
/// assert_eq!(error.to_string(), "the fetch failed");
/// let cause: ParseIntError = error.origin_cloned().unwrap();
/// assert_eq!(cause.to_string(), "invalid digit found in string");
/// # }
/// ```
///
/// # Status codes
///
/// | error | HTTP (the layer, and `IntoResponse`) | gRPC |
/// |---|---|---|
/// | `Origin` | 502, or 503 while a failure blocks the key | `UNAVAILABLE` (14) |
/// | `TimedOut` | 504, or 503 while a failure blocks the key | `DEADLINE_EXCEEDED` (4) |
/// | `Store` | 503 | `UNAVAILABLE` (14) |
/// | `Overloaded` after a wait timeout or a deadline | 503 | `DEADLINE_EXCEEDED` (4) |
/// | `Overloaded` otherwise | 503 | `RESOURCE_EXHAUSTED` (8) |
/// | `Panicked` | 500, or 503 while a failure blocks the key | `INTERNAL` (13) |
/// | `InvalidKey`, `Uncacheable` | 500 | `INTERNAL` (13) |
/// | `InvalidUrl` | 502 | `INTERNAL` (13) |
///
/// A handler of tonic returns `tonic::Status::new(grpc_code(&error).into(), error.to_string())`:
///
/// ```
/// use stampede_guard::{Error, ErrorKind};
///
/// fn grpc_code(error: &Error) -> i32 {
///     match error.kind() {
///         _ if error.is_timeout() => 4,
///         _ if error.is_overloaded() => 8,
///         ErrorKind::Origin | ErrorKind::Store => 14,
///         _ => 13,
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    kind: ErrorKind,
    what: &'static str,
    retry_in: Option<Duration>,
    cause: Option<Arc<dyn error::Error + Send + Sync>>,
}

/// The kind of failure of an [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The fetch failed; the source is its error. If the error has [`retry_in`](Error::retry_in), the fetch failed some
    /// time ago and its [failure marker](crate::StampedeGuard::failure_ttl) blocks the key. The same holds for the
    /// next two kinds.
    Origin,
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
    /// The key is empty, or the [`Cache`](crate::Cache) has an empty name. No fetch was called.
    InvalidKey,
    /// The value of a [`put`](crate::Cache::put) cannot be stored: its outcome says that it is private or not to be stored,
    /// it is too large, or its codec cannot encode it. Its key was invalidated.
    Uncacheable,
    /// Rejected: there are too many waiters, no `max_fallback_fetches` permit became free within one second, the wait
    /// timeout passed, the deadline has passed or is near, or 64 leaders that the request waited for came to no result
    /// that it may use: they were not polled, or their bodies broke off. [`Error::retry_in`] says when to retry.
    Overloaded,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, what: &'static str) -> Self {
        Self(Arc::new(Inner { kind, what, retry_in: None, cause: None }))
    }

    pub(crate) fn with_source(kind: ErrorKind, what: &'static str, source: BoxError) -> Self {
        Self(Arc::new(Inner { kind, what, retry_in: None, cause: Some(source.into()) }))
    }

    pub(crate) fn origin_failed(source: BoxError) -> Self {
        Self::with_source(ErrorKind::Origin, "the fetch failed", source)
    }

    /// Creates the error of a caller that a failure marker blocks, from what the marker reports.
    pub(crate) fn reported(kind: ErrorKind, retry_in: Duration) -> Self {
        let what = match kind {
            ErrorKind::TimedOut => FETCH_TIMED_OUT,
            ErrorKind::Panicked => "the fetch panicked",
            _ => "the fetch failed",
        };
        Self(Arc::new(Inner { kind, what, retry_in: Some(retry_in), cause: None }))
    }

    /// Returns this error with the time until a retry.
    pub(crate) fn with_retry_in(&self, retry_in: Duration) -> Self {
        Self(Arc::new(Inner { retry_in: Some(retry_in), ..(*self.0).clone() }))
    }

    pub(crate) fn store_down(source: BoxError) -> Self {
        let what = "the store is unavailable, and `StoreFailure::FailClosed` rejects requests without it";
        Self::with_source(ErrorKind::Store, what, source).with_retry_in(LATER)
    }

    pub(crate) fn uncacheable() -> Self {
        Self::new(ErrorKind::Uncacheable, "the value is private, too large, refused by its codec or not to be stored")
    }

    pub(crate) fn overloaded(what: &'static str) -> Self {
        Self::new(ErrorKind::Overloaded, what).with_retry_in(LATER)
    }

    /// Rejects a request whose answer would come after its deadline.
    pub(crate) fn deadline_exceeded() -> Self {
        Self::overloaded(DEADLINE_EXCEEDED)
    }

    /// Creates the error of a fetch that was aborted at its timeout.
    pub(crate) fn fetch_timed_out() -> Self {
        Self::new(ErrorKind::TimedOut, FETCH_TIMED_OUT)
    }

    /// Rejects a request after its wait timeout.
    pub(crate) fn wait_timed_out() -> Self {
        Self::overloaded(WAIT_TIMED_OUT)
    }

    /// Reports whether this rejects a request after its wait timeout.
    pub(crate) fn is_wait_timeout(&self) -> bool {
        self.0.what == WAIT_TIMED_OUT
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Returns the first `E` among the origin's own error and its sources, as [`find`](Self::find) does. If the fetch
    /// returned an `anyhow::Error`, that is the error that it was made from (feature `anyhow`); its backtrace is lost.
    ///
    /// `None` if there is no `E`, if the fetch failed in another process, which shares only the kind of its error,
    /// and in rare cases also in this process: see [`failure_ttl`](crate::StampedeGuard::failure_ttl). A type that wraps
    /// errors without being one (`eyre::Report`) hides the error that it was made from, unless context was added to it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use std::io::{self, ErrorKind::NotFound};
    ///
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// let missing = async || Err::<String, _>(io::Error::from(NotFound));
    /// let error = guard.fetch("user:0", missing).await.unwrap_err();
    /// let status = match error.origin::<io::Error>() {
    ///     Some(error) if error.kind() == NotFound => 404,
    ///     _ => 503,
    /// };
    /// # assert_eq!(status, 404);
    /// # }
    /// ```
    #[must_use]
    pub fn origin<E: error::Error + 'static>(&self) -> Option<&E> {
        Self::find(self.cause()?)
    }

    /// Returns a clone of what [`origin`](Self::origin) finds, for a caller that returns the error of its fetch.
    #[must_use]
    pub fn origin_cloned<E: error::Error + Clone + 'static>(&self) -> Option<E> {
        self.origin().cloned()
    }

    /// Reports whether time ran out: the fetch was aborted at its timeout, or the request reached its wait timeout or its
    /// deadline.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.0.kind == ErrorKind::TimedOut || self.is_wait_timeout() || self.0.what == DEADLINE_EXCEEDED
    }

    /// Reports whether the guard rejected the request, [`ErrorKind::Overloaded`], also because [time ran
    /// out](Self::is_timeout). The fetch of another request may be running.
    #[must_use]
    pub fn is_overloaded(&self) -> bool {
        self.0.kind == ErrorKind::Overloaded
    }

    /// Returns the first `E` among the error and its sources, also in a `Box`, an `Arc` or an `io::Error`.
    ///
    /// ```
    /// use stampede_guard::Error;
    /// use std::{io, num::ParseIntError};
    ///
    /// let error = io::Error::other("x".parse::<u8>().unwrap_err());
    /// assert!(Error::find::<ParseIntError>(&error).is_some());
    /// ```
    #[must_use]
    pub fn find<'a, E: error::Error + 'static>(error: &'a (dyn error::Error + 'static)) -> Option<&'a E> {
        iter::successors(Some(error), |error| inner(*error)).find_map(downcast)
    }

    /// Returns the time until a retry: for a failure whose marker blocks the key, and for a rejected request.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use stampede_guard::{Error, StampedeGuard};
    /// use std::io;
    ///
    /// fn retry_after(error: &Error) -> Option<String> {
    ///     error.retry_in().map(|wait| wait.as_secs_f64().ceil().to_string())
    /// }
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let down = async || Err::<String, _>(io::Error::other("down"));
    /// let first = guard.fetch("user:1", down).await.unwrap_err();
    /// # guard.drain().await;
    /// let second = guard.fetch("user:1", down).await.unwrap_err(); // `down` was not called again
    /// assert_eq!((retry_after(&first), retry_after(&second).as_deref()), (None, Some("1")));
    /// # }
    /// ```
    #[must_use]
    pub fn retry_in(&self) -> Option<Duration> {
        self.0.retry_in
    }

    /// Returns the error that caused this one.
    pub(crate) fn cause(&self) -> Option<&(dyn error::Error + Send + Sync + 'static)> {
        self.0.cause.as_deref()
    }
}

/// Returns the error as an `E`, also in a `Box` or an `Arc`.
fn downcast<'a, E: error::Error + 'static>(error: &'a (dyn error::Error + 'static)) -> Option<&'a E> {
    let boxed = || error.downcast_ref::<Box<E>>().map(|boxed| &**boxed);
    let shared = || error.downcast_ref::<Arc<E>>().map(|shared| &**shared);
    error.downcast_ref().or_else(boxed).or_else(shared)
}

/// Returns the error that this one wraps. Two types have the source of the error in them as their own source.
fn inner<'a>(error: &'a (dyn error::Error + 'static)) -> Option<&'a (dyn error::Error + 'static)> {
    if let Some(shared) = error.downcast_ref::<Arc<dyn error::Error + Send + Sync>>() {
        return Some(&**shared);
    }
    match downcast::<io::Error>(error).and_then(io::Error::get_ref) {
        Some(inner) => Some(inner),
        None => error.source(),
    }
}

/// Boxes the error of a fetch, so that [`Error::origin`] finds it.
#[cfg(feature = "_typed")]
pub(crate) fn into_cause<E: Into<BoxError> + 'static>(error: E) -> BoxError {
    #[cfg(feature = "anyhow")]
    let error = {
        let mut slot = Some(error);
        let any: &mut dyn std::any::Any = &mut slot;
        // The conversion of `anyhow::Error` hides the type of the error that it was made from.
        if let Some(error) = any.downcast_mut().and_then(Option::<anyhow::Error>::take) {
            return error.reallocate_into_boxed_dyn_error_without_backtrace();
        }
        let Some(error) = slot else { return "the fetch failed".into() }; // it is still there
        error
    };
    error.into()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.what)
    }
}

impl error::Error for Error {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        self.cause().map(|cause| cause as _)
    }
}

const FETCH_TIMED_OUT: &str = "the fetch was aborted; see `fetch_timeout`";
const DEADLINE_EXCEEDED: &str = "the answer would come after the deadline";
const WAIT_TIMED_OUT: &str = "no result came within the wait timeout";
/// Time until a rejected request may be retried.
const LATER: Duration = Duration::from_secs(1);
