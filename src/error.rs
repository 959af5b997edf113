//! The error of everything that answers.

use std::{borrow::Cow, error, fmt, sync::Arc, time::Duration};

/// Any error that can cross threads; what fetchers may return.
pub type BoxError = Box<dyn error::Error + Send + Sync>;

/// Why there is no answer.
///
/// Cheap to clone, since everybody who waited for a failed fetch gets it. [`source`](error::Error::source) is the
/// origin's own error, and [`origin`](Self::origin) gives it back typed:
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

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The fetch failed; the source is its error.
    Origin,
    /// The fetch failed a moment ago, in another process as a rule, and left a tombstone. [`Error::retry_in`] says when
    /// it may be tried again, [`Error::code`] what was said of it.
    FailedElsewhere,
    /// The fetch took longer than `max_fetch` and was aborted.
    TimedOut,
    /// The fetch panicked.
    Panicked,
    /// The value cannot be stored with this codec: it does not encode, or does not decode again.
    Codec,
    /// The store did not acknowledge an [`invalidate`](crate::StampedeGuard::invalidate), or does not answer under
    /// [`Outage::FailClosed`](crate::Outage::FailClosed); otherwise a fetch goes on without the store.
    Store,
    /// A URL to invalidate that names no host, which is part of the keys.
    Url,
    /// Not computed, to spare the origin or because there was no time left: too many wait already, all places of the
    /// bulkhead were taken, the wait was over under [`AfterWait::Reject`](crate::AfterWait::Reject), or the deadline was
    /// too near. [`Error::retry_in`] says when it may be tried again.
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

    pub(crate) fn failed_elsewhere(code: u16, retry_in: Duration) -> Self {
        let what = format!("the fetch failed a moment ago, it may be tried again in {retry_in:?}");
        Self::build(ErrorKind::FailedElsewhere, what.into(), code, Some(retry_in), None)
    }

    pub(crate) fn store_down(source: BoxError) -> Self {
        let what = "the store does not answer, and nothing is computed without it (`Outage::FailClosed`)";
        Self::build(ErrorKind::Store, what.into(), 0, Some(LATER), Some(source))
    }

    pub(crate) fn overloaded(what: &'static str) -> Self {
        Self::build(ErrorKind::Overloaded, what.into(), 0, Some(LATER), None)
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

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The origin's own error, if it is an `E`.
    #[must_use]
    pub fn origin<E: error::Error + 'static>(&self) -> Option<&E> {
        self.0.source.as_ref()?.downcast_ref()
    }

    /// When it may be tried again: what failed elsewhere, or was refused.
    #[must_use]
    pub fn retry_in(&self) -> Option<Duration> {
        self.0.retry_in
    }

    /// What the process in which the fetch failed said of it: an HTTP status behind the HTTP layer, else 0.
    #[must_use]
    pub fn code(&self) -> u16 {
        self.0.code
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

/// When those may come back who were refused.
const LATER: Duration = Duration::from_secs(1);
