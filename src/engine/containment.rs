//! The bounds of a fetch: a panic of a shared one stays in it, and its deadline ends it. The panic of a fetch for one
//! caller goes on to that caller.

use crate::{
    clock::Timestamp,
    config::Config,
    error::{Error, ErrorKind},
    key::CacheKey,
    telemetry::{self, FetchFailure, Meter},
};
use futures_util::FutureExt;
use std::{
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
};
use tokio::time::{Instant, timeout_at};

/// The reason why a part of a fetch was aborted.
pub(super) enum Aborted {
    Panicked,
    TimedOut,
    /// The body of the response broke off.
    BrokeOff,
    /// No caller waits for the fetch any more, and all `max_detached` permits are in use.
    Detached,
}

/// Catches the panics of a part of a fetch, and stops it at the deadline.
pub(super) fn contained<T>(
    deadline: Instant,
    part: impl Future<Output = T>,
) -> impl Future<Output = Result<T, Aborted>> {
    let caught = AssertUnwindSafe(part).catch_unwind().map(|done| done.map_err(|_| Aborted::Panicked));
    timeout_at(deadline, caught).map(|done| done.unwrap_or(Err(Aborted::TimedOut)))
}

/// Runs a fetch for one caller. Measures it, and counts its panic, which goes on to the caller.
pub(super) async fn fetching_alone<T>(meter: &Meter, key: &CacheKey, fetch: impl Future<Output = T>) -> T {
    let ended = {
        let _timed = telemetry::fetching(meter, key, Timestamp::now());
        AssertUnwindSafe(fetch).catch_unwind().await
    };
    ended.unwrap_or_else(|panic| {
        telemetry::fetch_failed(meter, key, FetchFailure::Panicked);
        resume_unwind(panic)
    })
}

impl Aborted {
    /// Returns the kind of the failure, and the error for the callers. `None` if there are none.
    pub(super) fn failure(&self, config: &Config) -> Option<(FetchFailure, Error)> {
        match self {
            Self::Panicked => Some((FetchFailure::Panicked, Error::new(ErrorKind::Panicked, "the fetch panicked"))),
            Self::TimedOut => {
                let what = format!("the fetch was aborted after {:?}; see `fetch_timeout`", config.fetch_timeout);
                Some((FetchFailure::TimedOut, Error::new(ErrorKind::TimedOut, what)))
            }
            Self::BrokeOff => Some((FetchFailure::Origin, Error::new(ErrorKind::Origin, "the body broke off"))),
            Self::Detached => None,
        }
    }
}
