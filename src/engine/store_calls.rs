//! All calls of the store. Each call has a timeout and reports to the circuit breaker, and to the engine that the store
//! has answered.

use super::{
    breaker::{Breaker, FailureKind, Permit},
    fill_set::FillSet,
    invalidation::on_answer,
    resource::Resource,
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    key::CacheKey,
    store::{
        entry::Entry,
        error::{Answer, StoreError},
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus},
        port::FillCondition,
        token::Token,
        wake::Listener,
    },
    telemetry::{self, StoreOperation},
    versions::ReadTerms,
};
use futures_util::FutureExt;
use std::{future::Future, slice};
use tokio::time::{sleep, timeout_at};

impl Resource {
    pub(super) fn listen(&self) -> Listener {
        self.engine.store.listen(&self.key)
    }

    /// Reads the entry of this cache key. Returns it with the number at which the read began.
    pub(super) async fn get(&self) -> Result<(Option<Entry>, u64), StoreError> {
        if self.config.near.is_some() {
            let (mut found, begun) = Box::pin(self.get_all(slice::from_ref(&self.key))).await?;
            return Ok((found.pop().flatten(), begun));
        }
        self.check_breaker()?;
        let terms = ReadTerms::new(&self.engine.versions, self.config.store_timeout);
        self.repeatable(StoreOperation::Get, || self.engine.store.get_shared(&self.key, terms)).await
    }

    /// Reads entries of one resource at one moment. Returns them with the number at which the read began.
    pub(super) async fn get_all(&self, keys: &[CacheKey]) -> Result<(Vec<Option<Entry>>, u64), StoreError> {
        self.check_breaker()?;
        let (store, meter, begun) = (&*self.engine.store, &self.config.meter, self.engine.versions.now());
        let read = || match &self.config.near {
            Some(near) => Box::pin(near.get_all(store, keys, meter)),
            None => store.get_all(keys),
        };
        Ok((self.repeatable(StoreOperation::Get, read).await?, begun))
    }

    pub(super) async fn get_or_lease(&self, request: LeaseRequest) -> Result<LeaseReply, StoreError> {
        self.with_timeout(StoreOperation::GetOrLease, self.engine.store.get_or_lease(&self.key, request)).await
    }

    /// Fills the entry. A fill that fails is sent once more, unless the store has refused it; this is safe because a
    /// fill may run twice. After a broken connection it is sent again for as long as a lease lives.
    pub(super) async fn fill(&self, condition: FillCondition, fill_set: &FillSet) -> Result<FillOutcome, StoreError> {
        let (began, mut retries) = (Timestamp::now(), 0);
        let outcome = loop {
            let fill = self.engine.store.fill(&self.key, condition, fill_set.writes(&self.key));
            match self.with_timeout(StoreOperation::Fill, fill).await {
                Err(error) if retries == 0 && !error.is_refused() => {}
                Err(error) if error.is_disconnected() && Timestamp::now().since(began) < self.config.lease_ttl => {
                    sleep(backoff::poll(retries, clock::random_unit())).await;
                }
                outcome => break outcome,
            }
            retries += 1;
        };
        if let Ok(outcome) = outcome {
            telemetry::filled(&self.config.meter, &self.key, fill_set.entry.meta().kind, outcome);
            self.engine.end_near_copies(&self.key); // those that were read before are older
            if let (FillOutcome::Stored, Some((_, index))) = (outcome, &fill_set.index) {
                self.engine.redirect_cache.remember(&self.key, index, self.engine.versions.now());
            }
        }
        outcome
    }

    /// Reports whether the store has room for the entry. Counts it if not.
    pub(super) fn can_keep(&self, fill_set: &FillSet) -> bool {
        // The index beside an entry of a variant is small.
        let variant = fill_set.index.as_ref().map(|(variant, _)| self.key.to_variant(variant.clone()));
        let can_keep = self.engine.store.can_keep(variant.as_ref().unwrap_or(&self.key), &fill_set.entry);
        if !can_keep {
            telemetry::too_large(&self.config.meter, &self.key);
        }
        can_keep
    }

    pub(super) async fn extend(&self, lease: Lease) -> Result<LeaseStatus, StoreError> {
        let extend = self.engine.store.extend(&self.key, lease, self.config.lease_ttl);
        let extended = self.with_timeout(StoreOperation::Extend, extend).await;
        if let Ok(LeaseStatus::Lost) = extended {
            telemetry::lease_lost(&self.config.meter, &self.key);
        }
        extended
    }

    pub(super) async fn release(
        &self,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Result<LeaseStatus, StoreError> {
        let release = || self.engine.store.release(&self.key, token, failure_marker.clone());
        self.repeatable(StoreOperation::Release, release).await
    }

    pub(super) async fn drop_entries(&self, keys: &[CacheKey]) -> Result<(), StoreError> {
        self.repeatable(StoreOperation::Invalidate, || self.engine.store.invalidate(keys)).await
    }

    /// Sends an operation. If the connection was broken, sends it once more within the same timeout, because an idle
    /// connection may have been cut long ago, and reports it only now. Safe, because all operations may run twice.
    async fn repeatable<'a, T>(
        &self,
        operation: StoreOperation,
        send: impl Fn() -> Answer<'a, T>,
    ) -> Result<T, StoreError> {
        let answer = async {
            match send().await {
                Err(error) if error.is_disconnected() => send().await,
                answer => answer,
            }
        };
        self.with_timeout(operation, answer).await
    }

    /// PERF: not an `async fn`, which reserves room for its arguments twice.
    fn with_timeout<T>(
        &self,
        operation: StoreOperation,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let now = clock::now();
        let sent_at = Timestamp::of(now);
        timeout_at(clock::after(now, self.config.store_timeout), answer).map(move |answer| {
            let answer = answer.unwrap_or_else(|_| Err(StoreError::timed_out(self.config.store_timeout)));
            telemetry::store_answered(&self.config.meter, operation, || Timestamp::now().since(sent_at));
            match &answer {
                Ok(_) => {
                    self.record_answer(sent_at);
                    on_answer(&self.engine, sent_at);
                }
                Err(error) => self.record_failure(operation, error, sent_at),
            }
            answer
        })
    }

    /// Checks whether the breaker allows an operation. At the end of a window a probe is sent in the background, and no
    /// caller waits for it.
    pub(super) fn check_breaker(&self) -> Result<(), StoreError> {
        if self.engine.breakers.is_idle() {
            return Ok(());
        }
        let now = Timestamp::now();
        match self.with_breaker(|breaker| breaker.permit(now, clock::random_unit())) {
            Permit::Allow => return Ok(()),
            Permit::Deny => {}
            Permit::Probe => {
                let resource = self.clone();
                self.engine.tasks.spawn(async move {
                    // Not through the near cache, whose connection may fail while the store works.
                    resource.with_timeout(StoreOperation::Probe, resource.engine.store.get(&resource.key)).await
                });
            }
        }
        Err(StoreError::new("circuit breaker open: the store failed recently"))
    }

    /// Waits until the breaker is open.
    pub(super) async fn breaker_opened(&self) {
        loop {
            let opened = self.engine.breakers.opened(); // before the check, so that no opening is missed
            if !self.engine.breakers.is_idle() && self.with_breaker(|breaker| breaker.is_open()) {
                return;
            }
            opened.await;
        }
    }

    /// Records a reply to an operation that was sent at `sent_at`.
    fn record_answer(&self, sent_at: Timestamp) {
        if self.engine.breakers.is_idle() {
            return;
        }
        self.engine.breakers.set_answered();
        if let Some(open_for) = self.with_breaker(|breaker| breaker.answered(sent_at, Timestamp::now())) {
            telemetry::breaker_closed(&self.config.meter, &self.key, open_for);
        }
    }

    /// Records the failure of an operation that was sent at `sent_at`.
    fn record_failure(&self, operation: StoreOperation, error: &StoreError, sent_at: Timestamp) {
        telemetry::store_failed(&self.config.meter, &self.key, operation, error);
        self.engine.failures.record(operation, error);
        if error.is_refused() {
            return self.record_answer(sent_at); // the store is alive
        }
        let kind = if error.is_timed_out() { FailureKind::TimedOut } else { FailureKind::Error };
        let now = Timestamp::now();
        if self.with_breaker(|breaker| breaker.failed(kind, sent_at, now, clock::random_unit())) {
            telemetry::breaker_opened(&self.config.meter, &self.key, error);
        }
    }

    fn with_breaker<T>(&self, access: impl FnOnce(&mut Breaker) -> T) -> T {
        let domain = (self.engine.store.failure_domain(&self.key), self.config.store_timeout);
        self.engine.breakers.with(domain, access)
    }
}
