//! For the historical recipe `GetSet`: the clock of a host.

use std::{sync::Arc, time::Duration};

/// A function that returns the time since 1970.
pub(super) type WallClock = Arc<dyn Fn() -> Duration + Send + Sync>;

pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
