//! Settings of the outage cache.

use std::time::Duration;

/// The settings of the outage cache: results of this process that could not be stored. See
/// [`StampedeGuard::outage_cache`](crate::StampedeGuard::outage_cache).
///
/// # Defaults
///
/// 64 MiB, and a [`ttl`](Self::ttl) of 1 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct OutageCacheConfig {
    pub(crate) capacity: u64,
    pub(crate) ttl: Duration,
}

impl OutageCacheConfig {
    /// Creates settings for a cache of at most `capacity` bytes: payloads, keys, and 256 bytes of bookkeeping per
    /// entry. What is too large for an entry is the same as for a [`MemoryStore`](crate::MemoryStore#defaults) of this
    /// capacity. Such a result is not kept, and not counted. Zero turns the cache off.
    pub fn max_bytes(capacity: u64) -> Self {
        Self { capacity, ..Self::default() }
    }

    /// Sets how long after its response a result is used at most. It is never used longer than it is fresh. Zero turns
    /// the cache off. Default: 1 s.
    ///
    /// It bounds what this process may serve after another process has invalidated the key.
    pub fn ttl(self, limit: Duration) -> Self {
        Self { ttl: limit, ..self }
    }

    pub(crate) fn is_off(self) -> bool {
        self.capacity == 0 || self.ttl.is_zero()
    }
}

impl Default for OutageCacheConfig {
    fn default() -> Self {
        Self { capacity: 64 << 20, ttl: Duration::from_secs(1) }
    }
}
