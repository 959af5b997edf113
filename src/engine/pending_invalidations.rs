//! The invalidations of one engine that are not finished: some are retried, others may still be lost by the store.

use crate::{
    clock::Timestamp,
    config::Config,
    key::CacheKey,
    sync::mutex::Mutex,
    telemetry::{self, Meter},
};
use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc,
        atomic::{
            AtomicI64, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};

/// The invalidations of one engine that are not finished.
#[derive(Default)]
pub(super) struct PendingInvalidations {
    /// Cache keys whose invalidation is retried, with the number of invalidations that have failed.
    retrying: Mutex<HashMap<CacheKey, u64>>,
    /// Invalidations that were acknowledged recently, oldest first.
    recent: Mutex<VecDeque<Acknowledged>>,
    /// The [epoch](crate::Store::epoch) of the store up to which lost invalidations have been sent again.
    epoch: AtomicU64,
    /// Send time of the last operation that was answered in that epoch.
    last_answer: AtomicI64,
}

/// A recent invalidation. It holds no [`Resource`](super::resource::Resource), which would keep its engine alive.
pub(crate) struct Acknowledged {
    pub(super) when: Timestamp,
    pub(super) config: Arc<Config>,
    pub(super) key: CacheKey,
}

impl PendingInvalidations {
    /// Remembers an invalidation that was just acknowledged.
    pub(super) fn remember(&self, acknowledged: Acknowledged) {
        let mut recent = self.recent.lock();
        if recent.len() == MAX_RECENT {
            recent.pop_front();
        }
        recent.push_back(acknowledged);
    }

    /// Records that an operation that was sent at `sent_at` was answered in this epoch. If the epoch has changed, takes
    /// the invalidations that may be lost: all that were acknowledged in the last seconds before the store fell silent,
    /// however long the silence was. They are remembered again when they are acknowledged again.
    pub(super) fn take_lost(&self, epoch: u64, sent_at: Timestamp) -> VecDeque<Acknowledged> {
        // Before the swap, after which a concurrent call may overwrite it.
        let last_answer = Timestamp::from_micros(self.last_answer.load(Relaxed));
        if self.epoch.load(Acquire) == epoch {
            self.last_answer.store(sent_at.as_micros(), Relaxed);
            // PERF: about once a second, because each answer of the store comes here.
            if sent_at.as_micros() >> 20 != last_answer.as_micros() >> 20 {
                self.recent.lock().retain(|entry| sent_at.since(entry.when) <= RECENT);
            }
            return VecDeque::new();
        }
        if self.epoch.swap(epoch, AcqRel) == epoch {
            return VecDeque::new();
        }
        // An invalidation that is acknowledged in the new epoch meanwhile is sent again as well, which costs a fetch.
        let mut lost = mem::take(&mut *self.recent.lock());
        lost.retain(|lost| last_answer.since(lost.when) <= RECENT);
        lost
    }

    /// Counts a failed invalidation, and claims its retries for the calling task. `None` if another task retries the
    /// cache key, or if the maximum number of cache keys is being retried.
    pub(super) fn claim_retry<'a>(&'a self, meter: &Meter, key: &'a CacheKey) -> Option<RetryEntry<'a>> {
        let mut retrying = self.retrying.lock();
        if let Some(failed) = retrying.get_mut(key) {
            *failed += 1;
            return None;
        }
        if retrying.len() >= MAX_RETRIED {
            drop(retrying);
            telemetry::invalidation_ended(meter, key, false);
            return None;
        }
        retrying.insert(key.clone(), 1);
        Some(RetryEntry { pending: self, key, has_ended: false })
    }
}

/// The claim of one task to retry the invalidation of a cache key. Released on drop, however the task ends.
pub(super) struct RetryEntry<'a> {
    pending: &'a PendingInvalidations,
    key: &'a CacheKey,
    has_ended: bool,
}

impl RetryEntry<'_> {
    /// Returns the number of invalidations of the cache key that have failed.
    pub(super) fn failed(&self) -> u64 {
        self.pending.retrying.lock().get(self.key).copied().unwrap_or_default()
    }

    /// Releases the claim, unless a later invalidation than these has failed. In one step: an invalidation that fails
    /// in between would find the claim, and no task would retry it.
    pub(super) fn end(&mut self, failed: u64) -> bool {
        let mut retrying = self.pending.retrying.lock();
        self.has_ended = retrying.get(self.key) == Some(&failed);
        if self.has_ended {
            retrying.remove(self.key);
        }
        self.has_ended
    }
}

impl Drop for RetryEntry<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.pending.retrying.lock().remove(self.key);
        }
    }
}

/// Maximum age of a remembered invalidation.
const RECENT: Duration = Duration::from_secs(10);
/// Maximum number of cache keys whose invalidation is retried, and of retries in flight. A [`Key`](crate::Key) is
/// short, so these are bounds of memory, too: with [`MAX_RECENT`] of about 5 MB.
const MAX_RETRIED: usize = 10_000;
pub(super) const MAX_RETRIES_IN_FLIGHT: usize = 64;
/// Maximum number of remembered invalidations.
const MAX_RECENT: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::explored::explore;
    use shuttle::{
        sync::atomic::{AtomicUsize, Ordering::SeqCst},
        thread,
    };

    /// Seen to fail when the check and the release of the claim are two steps, and when a claim that has ended releases
    /// the next one.
    #[test]
    fn invalidation_that_fails_while_retries_end_is_retried() {
        let meter = Arc::new(Meter::new(&"n".into())); // too large for the stack of an explored thread
        explore(move || {
            let pending = Arc::new(PendingInvalidations::default());
            let (requested, executed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let failing = [(); 3].map(|()| {
                let (pending, requested, executed) = (pending.clone(), requested.clone(), executed.clone());
                let meter = meter.clone();
                thread::spawn(move || {
                    let key = CacheKey::new("n", 0, vec![b'k']);
                    requested.fetch_add(1, SeqCst);
                    let Some(mut retry) = pending.claim_retry(&meter, &key) else { return };
                    loop {
                        let failed = retry.failed();
                        executed.store(requested.load(SeqCst), SeqCst);
                        if retry.end(failed) {
                            return;
                        }
                    }
                })
            });
            failing.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!((executed.load(SeqCst), pending.retrying.lock().len()), (3, 0));
        });
    }

    fn lost(pending: &PendingInvalidations, epoch: u64, sent_at: u64) -> usize {
        pending.take_lost(epoch, at(sent_at)).len()
    }

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(0).after(Duration::from_secs(seconds))
    }

    fn pending(acknowledged_at: u64) -> PendingInvalidations {
        let pending = PendingInvalidations::default();
        let (when, key) = (at(acknowledged_at), CacheKey::new("n", 0, vec![b'k']));
        pending.remember(Acknowledged { when, config: Arc::default(), key });
        pending
    }

    /// Seen to fail with keys that are kept whole, and if an answer forgets nothing.
    #[test]
    fn invalidations_of_long_keys_take_5_mb_for_ten_seconds() {
        let pending = PendingInvalidations::default();
        for n in 0..MAX_RECENT + 100 {
            let key = CacheKey::new("n", 0, format!("{n}{}", "x".repeat(600)));
            pending.remember(Acknowledged { when: at(1), config: Arc::default(), key });
        }
        let bytes = |entry: &Acknowledged| size_of::<Acknowledged>() + entry.key.primary().len();
        let total = || pending.recent.lock().iter().map(bytes).sum::<usize>();
        assert_eq!(pending.recent.lock().len(), MAX_RECENT);
        assert!(total() < 5_000_000, "{}", total());
        assert_eq!((lost(&pending, 0, 11), pending.recent.lock().len()), (0, MAX_RECENT));
        assert_eq!((lost(&pending, 0, 13), total()), (0, 0));
    }

    #[test]
    fn invalidation_is_lost_once_if_the_epoch_changes() {
        let pending = pending(1);
        assert_eq!([0, 1, 1].map(|epoch| lost(&pending, epoch, 2)), [0, 1, 0]);
    }

    #[test]
    fn invalidation_is_lost_however_long_the_store_was_silent() {
        let pending = pending(1);
        assert_eq!([(0, 11), (1, 1000)].map(|(epoch, sent_at)| lost(&pending, epoch, sent_at)), [0, 1]);
    }

    #[test]
    fn invalidation_long_before_the_last_answer_is_not_lost() {
        let pending = pending(1);
        assert_eq!([(0, 12), (1, 13)].map(|(epoch, sent_at)| lost(&pending, epoch, sent_at)), [0, 0]);
    }
}
