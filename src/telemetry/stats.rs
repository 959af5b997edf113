//! The statistics that a guard returns.

#[cfg(feature = "http")]
use crate::uncached::{Uncached, UncachedCounts};
#[cfg(feature = "_typed")]
use serde::ser::SerializeStruct;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Defines the counters: for each one its documentation and its name, in the statistics and in a stripe of
/// [`Counters`](super::counters::Counters).
macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// The statistics of a guard and all its clones since it was created. The number of answers is the sum of the
        /// first nine fields without `near_hits` and `outage_cache_hits`, which `hits` include.
        ///
        /// With the feature of a codec it implements `serde::Serialize`: all fields under their names. `uncached` is
        /// a map from reason to number, without the reasons that have not occurred.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[$doc])+ pub $name: u64,)+
            /// Reads of corrupt entries in the store: the bytes have changed since they were written, or were never an
            /// entry. Each was a miss. A number of the store: guards that share a store object share the number, and so
            /// do all [names](crate::StampedeGuard::stats_by_name).
            pub corrupt_entries: u64,
            #[cfg(feature = "http")]
            pub(super) uncached: UncachedCounts,
        }

        /// PERF: aligned to two lines, because processors fetch lines in pairs.
        #[derive(Default)]
        #[repr(align(128))]
        pub(super) struct Stripe {
            $(pub(super) $name: AtomicU64,)+
        }

        impl Stats {
            /// Adds the counts of a stripe.
            pub(super) fn add(&mut self, stripe: &Stripe) {
                $(self.$name += stripe.$name.load(Relaxed);)+
            }
        }

        /// Written by hand, because it needs no code generator that way: the list of counters is here anyway.
        #[cfg(feature = "_typed")]
        impl serde::Serialize for Stats {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let fields = [$(stringify!($name),)+].len() + 1 + usize::from(cfg!(feature = "http"));
                let mut stats = serializer.serialize_struct("Stats", fields)?;
                $(stats.serialize_field(stringify!($name), &self.$name)?;)+
                stats.serialize_field("corrupt_entries", &self.corrupt_entries)?;
                #[cfg(feature = "http")]
                stats.serialize_field("uncached", &self.uncached)?;
                stats.end()
            }
        }
    };
}

counters! {
    /// Answers with [`CacheStatus::Hit`](crate::CacheStatus::Hit).
    hits,
    /// Hits that were served from a copy of the [near cache](crate::NearCacheConfig).
    near_hits,
    /// Answers from the [outage cache](crate::OutageCacheConfig), because the store was unavailable or refused writes.
    outage_cache_hits,
    /// Answers with [`CacheStatus::Stale`](crate::CacheStatus::Stale).
    stale_hits,
    /// Answers with [`CacheStatus::Miss`](crate::CacheStatus::Miss).
    misses,
    /// Answers with [`CacheStatus::Coalesced`](crate::CacheStatus::Coalesced): calls of the origin that were saved.
    coalesced,
    /// Answers with [`CacheStatus::Bypass`](crate::CacheStatus::Bypass).
    bypassed,
    /// Answers with [`CacheStatus::FailOpen`](crate::CacheStatus::FailOpen): from a fetch for this process only, for example without the store.
    failed_open,
    /// Answers with [`CacheStatus::Rejected`](crate::CacheStatus::Rejected).
    rejected,
    /// Fills that came too late and were refused by the store.
    fenced,
    /// Leases that were lost while their fetch was running.
    lease_losses,
    /// Requests that reached their wait timeout, whatever answer they got then.
    wait_timeouts,
    /// Store operations that failed or timed out.
    store_errors,
    /// Times that a circuit breaker opened because the store was unavailable.
    breaker_opened,
    /// Requests rejected with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded).
    overloaded,
    /// Fetches that would have waited for themselves through other fetches. Each request got a fetch of its own.
    deadlocks_avoided,
    /// Entries that a [`MemoryStore`](crate::MemoryStore) or the [near cache](crate::NearCacheConfig) could not keep,
    /// because they are too large for it.
    too_large,
    /// Fetches that were dropped before their response, because no request waited for them any more and
    /// [`max_detached`](crate::StampedeGuard::max_detached) other such fetches were running.
    fetches_dropped,
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
