//! The statistics that a guard returns, and the counters that they add up.

use super::table::table;
#[cfg(feature = "http")]
use crate::uncached::UncachedCounts;
use crate::{cache_status::CacheStatus, hot_keys::HotKey};
#[cfg(feature = "_typed")]
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    (
        events { $($($(#[$doc:meta])+ $counter:ident $(= $status:ident)?)? $({ $($event:tt)+ })?;)+ }
        $($metrics:tt)+
    ) => {
        /// The statistics of a guard and all its clones since it was created. The number of answers is the sum of the
        /// first nine fields without `near_hits` and `outage_cache_hits`, which `hits` include.
        ///
        /// With the feature of a codec it implements `serde::Serialize`: all fields under their names. `uncached` is
        /// a map from reason to number, without the reasons that have not occurred.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($($(#[$doc])+ pub $counter: u64,)?)+
            /// Reads of corrupt entries in the store: the bytes have changed since they were written, or were never an
            /// entry. Each was a miss. A number of the store: guards that share a store object share the number, and so
            /// do all [names](crate::StampedeGuard::stats_by_name).
            pub corrupt_entries: u64,
            /// The busiest keys of the clone that was asked, the busiest one first. Empty without
            /// [`track_hot_keys`](crate::StampedeGuard::track_hot_keys), and in the statistics by name.
            pub hot_keys: Vec<HotKey>,
            #[cfg(feature = "http")]
            pub(super) uncached: UncachedCounts,
        }

        /// The counters of one thread, or of several that share them.
        ///
        /// PERF: aligned to two lines, because processors fetch lines in pairs.
        #[derive(Default)]
        #[repr(align(128))]
        pub(super) struct Stripe {
            $($(pub(super) $counter: AtomicU64,)?)+
        }

        impl Stripe {
            /// Returns the counter of answers with the status.
            pub(super) fn answers(&self, status: CacheStatus) -> &AtomicU64 {
                match status {
                    $($($(CacheStatus::$status => &self.$counter,)?)?)+
                }
            }

            pub(super) fn add_to(&self, stats: &mut Stats) {
                $($(stats.$counter += self.$counter.load(Relaxed);)?)+
            }
        }

        /// Written by hand, because it needs no code generator that way: the list of counters is here anyway.
        #[cfg(feature = "_typed")]
        impl Serialize for Stats {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let fields = [$($(stringify!($counter),)?)+].len() + 2 + usize::from(cfg!(feature = "http"));
                let mut stats = serializer.serialize_struct("Stats", fields)?;
                $($(stats.serialize_field(stringify!($counter), &self.$counter)?;)?)+
                stats.serialize_field("corrupt_entries", &self.corrupt_entries)?;
                stats.serialize_field("hot_keys", &self.hot_keys)?;
                #[cfg(feature = "http")]
                stats.serialize_field("uncached", &self.uncached)?;
                stats.end()
            }
        }
    };
}

table!(counters);
