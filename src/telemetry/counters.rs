//! The counters of an engine, by name.

use super::stats::{Stats, Stripe};
#[cfg(feature = "_typed")]
use crate::codec::Codec;
#[cfg(feature = "http")]
use crate::uncached::{Uncached, UncachedCounters};
use crate::{
    sync::{
        mutex::Mutex,
        stripes::{self, STRIPES},
    },
    throttle::Throttle,
};
#[cfg(feature = "_typed")]
use std::collections::HashSet;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// The counters of the clones with one name.
#[derive(Default)]
pub(crate) struct Counters {
    /// Threads that count the same seldom write to the same cache line.
    stripes: [Stripe; STRIPES], // of 256 bytes each
    pub(super) reported_rejections: Throttle,
    pub(super) reported_wait_timeouts: Throttle,
    pub(super) reported_drops: Throttle,
    /// The types that were reported because their values do not survive their codec.
    #[cfg(feature = "_typed")]
    pub(super) uncodable_types: Mutex<HashSet<(&'static str, Codec)>>,
    /// Not in stripes: the origin has answered each of these requests, which takes longer.
    #[cfg(feature = "http")]
    pub(super) uncached: UncachedCounters,
}

impl Counters {
    /// Adds the counts to the statistics.
    pub(super) fn add_to(&self, stats: &mut Stats) {
        self.stripes.iter().for_each(|stripe| stripe.add_to(stats));
        #[cfg(feature = "http")]
        self.uncached.add_to(&mut stats.uncached);
    }

    /// Adds one to the counter, in the stripe of this thread.
    pub(super) fn count(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64) {
        counter(&self.stripes[stripes::of_this_thread()]).fetch_add(1, Relaxed);
    }
}

/// The counters of one engine by name. A name stays for the life of the engine, so that no count is lost with the last
/// clone that has it.
pub(crate) struct NamedCounters(Mutex<BTreeMap<Arc<str>, Arc<Counters>>>);

impl NamedCounters {
    pub(super) fn new(name: Arc<str>, counters: Arc<Counters>) -> Self {
        Self(Mutex::new(BTreeMap::from([(name, counters)])))
    }

    /// Returns the counters of the name.
    pub(super) fn of(&self, name: &Arc<str>) -> Arc<Counters> {
        self.0.lock().entry(name.clone()).or_default().clone()
    }

    /// Returns the sum over all names.
    pub(crate) fn total(&self, corrupt_entries: u64) -> Stats {
        let mut total = Stats { corrupt_entries, ..Stats::default() };
        self.0.lock().values().for_each(|counters| counters.add_to(&mut total));
        total
    }

    pub(crate) fn by_name(&self, corrupt_entries: u64) -> BTreeMap<String, Stats> {
        let stats = |counters: &Counters| {
            let mut stats = Stats { corrupt_entries, ..Stats::default() };
            counters.add_to(&mut stats);
            stats
        };
        self.0.lock().iter().map(|(name, counters)| (name.to_string(), stats(counters))).collect()
    }
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
        let named = NamedCounters::new("n".into(), Arc::new(counters));
        assert_eq!(named.total(7), Stats { hits: half, misses: half, corrupt_entries: 7, ..Stats::default() });
    }

    #[test]
    fn counters_of_a_name_take_at_most_16_kib() {
        assert!(size_of::<Counters>() <= 16 << 10, "{}", size_of::<Counters>());
    }
}
