//! Settings of the near cache.

use std::time::Duration;

/// The settings of a near cache: copies in this process of entries read from an external store. See
/// [`StampedeGuard::near_cache`](crate::StampedeGuard::near_cache).
///
/// # Defaults
///
/// [`max_age`](Self::max_age) is 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct NearCacheConfig {
    pub(crate) capacity: u64,
    pub(crate) max_age: Duration,
}

impl NearCacheConfig {
    /// Creates settings for a cache of at most `capacity` bytes: payloads, keys, and 256 bytes of bookkeeping per copy.
    /// Decoded values that are shared ([`fetch_arc`](crate::StampedeGuard::fetch_arc), heads of HTTP responses) are not
    /// counted. A cache of zero bytes keeps no copies. What is too large for a copy is the same as for a
    /// [`MemoryStore`](crate::MemoryStore#defaults) of this capacity; such an entry is read from the store each time, and
    /// counted ([`Stats::too_large`](crate::Stats::too_large)).
    pub fn max_bytes(capacity: u64) -> Self {
        Self { capacity, max_age: Duration::from_secs(1) }
    }

    /// Sets the maximum time a copy may be served after it was last confirmed. It bounds what is served after an
    /// [`invalidate`](crate::StampedeGuard::invalidate) has returned in another process. Default: 1 s.
    ///
    /// This is the worst case, after a lost connection or a suspended process. While the connection holds, messages
    /// drop copies within a round trip, and copies are served as long as they are fresh. The connection is checked
    /// every third of this time, at most once per millisecond. In a cluster there are no messages, and each copy ends this
    /// time after its read was sent.
    ///
    /// # Panics
    ///
    /// Panics if `bound` is zero.
    #[track_caller]
    pub fn max_age(self, bound: Duration) -> Self {
        assert!(!bound.is_zero(), "max_age must be greater than zero");
        Self { max_age: bound, ..self }
    }
}
