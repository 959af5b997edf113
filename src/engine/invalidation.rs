//! Invalidations: acknowledged, or retried in the background, and sent again when the store may have lost them.

use super::{core::Engine, pending_invalidations::Acknowledged, resource::Resource};
use crate::{
    backoff,
    clock::{self, Timestamp},
    error::{Error, ErrorKind},
    store::error::StoreError,
    telemetry,
};
use futures_util::{StreamExt, stream};
use std::{collections::VecDeque, sync::Arc};
use tokio::sync::oneshot;

impl Resource {
    /// Drops the entry and the lease; for a URL, the entries and leases of all its methods and schemes. Requests made
    /// afterwards join no lookup and no fetch that this engine had begun before.
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
        let source = match acknowledged.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(dropped) => dropped.into(),
        };
        Err(Error::with_source(ErrorKind::Store, "the invalidation was not acknowledged", source))
    }

    /// Tries again for about ten seconds after the last failed invalidation of the cache key. One task does so per
    /// cache key.
    async fn retry_in_background(&self, error: &StoreError) {
        let Some(retry) = self.engine.invalidations.claim_retry(&self.key) else { return };
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
        // After the store has dropped the entries, because a read that began before may have returned an old one.
        self.engine.flights.forget(&keys);
        for key in &keys {
            self.engine.redirect_cache.forget(key);
            self.engine.near_caches.forget(key);
        }
        if answer.is_ok() {
            self.engine.invalidations.remember(Acknowledged {
                when: Timestamp::now(),
                epoch: self.engine.store.epoch(),
                config: self.config.clone(),
                key: self.key.clone(),
            });
        }
        answer
    }
}

/// Sends invalidations again that the store may have lost, in the background.
pub(crate) fn replay_invalidations(engine: &Arc<Engine>, lost: VecDeque<Acknowledged>) {
    if let Some(first) = lost.front() {
        telemetry::replaying_invalidations(&first.key, lost.len());
    }
    let to_resource =
        |Acknowledged { config, key, .. }| Resource { engine: engine.clone(), config, key, deadline: None };
    let lost: Vec<_> = lost.into_iter().map(to_resource).collect();
    engine.tasks.spawn(stream::iter(lost).for_each_concurrent(MAX_CONCURRENT, async |resource| {
        if let Err(error) = resource.drop_everywhere(Attempt::First).await {
            resource.retry_in_background(&error).await;
        }
    }));
}

/// An attempt to invalidate a cache key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    Retry,
}

/// Maximum number of retries, about ten seconds.
const INVALIDATE_ATTEMPTS: u32 = 24;
/// Maximum number of invalidations that are sent again concurrently.
const MAX_CONCURRENT: usize = 64;
