//! What one clone of the guard reports to: the counters of its name, which add up to [`Stats`], and its metrics.

use super::{metrics::NamedMetrics, table::table};
#[cfg(feature = "http")]
use crate::uncached::Uncached;
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    hot_keys::{HotKey, HotKeys},
    sync::{
        mutex::Mutex,
        stripes::{self, STRIPES},
    },
};
#[cfg(feature = "_typed")]
use std::collections::HashSet;
use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

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
        #[cfg_attr(feature = "_typed", derive(serde::Serialize))]
        #[non_exhaustive]
        pub struct Stats {
            $($($(#[$doc])+ pub $counter: u64,)?)+
            /// Reads of corrupt entries in the store: the bytes have changed since they were written, or were never an
            /// entry. Each was a miss. A number of the store: guards that share a store object share the number, and so
            /// do all [names](crate::StampedeGuard::stats_by_name).
            pub corrupt_entries: u64,
            /// Reads of entries of another layout under the name of their reader's: of another version of a type, another
            /// [`schema_version`](crate::StampedeGuard::schema_version) or codec, or another version of this crate. And how
            /// often a layout has taken its other name because of such entries. A number of the store, as
            /// `corrupt_entries`.
            pub other_layouts: u64,
            /// Invalidations that the store has not acknowledged yet. The guard and its clones serve their keys
            /// from no store. Zero in the statistics by name.
            pub pending_invalidations: u64,
            /// The busiest keys of the clone that was asked, the busiest one first. Empty without
            /// [`track_hot_keys`](crate::StampedeGuard::track_hot_keys), and in the statistics by name.
            pub hot_keys: Vec<HotKey>,
            /// The reasons that have occurred.
            #[cfg(feature = "http")]
            uncached: BTreeMap<&'static str, u64>,
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

            fn add_to(&self, stats: &mut Stats) {
                $($(stats.$counter += self.$counter.load(Relaxed);)?)+
            }
        }
    };
}

table!(counters);

#[cfg(feature = "http")]
impl Stats {
    /// Returns the number of responses of the HTTP layer that were neither answered from the cache nor stored, for this
    /// reason. It is the number of responses with this `detail` in `Cache-Status`, with two exceptions, because the
    /// field is sent before the end of the body. A response of unknown length counts only if it is not stored after
    /// all, for the reason that is found at its end. A response that breaks off counts although its field says
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
        self.uncached.get(reason.as_str()).copied().unwrap_or_default()
    }
}

/// Counts and reports what happens to the requests of one clone of the guard, under its name.
#[derive(Clone)]
pub(crate) struct Meter {
    pub(super) name: Arc<str>,
    pub(super) counters: Arc<Counters>,
    pub(super) metrics: Arc<NamedMetrics>,
    /// The host of the server, for spans and events.
    pub(crate) server: Option<Arc<str>>,
    /// Whether events and spans show keys, instead of their hashes only.
    pub(crate) log_keys: bool,
    pub(crate) hot_keys: Option<Arc<HotKeys>>,
}

impl Meter {
    /// Creates the meter of a new guard.
    pub(crate) fn new(namespace: &Arc<str>) -> Self {
        let (name, counters) = (Arc::from(DEFAULT_NAME), Arc::<Counters>::default());
        let metrics = counters.metrics(namespace, &name);
        Self { name, counters, metrics, server: None, log_keys: false, hot_keys: None }
    }

    /// Returns the hot keys of this clone, the busiest one first.
    pub(crate) fn hottest_keys(&self) -> Vec<HotKey> {
        self.hot_keys.as_deref().map(HotKeys::snapshot).unwrap_or_default()
    }

    /// Returns the counters of an engine whose first name is that of this meter.
    pub(crate) fn named_counters(&self) -> NamedCounters {
        NamedCounters(Mutex::new(BTreeMap::from([(self.name.clone(), self.counters.clone())])))
    }

    /// Changes the name, and registers its metrics. An empty name is the default.
    pub(crate) fn rename(&mut self, name: &str, all: &NamedCounters, namespace: &Arc<str>) {
        self.name = if name.is_empty() { DEFAULT_NAME } else { name }.into();
        self.counters = all.0.lock().entry(self.name.clone()).or_default().clone();
        self.set_namespace(namespace);
        self.register_metrics();
    }

    pub(crate) fn set_namespace(&mut self, namespace: &Arc<str>) {
        self.metrics = self.counters.metrics(namespace, &self.name);
    }

    /// Registers the metrics of this clone, if there is a recorder and they are not registered yet.
    pub(crate) fn register_metrics(&self) {
        self.metrics.get();
    }
}

impl fmt::Debug for Meter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Meter").field("name", &self.name).field("log_keys", &self.log_keys).finish_non_exhaustive()
    }
}

/// The counters of the clones with one name.
#[derive(Default)]
pub(crate) struct Counters {
    /// Threads that count the same seldom write to the same cache line.
    stripes: [Stripe; STRIPES], // of 256 bytes each
    pub(super) reported_rejections: Throttle,
    pub(super) reported_refusals: Throttle,
    pub(super) reported_invalidations: Throttle,
    pub(super) reported_wait_timeouts: Throttle,
    pub(super) reported_drops: Throttle,
    pub(super) reported_slow_fetches: Throttle,
    pub(super) reported_sizes: Throttle,
    /// The types, with their codecs, that were reported because their values do not survive their codec.
    #[cfg(feature = "_typed")]
    pub(super) uncodable_types: Mutex<HashSet<(&'static str, String)>>,
    /// Not in stripes: the origin has answered each of these requests, which takes longer.
    #[cfg(feature = "http")]
    uncached: Mutex<BTreeMap<&'static str, u64>>,
    /// The metrics of the name in each namespace, so that a view that is made for each request registers nothing again.
    metrics: Mutex<BTreeMap<Arc<str>, Arc<NamedMetrics>>>,
}

impl Counters {
    fn metrics(&self, namespace: &Arc<str>, name: &Arc<str>) -> Arc<NamedMetrics> {
        let create = || NamedMetrics::new(&[namespace, name]).into();
        self.metrics.lock().entry(namespace.clone()).or_insert_with(create).clone()
    }

    /// Returns the statistics with these counts added.
    fn added_to(&self, mut stats: Stats) -> Stats {
        self.stripes.iter().for_each(|stripe| stripe.add_to(&mut stats));
        #[cfg(feature = "http")]
        for (reason, count) in &*self.uncached.lock() {
            *stats.uncached.entry(reason).or_default() += count;
        }
        stats
    }

    /// Adds one to the counter, in the stripe of this thread.
    pub(super) fn count(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64) {
        counter(&self.stripes[stripes::of_this_thread()]).fetch_add(1, Relaxed);
    }

    #[cfg(feature = "http")]
    pub(super) fn count_uncached(&self, reason: Uncached) {
        *self.uncached.lock().entry(reason.as_str()).or_default() += 1;
    }
}

/// The counters of one engine by name. A name stays for the life of the engine, so that no count is lost with the last
/// clone that has it.
pub(crate) struct NamedCounters(Mutex<BTreeMap<Arc<str>, Arc<Counters>>>);

impl NamedCounters {
    /// Returns the sum over all names, and what the store has counted.
    pub(crate) fn total(&self, corrupt_entries: u64, other_layouts: u64) -> Stats {
        let of_store = Stats { corrupt_entries, other_layouts, ..Stats::default() };
        self.0.lock().values().fold(of_store, |total, counters| counters.added_to(total))
    }

    pub(crate) fn by_name(&self, corrupt_entries: u64, other_layouts: u64) -> BTreeMap<String, Stats> {
        let of_store = Stats { corrupt_entries, other_layouts, ..Stats::default() };
        let stats = |counters: &Counters| counters.added_to(of_store.clone());
        self.0.lock().iter().map(|(name, counters)| (name.to_string(), stats(counters))).collect()
    }
}

/// Lets one report pass per minute. What is reported may occur with each request.
#[derive(Default)]
pub(super) struct Throttle {
    last: Mutex<Option<Timestamp>>,
}

impl Throttle {
    /// Reports whether a report may pass now, and counts it if so.
    pub(super) fn is_due(&self) -> bool {
        self.is_due_at(Timestamp::now())
    }

    fn is_due_at(&self, now: Timestamp) -> bool {
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| now.since(last) >= PAUSE);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

const DEFAULT_NAME: &str = "default";
/// Minimum time between two reports.
const PAUSE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Seen to fail when a snapshot read one stripe only.
    #[test]
    fn counts_of_all_threads_add_up_exactly() {
        let counters = Counters::default();
        let (threads, answers) = (2 * STRIPES as u64, 1_000);
        thread::scope(|scope| {
            for thread in 0..threads {
                let (counters, is_hit) = (&counters, thread % 2 == 0);
                let count = move |_| counters.count(|stripe| if is_hit { &stripe.hits } else { &stripe.misses });
                scope.spawn(move || (0..answers).for_each(count));
            }
        });
        let half = threads / 2 * answers;
        let named = NamedCounters(Mutex::new(BTreeMap::from([("n".into(), Arc::new(counters))])));
        let total = Stats { hits: half, misses: half, corrupt_entries: 7, other_layouts: 3, ..Stats::default() };
        assert_eq!(named.total(7, 3), total);
    }

    #[test]
    fn counters_of_a_name_take_at_most_16_kib() {
        assert!(size_of::<Counters>() <= 16 << 10, "{}", size_of::<Counters>());
    }

    #[test]
    fn throttle_lets_one_report_pass_per_minute() {
        let throttle = Throttle::default();
        let at = |seconds: i64| throttle.is_due_at(Timestamp::from_micros(seconds * 1_000_000));
        let passed = [-70, -60, -11, -10, 0, 49, 50, 51].map(at);
        assert_eq!(passed, [true, false, false, true, false, false, true, false]);
    }
}
