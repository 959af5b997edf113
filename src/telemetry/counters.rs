//! The counters of an engine.

#[cfg(feature = "http")]
use super::routes::Routes;
use super::stats::Stats;
#[cfg(feature = "http")]
use crate::uncached::UncachedCounters;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// The counters of an engine.
#[derive(Default)]
pub(crate) struct Counters {
    /// Threads that count the same seldom write to the same cache line.
    stripes: [Stripe; STRIPES],
    /// Not in stripes: the origin has answered each of these requests, which takes longer.
    #[cfg(feature = "http")]
    pub(super) uncached: UncachedCounters,
    #[cfg(feature = "http")]
    pub(crate) routes: Routes,
}

/// PERF: aligned to two lines, because processors fetch lines in pairs.
#[derive(Default)]
#[repr(align(128))]
pub(super) struct Stripe {
    pub(super) hits: AtomicU64,
    pub(super) near_hits: AtomicU64,
    pub(super) outage_cache_hits: AtomicU64,
    pub(super) stale_hits: AtomicU64,
    pub(super) misses: AtomicU64,
    pub(super) coalesced: AtomicU64,
    pub(super) bypassed: AtomicU64,
    pub(super) failed_open: AtomicU64,
    pub(super) rejected: AtomicU64,
    pub(super) fenced: AtomicU64,
    pub(super) lease_losses: AtomicU64,
    pub(super) wait_timeouts: AtomicU64,
    pub(super) store_errors: AtomicU64,
    pub(super) breaker_opened: AtomicU64,
    pub(super) overloaded: AtomicU64,
    pub(super) deadlocks_avoided: AtomicU64,
    pub(super) too_large: AtomicU64,
    pub(super) fetches_dropped: AtomicU64,
}

impl Counters {
    pub(crate) fn snapshot(&self, corrupt_entries: u64) -> Stats {
        let sum =
            |counter: fn(&Stripe) -> &AtomicU64| self.stripes.iter().map(|stripe| counter(stripe).load(Relaxed)).sum();
        Stats {
            hits: sum(|stripe| &stripe.hits),
            near_hits: sum(|stripe| &stripe.near_hits),
            outage_cache_hits: sum(|stripe| &stripe.outage_cache_hits),
            stale_hits: sum(|stripe| &stripe.stale_hits),
            misses: sum(|stripe| &stripe.misses),
            coalesced: sum(|stripe| &stripe.coalesced),
            bypassed: sum(|stripe| &stripe.bypassed),
            failed_open: sum(|stripe| &stripe.failed_open),
            rejected: sum(|stripe| &stripe.rejected),
            fenced: sum(|stripe| &stripe.fenced),
            lease_losses: sum(|stripe| &stripe.lease_losses),
            wait_timeouts: sum(|stripe| &stripe.wait_timeouts),
            store_errors: sum(|stripe| &stripe.store_errors),
            breaker_opened: sum(|stripe| &stripe.breaker_opened),
            overloaded: sum(|stripe| &stripe.overloaded),
            deadlocks_avoided: sum(|stripe| &stripe.deadlocks_avoided),
            too_large: sum(|stripe| &stripe.too_large),
            fetches_dropped: sum(|stripe| &stripe.fetches_dropped),
            corrupt_entries,
            #[cfg(feature = "http")]
            uncached: self.uncached.snapshot(),
        }
    }

    /// Adds one to the counter, in the stripe of this thread.
    pub(super) fn count(&self, counter: impl FnOnce(&Stripe) -> &AtomicU64) {
        counter(&self.stripes[STRIPE.with(|stripe| *stripe)]).fetch_add(1, Relaxed);
    }
}

thread_local! {
    /// Threads take the stripes in turn.
    static STRIPE: usize = {
        static THREADS: AtomicUsize = AtomicUsize::new(0);
        THREADS.fetch_add(1, Relaxed) % STRIPES
    };
}

/// More than most machines have cores. A stripe takes 256 bytes.
const STRIPES: usize = 32;
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
        assert_eq!(counters.snapshot(7), Stats { hits: half, misses: half, corrupt_entries: 7, ..Stats::default() });
    }

    #[test]
    fn counters_of_an_engine_take_at_most_16_kib() {
        assert!(size_of::<Counters>() <= 16 << 10, "{}", size_of::<Counters>());
    }
}
