//! Invalidations: acknowledged, or retried in the background, and sent again when the store may have lost them.

use super::{core::Engine, pending_invalidations::Acknowledged, resource::Resource};
use crate::{
    backoff,
    clock::{self, Timestamp},
    error::{Error, ErrorKind},
    store::error::StoreError,
    telemetry::{self, FrontEnd},
};
use futures_util::{StreamExt, stream};
use std::{future::Future, sync::Arc};
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
                () = self.breaker_opens() => {
                    self.forget();
                    false
                }
            }
        }
    }

    /// Spawns the task of an invalidation. The receiver gets the first answer of the store.
    fn spawn_invalidation(&self) -> oneshot::Receiver<Result<(), StoreError>> {
        let (resource, (acknowledge, acknowledged)) = (self.clone(), oneshot::channel());
        self.engine.tasks.spawn(async move { resource.drop_until_acknowledged(acknowledge).await });
        acknowledged
    }

    /// Drops the entries, and tries again if the store does not acknowledge. Sends its first answer.
    async fn drop_until_acknowledged(&self, first_answer: oneshot::Sender<Result<(), StoreError>>) {
        let answer = self.drop_everywhere().await;
        let error = answer.as_ref().err().cloned();
        if error.is_some() {
            self.forget();
        }
        let _ = first_answer.send(answer);
        if let Some(error) = error {
            self.retry_in_background(&error).await;
        }
    }

    /// Tries again for about ten seconds after the last failed invalidation of the cache key, or longer while many cache
    /// keys share the permits. One task does so per cache key.
    ///
    /// A retry that fails makes this process forget nothing: what it has begun since the first attempt is newer than the
    /// invalidation.
    async fn retry_in_background(&self, error: &StoreError) {
        let Some(mut retry) = self.engine.invalidations.claim_retry(&self.config.meter, &self.key) else { return };
        telemetry::invalidation_failed(&self.config.meter, &self.key, error);
        let mut attempt = 0;
        loop {
            let failed = retry.failed();
            tokio::time::sleep(backoff::poll(attempt, clock::random_unit())).await;
            let permit = self.engine.retry_permits.acquire().await;
            let acknowledged = self.drop_everywhere().await.is_ok();
            drop(permit);
            attempt += 1;
            if (acknowledged || attempt == INVALIDATE_ATTEMPTS) && retry.end(failed) {
                return telemetry::invalidation_ended(&self.config.meter, &self.key, acknowledged);
            }
            // If a later invalidation has failed, start over: the store may have executed this attempt before the later
            // one was requested.
            if retry.failed() != failed {
                attempt = 0;
            }
        }
    }

    /// Drops the entries. If the store acknowledges, this process forgets them as well.
    async fn drop_everywhere(&self) -> Result<(), StoreError> {
        self.drop_entries(&self.key.invalidated()).await?;
        // After the store has dropped the entries, because a read that began before may have returned an old one.
        self.forget();
        self.engine.invalidations.remember(Acknowledged {
            when: Timestamp::now(),
            config: self.config.clone(),
            key: self.key.clone(),
        });
        Ok(())
    }

    /// Makes this process forget what it has of the cache keys, or is about to get.
    fn forget(&self) {
        self.engine.versions.bump(&self.key);
        self.engine.flights.forget(&self.key.invalidated());
    }
}

/// Handles an answer of the store to an operation that was sent at `sent_at`. If the epoch has changed, the
/// invalidations that the store may have lost are sent again in the background.
pub(super) fn on_answer(engine: &Arc<Engine>, sent_at: Timestamp) {
    let lost = engine.invalidations.take_lost(engine.store.epoch(), sent_at);
    let Some(first) = lost.front() else { return };
    telemetry::replaying_invalidations(&first.config.meter, &first.key, lost.len());
    let to_resource = |Acknowledged { config, key, .. }| Resource {
        engine: engine.clone(),
        config,
        key,
        front_end: FrontEnd::Fetch,
        deadline: None,
    };
    let lost: Vec<_> = lost.into_iter().map(to_resource).collect();
    engine.tasks.spawn(stream::iter(lost).for_each_concurrent(MAX_CONCURRENT, async |resource| {
        resource.drop_until_acknowledged(oneshot::channel().0).await;
    }));
}

/// Maximum number of retries, about ten seconds.
const INVALIDATE_ATTEMPTS: u32 = 24;
/// Maximum number of invalidations that are sent again concurrently.
const MAX_CONCURRENT: usize = 64;
