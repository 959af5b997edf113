//! How the near cache is set.

use std::time::Duration;

/// Settings of a near cache: copies, in this process, of what it has read from a store outside. See
/// [`StampedeGuard::near_cache`](crate::StampedeGuard::near_cache).
///
/// # Defaults
///
/// A [`max_age`](Self::max_age) of 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct NearCache {
    pub(crate) capacity: u64,
    pub(crate) max_age: Duration,
}

impl NearCache {
    /// At most that many bytes: payloads and keys, and 256 bytes of bookkeeping for each copy. What payloads decode to
    /// comes on top, where it is shared ([`fetch_arc`](crate::StampedeGuard::fetch_arc), heads of HTTP responses).
    pub fn bytes(capacity: u64) -> Self {
        Self { capacity, max_age: Duration::from_secs(1) }
    }

    /// For so long after it has last heard that a copy is as good as its entry, a process may serve it: the bound on what
    /// is served after an [`invalidate`](crate::StampedeGuard::invalidate) has returned in another process. From 10 ms to
    /// an hour, values outside are clamped.
    ///
    /// It is the worst case, for a connection that is lost and a process that was stopped. As long as the connection holds, copies are dropped by message, within
    /// a round trip, and are served for as long as they are fresh; every third of this time it is asked whether it does.
    pub fn max_age(self, bound: Duration) -> Self {
        Self { max_age: bound.clamp(Duration::from_millis(10), Duration::from_secs(3600)), ..self }
    }
}
