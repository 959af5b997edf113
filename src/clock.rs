//! The only module that reads a clock or draws randomness. All other code gets `now` and a random number.
#![allow(clippy::disallowed_methods, reason = "this module is where they are allowed")]

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A moment on the monotonic clock of this process, in microseconds. It may lie before the process began.
///
/// It follows tokio's clock, so that a test that pauses time pauses freshness as well. The clocks of two hosts are
/// never compared: a store translates stored times into this clock ([`Entry::from_envelope`](crate::store::Entry)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Returns the current moment.
    #[must_use]
    pub fn now() -> Self {
        Self::of(now())
    }

    /// Converts a moment that was already read from tokio's clock.
    pub(crate) fn of(instant: tokio::time::Instant) -> Self {
        static BASE: OnceLock<Instant> = OnceLock::new();
        let now = instant.into_std();
        let base = *BASE.get_or_init(|| now);
        match now.checked_duration_since(base) {
            Some(after) => Self(micros(after)),
            None => Self(-micros(base - now) - 1), // rounded down, as later moments are
        }
    }

    /// Returns the moment `micros` microseconds after the origin of this clock, or before it if negative.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Returns the microseconds since the origin of this clock.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if that lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// Returns the moment `span` before this one.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// Returns the moment `span` after this one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }
}

/// Converts a span to microseconds, saturating.
fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the current moment for tokio's timers.
pub(crate) fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Returns the moment `span` ahead, for tokio's timers.
pub(crate) fn deadline_after(span: Duration) -> tokio::time::Instant {
    after(now(), span)
}

/// Returns the moment `span` after `start`, for tokio's timers. At most thirty years after it, because an `Instant`
/// that is out of range would panic.
pub(crate) fn after(start: tokio::time::Instant, span: Duration) -> tokio::time::Instant {
    start + span.min(THIRTY_YEARS)
}

/// Draws uniformly from `[0, 1)`, for jitter.
pub(crate) fn random_unit() -> f64 {
    fastrand::f64()
}

/// Returns random bytes from the operating system, which no two processes share, not even two copies of one machine
/// image.
pub(crate) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        // Without an entropy source the request need not fail: tokens only have to differ.
        bytes.fill_with(|| fastrand::u8(..));
    }
    bytes
}

/// Returns the time of day on this host's clock.
#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) fn wall_clock() -> std::time::SystemTime {
    std::time::SystemTime::now()
}

const THIRTY_YEARS: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
