//! Invalidations: acknowledged, or retried in the background, and sent again when the store may have lost them.

use super::{Engine, resource::Resource};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::Config,
    error::{Error, ErrorKind},
    key::CacheKey,
    store::error::StoreError,
    sync::mutex::Mutex,
    telemetry,
};
use futures_util::{StreamExt, stream};
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
use tokio::sync::oneshot;

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

/// A recent invalidation. Not a [`Resource`], which would keep its engine alive.
struct Acknowledged {
    when: Timestamp,
    /// The epoch of the store that acknowledged it.
    epoch: u64,
    config: Arc<Config>,
    key: CacheKey,
}

impl Resource {
    /// Drops the entry and the lease; for a URL, the entries and leases of all its methods and schemes. Requests made
    /// afterwards join no flight or lookup that this engine had begun before.
    ///
    /// Cancel safe: the work is done in a task, which continues when the caller is dropped. If the store does not
    /// acknowledge, the task tries again in the background for about ten seconds.
    pub(crate) async fn invalidate(self) -> Result<(), Error> {
        let tasks = self.engine.tasks.clone();
        let (acknowledge, acknowledged) = oneshot::channel();
        tasks.spawn(async move {
            let answer = self.drop_everywhere(Attempt::First).await;
            let error = answer.as_ref().err().cloned();
            let _ = acknowledge.send(answer);
            if let Some(error) = error {
                self.retry_in_background(&error).await;
            }
        });
        let lost = |source| Error::with_source(ErrorKind::Store, "the invalidation was not acknowledged", source);
        match acknowledged.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(error.into())),
            Err(dropped) => Err(lost(dropped.into())),
        }
    }

    /// Tries again for about ten seconds after the last failed invalidation of the cache key. One task does so per
    /// cache key.
    async fn retry_in_background(&self, error: &StoreError) {
        let Some(retry) = RetryEntry::claim(self) else { return };
        telemetry::invalidation_failed(&self.key, error);
        let (mut attempt, mut failed) = (0, retry.failed());
        while attempt < INVALIDATE_ATTEMPTS {
            tokio::time::sleep(backoff::poll(attempt, clock::random_unit())).await;
            let answer = self.drop_everywhere(Attempt::Retry).await;
            match retry.failed() {
                // If a later invalidation has failed, start over: the store may have executed this attempt before the
                // later one was requested.
                now if now != failed => (attempt, failed) = (0, now),
                _ if answer.is_ok() => return telemetry::invalidation_ended(&self.key, true),
                _ => attempt += 1,
            }
        }
        telemetry::invalidation_ended(&self.key, false);
    }

    async fn drop_everywhere(&self, attempt: Attempt) -> Result<(), StoreError> {
        let keys = self.key.invalidated();
        let answer = self.drop_entries(&keys).await;
        // What this process has begun since the first attempt is newer than the invalidation.
        if attempt == Attempt::Retry && answer.is_err() {
            return answer;
        }
        // After the store has dropped the entries: a read that began before may have returned an old one.
        self.engine.flights.forget(&keys);
        for key in &keys {
            self.engine.redirect_cache.forget(key);
            self.engine.forget_copies(key);
        }
        if answer.is_ok() {
            self.remember();
        }
        answer
    }

    /// Remembers an invalidation that was just acknowledged.
    fn remember(&self) {
        let (now, invalidations) = (Timestamp::now(), &self.engine.invalidations);
        let mut recent = invalidations.recent.lock();
        while recent.len() >= MAX_RECENT || recent.front().is_some_and(|oldest| now.since(oldest.when) > RECENT) {
            recent.pop_front();
        }
        let epoch = self.engine.store.epoch();
        recent.push_back(Acknowledged { when: now, epoch, config: self.config.clone(), key: self.key.clone() });
    }
}

impl Engine {
    /// Handles an answer of the store to an operation that was sent at `sent_at`. If the epoch has changed, sends
    /// recent invalidations again in the background: all that were acknowledged in the last seconds before the store
    /// fell silent. They may be lost, however long the silence was.
    pub(super) fn replay_after_reconnect(self: &Arc<Self>, sent_at: Timestamp) {
        let (epoch, invalidations) = (self.store.epoch(), &self.invalidations);
        if invalidations.epoch.load(Acquire) == epoch {
            return invalidations.last_answer.store(sent_at.as_micros(), Relaxed);
        }
        let last_answer = Timestamp::from_micros(invalidations.last_answer.load(Relaxed)); // before a concurrent call overwrites it
        if invalidations.epoch.swap(epoch, AcqRel) == epoch {
            return;
        }
        let mut recent = invalidations.recent.lock();
        // The lost invalidations are remembered again when they are acknowledged again.
        let (lost, kept): (VecDeque<_>, _) =
            mem::take(&mut *recent).into_iter().partition(|entry| entry.epoch != epoch);
        *recent = kept;
        drop(recent);
        let recent: Vec<_> = lost
            .into_iter()
            .filter(|lost| last_answer.since(lost.when) <= RECENT)
            .map(|Acknowledged { config, key, .. }| Resource { engine: self.clone(), config, key, deadline: None })
            .collect();
        if recent.is_empty() {
            return;
        }
        telemetry::replaying_invalidations(&recent[0].key, recent.len());
        self.tasks.spawn(stream::iter(recent).for_each_concurrent(MAX_CONCURRENT, async |resource| {
            if let Err(error) = resource.drop_everywhere(Attempt::First).await {
                resource.retry_in_background(&error).await;
            }
        }));
    }
}

/// The claim of one task to retry the invalidation of a cache key. Released on drop, however the task ends.
struct RetryEntry<'a>(&'a Resource);

impl<'a> RetryEntry<'a> {
    /// Counts a failure. `None` if another task retries the cache key already.
    fn claim(resource: &'a Resource) -> Option<Self> {
        let mut table = resource.engine.invalidations.retrying.lock();
        let failed = table.entry(resource.key.clone()).or_default();
        *failed += 1;
        (*failed == 1).then(|| Self(resource))
    }

    fn failed(&self) -> u64 {
        self.0.engine.invalidations.retrying.lock().get(&self.0.key).copied().unwrap_or_default()
    }
}

impl Drop for RetryEntry<'_> {
    fn drop(&mut self) {
        self.0.engine.invalidations.retrying.lock().remove(&self.0.key);
    }
}

/// An attempt to invalidate a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Retry,
}

/// Maximum number of retries, about ten seconds.
const INVALIDATE_ATTEMPTS: u32 = 24;
/// Maximum age of a remembered invalidation.
const RECENT: Duration = Duration::from_secs(10);
/// Maximum number of remembered invalidations.
const MAX_RECENT: usize = 10_000;
/// Maximum number of invalidations that are sent again concurrently.
const MAX_CONCURRENT: usize = 64;
