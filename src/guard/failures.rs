//! Settings for failed fetches.

use super::StampedeGuard;
use crate::config::failures::{Classifier, FailureClass};
use std::{error::Error, time::Duration};

impl StampedeGuard {
    /// Sets how long the marker of a failed fetch blocks its key in the store. Meanwhile the key is not fetched again:
    /// requests get the stale value, if the policy permits that on errors, otherwise the error of that fetch at once,
    /// with [`retry_in`](crate::Error::retry_in). The time doubles with each further failure, up to ten times this
    /// value. [`invalidate`](Self::invalidate) removes the marker. Zero: the guard leaves no markers, and
    /// obeys those of others. Default: 1 s. While the store is unavailable there is no marker.
    ///
    /// While the marker blocks the key, callers of the guard that fetched, and of its clones, get the error with its
    /// cause, for up to 1,024 keys at a time. The memory of an error is released at the next failure of any key after
    /// its block. Callers of other guards get the kind of the error and its [status](crate::Error::status).
    ///
    /// [`classify`](Self::classify) names errors that need no marker, because the request is their reason and not the
    /// origin.
    ///
    /// HTTP requests without a stale response are blocked for at most 100 ms, because another request may succeed. Then
    /// one of them tries, and the others wait for it. If the stored response was fresh within the last second (within
    /// `failure_ttl` if that is shorter), a 500 or a client error blocks none of them.
    ///
    /// # Panics
    ///
    /// Panics if `first` is longer than 99 s. The marker in Redis has six digits for ten times this value in
    /// milliseconds.
    #[must_use]
    #[track_caller]
    pub fn failure_ttl(self, first: Duration) -> Self {
        assert!(first <= LONGEST_FAILURE_TTL, "failure_ttl must be at most {LONGEST_FAILURE_TTL:?}");
        self.set(|config| config.failure_ttl = first)
    }

    /// Sets which errors of a fetch are answers of an origin that works. Default: none, every error is
    /// [`FailureClass::OriginDown`].
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() {
    /// use stampede_guard::{Error, FailureClass, StampedeGuard};
    /// use std::io;
    ///
    /// let guard = StampedeGuard::in_memory().classify(|error| match Error::find::<io::Error>(error) {
    ///     Some(error) if error.kind() == io::ErrorKind::NotFound => FailureClass::Answer,
    ///     _ => FailureClass::OriginDown,
    /// });
    /// let missing = async || Err::<String, _>(io::Error::from(io::ErrorKind::NotFound));
    /// let error = guard.fetch("user:0", missing).await.unwrap_err();
    /// assert!(error.origin::<io::Error>().is_some());
    /// // No failure marker blocks the key:
    /// assert_eq!(guard.fetch("user:0", async || Ok::<_, io::Error>("Ann".to_owned())).await.unwrap(), "Ann");
    /// # }
    /// ```
    ///
    /// The guard calls `classify` once per failed fetch, as a part of the fetch, so that a panic is a panic of the fetch.
    /// Its argument is the outermost error; [`Error::find`](crate::Error::find) searches the sources too. HTTP responses
    /// are classified by their status. A fetch that panics or times out is always `OriginDown`.
    ///
    /// To cache "there is none" as well, let the fetch return an `Option`.
    #[must_use]
    pub fn classify(self, classify: impl Fn(&(dyn Error + 'static)) -> FailureClass + Send + Sync + 'static) -> Self {
        self.set(|config| config.classifier = Classifier::new(classify))
    }
}

/// Ten times this value, in milliseconds, fits the six digits of a failure marker in Redis.
const LONGEST_FAILURE_TTL: Duration = Duration::from_secs(99);
