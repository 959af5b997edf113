//! The statistics that a guard returns.

#[cfg(feature = "http")]
use crate::uncached::{Uncached, UncachedCounts};

/// The statistics of a guard and all its clones since it was created. The number of answers is the sum of the first
/// nine fields without `near_hits` and `outage_cache_hits`, which `hits` include.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Answers with [`CacheStatus::Hit`].
    pub hits: u64,
    /// Hits that were served from a copy of the [near cache](crate::NearCacheConfig).
    pub near_hits: u64,
    /// Answers from the [outage cache](crate::OutageCacheConfig), because the store was unavailable or refused writes.
    pub outage_cache_hits: u64,
    /// Answers with [`CacheStatus::Stale`].
    pub stale_hits: u64,
    /// Answers with [`CacheStatus::Miss`].
    pub misses: u64,
    /// Answers with [`CacheStatus::Coalesced`]: calls of the origin that were saved.
    pub coalesced: u64,
    /// Answers with [`CacheStatus::Bypass`].
    pub bypassed: u64,
    /// Answers with [`CacheStatus::FailOpen`]: from a fetch for this process only, for example without the store.
    pub failed_open: u64,
    /// Answers with [`CacheStatus::Rejected`].
    pub rejected: u64,
    /// Fills that came too late and were refused by the store.
    pub fenced: u64,
    /// Leases that were lost while their fetch was running.
    pub lease_losses: u64,
    /// Requests that reached their wait timeout, whatever answer they got then.
    pub wait_timeouts: u64,
    /// Store operations that failed or timed out.
    pub store_errors: u64,
    /// Times that a circuit breaker opened because the store was unavailable.
    pub breaker_opened: u64,
    /// Requests rejected with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    pub overloaded: u64,
    /// Fetches that would have waited for themselves through other fetches. Each request got a fetch of its own.
    pub deadlocks_avoided: u64,
    /// Entries that a [`MemoryStore`](crate::MemoryStore) or the [near cache](crate::NearCacheConfig) could not keep,
    /// because they are too large for it.
    pub too_large: u64,
    /// Fetches that were dropped before their response, because no request waited for them any more and
    /// [`max_detached`](crate::StampedeGuard::max_detached) other such fetches were running.
    pub fetches_dropped: u64,
    /// Reads of corrupt entries in the store: the bytes have changed since they were written, or were never an entry.
    /// Each was a miss. Guards that share a store object share the number.
    pub corrupt_entries: u64,
    #[cfg(feature = "http")]
    pub(super) uncached: UncachedCounts,
}

#[cfg(feature = "http")]
impl Stats {
    /// Returns the number of responses of the HTTP layer that were neither answered from the cache nor stored, for this
    /// reason. It is the number of responses with this `detail` in `Cache-Status`, with two exceptions, because the
    /// field is sent before the end of the body: a response of unknown length counts only if it is not stored after
    /// all, then for the reason that is found at its end, and a response that breaks off counts although its field says
    /// `stored`.
    ///
    /// The sum is not [`bypassed`](Self::bypassed), which counts requests that have a key. Requests that are forwarded
    /// without one, such as a POST, count only here.
    ///
    /// ```
    /// use stampede_guard::{StampedeGuard, http::Uncached};
    ///
    /// let stats = StampedeGuard::in_memory().stats();
    /// for reason in Uncached::ALL {
    ///     println!("stampede_guard_uncached_total{{reason=\"{reason}\"}} {}", stats.uncached(*reason));
    /// }
    /// ```
    #[must_use]
    pub fn uncached(&self, reason: Uncached) -> u64 {
        self.uncached.of(reason)
    }
}
