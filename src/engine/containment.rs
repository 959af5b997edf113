//! The bounds of a fetch: a panic of a shared one stays in it, and its deadline ends it. The panic of a fetch for one
//! caller goes on to that caller.

use crate::{
    clock::{self, Timestamp},
    error::{Error, ErrorKind},
    key::CacheKey,
    telemetry::{self, FetchFailure, Meter},
};
use futures_util::FutureExt;
use std::{
    future::Future,
    panic::{AssertUnwindSafe, resume_unwind},
    pin::pin,
    time::Duration,
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

/// Catches the panics of a part of a fetch, and stops it at the deadline. Calls `on_slow` if it runs for [`SLOW_FETCH`].
pub(super) fn contained<T>(
    deadline: Instant,
    on_slow: impl FnOnce(),
    part: impl Future<Output = T>,
) -> impl Future<Output = Result<T, Aborted>> {
    let caught = AssertUnwindSafe(part).catch_unwind().map(|done| done.map_err(|_| Aborted::Panicked));
    until(deadline, on_slow, caught).map(|done| done.unwrap_or(Err(Aborted::TimedOut)))
}

/// Awaits a part of a fetch until the deadline. PERF: one timer at a time, because most fetches are not slow.
async fn until<T>(deadline: Instant, on_slow: impl FnOnce(), part: impl Future<Output = T>) -> Option<T> {
    let mut part = pin!(part);
    let slow_at = clock::deadline_after(SLOW_FETCH);
    if slow_at < deadline {
        if let Ok(done) = timeout_at(slow_at, &mut part).await {
            return Some(done);
        }
        on_slow();
    }
    timeout_at(deadline, part).await.ok()
}

/// Reports a fetch that runs for [`SLOW_FETCH`].
pub(super) fn report_slow(meter: &Meter, key: &CacheKey) {
    telemetry::slow_fetch(meter, key, SLOW_FETCH);
}

/// Runs a fetch for one caller, and drops it at the deadline. Measures it, and counts its panic, which goes on to the
/// caller. `None` if it was dropped.
pub(super) async fn fetching_alone<T>(
    meter: &Meter,
    key: &CacheKey,
    deadline: Instant,
    fetch: impl Future<Output = T>,
) -> Option<T> {
    let ended = {
        let _timed = telemetry::fetching(meter, key, Timestamp::now());
        until(deadline, || report_slow(meter, key), AssertUnwindSafe(fetch).catch_unwind()).await
    };
    ended.map(|ended| {
        ended.unwrap_or_else(|panic| {
            telemetry::fetch_failed(meter, key, FetchFailure::Panicked);
            resume_unwind(panic)
        })
    })
}

impl Aborted {
    /// Returns the kind of the failure, and the error for the callers. `None` if there are none.
    pub(super) fn failure(&self) -> Option<(FetchFailure, Error)> {
        match self {
            Self::Panicked => Some((FetchFailure::Panicked, Error::new(ErrorKind::Panicked, "the fetch panicked"))),
            Self::TimedOut => Some((FetchFailure::TimedOut, Error::fetch_timed_out())),
            Self::BrokeOff => Some((FetchFailure::Origin, Error::new(ErrorKind::Origin, "the body broke off"))),
            Self::Detached => None,
        }
    }
}

/// Time after which a fetch that still runs is reported.
const SLOW_FETCH: Duration = Duration::from_secs(5);
