//! The only place that reads a clock or draws randomness; everything else is handed `now` and a draw.
#![allow(clippy::disallowed_methods, reason = "this module is where they are allowed")]

use std::{
    sync::OnceLock,
    time::{Duration, Instant},
};

/// A moment on the monotonic clock of this process, in microseconds; it may lie before the process began.
///
/// It follows tokio's clock, so that a test that pauses time pauses freshness as well. Clocks of two hosts are never
/// compared: a store translates what it reads into this clock ([`Entry::from_envelope`](crate::store::Entry)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// This moment.
    #[must_use]
    pub fn now() -> Self {
        Self::of(now())
    }

    /// That moment, for which the clock was read already.
    pub(crate) fn of(instant: tokio::time::Instant) -> Self {
        static BASE: OnceLock<Instant> = OnceLock::new();
        let now = instant.into_std();
        let base = *BASE.get_or_init(|| now);
        match now.checked_duration_since(base) {
            Some(after) => Self(micros(after)),
            None => Self(-micros(base - now)),
        }
    }

    /// The moment that many microseconds after (or before) the origin of this clock.
    #[must_use]
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the origin of this clock.
    #[must_use]
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// Time since `earlier`; zero if that lies ahead.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }

    /// The moment `span` before this one.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(micros(span)))
    }

    /// The moment `span` after this one.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        Self(self.0.saturating_add(micros(span)))
    }
}

/// Microseconds of a span, saturating.
fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// This moment, for tokio's timers.
pub(crate) fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// The moment that far ahead, for tokio's timers.
pub(crate) fn in_future(span: Duration) -> tokio::time::Instant {
    now() + span
}

/// A uniform draw from `[0, 1)`, for jitter.
pub(crate) fn draw() -> f64 {
    fastrand::f64()
}

/// Random bytes that two processes never share, not even two copies of one machine image: from the operating system.
pub(crate) fn unique<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if getrandom::fill(&mut bytes).is_err() {
        // No entropy source is no reason to fail a request: tokens only have to differ.
        bytes.fill_with(|| fastrand::u8(..));
    }
    bytes
}

/// The time of day as this host believes it to be.
#[cfg(any(feature = "http", feature = "redis"))]
pub(crate) fn wall() -> std::time::SystemTime {
    std::time::SystemTime::now()
}
