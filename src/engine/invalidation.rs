//! Invalidations: acknowledged, or retried in the background, and sent again when the store may have lost them.

use super::{
    core::Engine,
    pending_invalidations::{Acknowledged, RetryClaim},
    resource::Resource,
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    error::{Error, ErrorKind},
    key::CacheKey,
    store::error::StoreError,
    telemetry::{self, FrontEnd},
};
use futures_util::{StreamExt, stream};
use std::{collections::VecDeque, future::Future, sync::Arc};
use tokio::sync::oneshot;

impl Resource {
    /// Drops the entry and the lease; for a URL, the entries and leases of all its methods and schemes. Requests made
    /// afterwards join no read and no fetch that this engine had begun before.
    ///
    /// Cancel safe: the work is done in a task, which continues when the caller is dropped. If the store does not
    /// acknowledge, the task tries again in the background for about ten seconds.
    pub(crate) async fn invalidate(self) -> Result<(), Error> {
        let source = match self.spawn_invalidation().await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => error.into(),
            Err(dropped) => dropped.into(),
        };
        Err(Error::with_source(ErrorKind::Store, "the invalidation was not acknowledged", source))
    }

    /// Invalidates as [`invalidate`](Self::invalidate) does, but does not wait while the circuit breaker is open: this
    /// process then forgets the resource at once, and the task continues. Reports whether the store has acknowledged.
    ///
    /// Cancel safe: the task is spawned before the future is polled.
    pub(crate) fn invalidate_or_defer(self) -> impl Future<Output = bool> {
        let acknowledged = self.spawn_invalidation();
        async move {
            tokio::select! {
                biased;
                answer = acknowledged => matches!(answer, Ok(Ok(()))),
                () = self.breaker_opened() => {
                    self.forget(&self.key.invalidated());
                    false
                }
            }
        }
    }

    /// Spawns the task of an invalidation. The receiver gets the first answer of the store.
    fn spawn_invalidation(&self) -> oneshot::Receiver<Result<(), StoreError>> {
        let resource = self.clone();
        let (acknowledge, acknowledged) = oneshot::channel();
        self.engine.tasks.spawn(async move {
            let answer = resource.drop_everywhere(Attempt::First).await;
            let error = answer.as_ref().err().cloned();
            let _ = acknowledge.send(answer);
            if let Some(error) = error {
                resource.retry_in_background(&error).await;
            }
        });
        acknowledged
    }

    /// Tries again for about ten seconds after the last failed invalidation of the cache key, or longer while many cache
    /// keys share the permits. One task does so per cache key.
    async fn retry_in_background(&self, error: &StoreError) {
        let mut retry = match self.engine.invalidations.claim_retry(&self.key) {
            RetryClaim::Claimed(retry) => retry,
            RetryClaim::Retried => return,
            RetryClaim::Full => return telemetry::invalidation_ended(&self.config.meter, &self.key, false),
        };
        telemetry::invalidation_failed(&self.config.meter, &self.key, error);
        let (mut attempt, mut failed) = (0, retry.failed());
        loop {
            tokio::time::sleep(backoff::poll(attempt, clock::random_unit())).await;
            let permit = self.engine.invalidations.retry_permits.acquire().await;
            let acknowledged = self.drop_everywhere(Attempt::Retry).await.is_ok();
            drop(permit);
            attempt += 1;
            if (acknowledged || attempt == INVALIDATE_ATTEMPTS) && retry.end(failed) {
                return telemetry::invalidation_ended(&self.config.meter, &self.key, acknowledged);
            }
            // If a later invalidation has failed, start over: the store may have executed this attempt before the later
            // one was requested.
            let now = retry.failed();
            if now != failed {
                (attempt, failed) = (0, now);
            }
        }
    }

    async fn drop_everywhere(&self, attempt: Attempt) -> Result<(), StoreError> {
        let keys = self.key.invalidated();
        let answer = self.drop_entries(&keys).await;
        // What this process has begun since the first attempt is newer than the invalidation.
        if attempt == Attempt::Retry && answer.is_err() {
            return answer;
        }
        // After the store has dropped the entries, because a read that began before may have returned an old one.
        self.forget(&keys);
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

    /// Makes this process forget what it has of the cache keys, or is about to get.
    fn forget(&self, keys: &[CacheKey]) {
        self.engine.versions.bump(&self.key);
        self.engine.flights.forget(keys);
    }
}

/// Sends invalidations again that the store may have lost, in the background.
pub(crate) fn replay_invalidations(engine: &Arc<Engine>, lost: VecDeque<Acknowledged>) {
    if let Some(first) = lost.front() {
        telemetry::replaying_invalidations(&first.config.meter, &first.key, lost.len());
    }
    let to_resource = |Acknowledged { config, key, .. }| Resource {
        engine: engine.clone(),
        config,
        key,
        front_end: FrontEnd::Fetch,
        deadline: None,
    };
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
