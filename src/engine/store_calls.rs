//! All calls of the store. Each call has a timeout and reports to the circuit breaker, and to the engine that the store
//! has answered.

use super::{
    breaker::{Access, Breaker, FailureKind, Permit},
    fill_set::FillSet,
    resource::Resource,
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    key::CacheKey,
    store::{
        entry::{Entry, Kind, Meta, Payload},
        error::{Answer, StoreError},
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves},
        port::FillCondition,
        token::{Inbox, Token},
        wake::Listener,
    },
    telemetry::{self, StoreOperation},
    versions::ReadTerms,
};
use futures_util::FutureExt;
use std::{future::Future, slice, time::Duration};
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
        let terms = |max_age| ReadTerms::new(&self.engine.versions, max_age);
        let read = || self.read(|max_age| self.engine.store.get_shared(&self.key, terms(max_age)));
        self.settled(&self.key, read).await
    }

    /// Reads entries of one resource at one moment. Returns them with the number at which the read began.
    pub(super) async fn get_all(&self, keys: &[CacheKey]) -> Result<(Vec<Option<Entry>>, u64), StoreError> {
        let (store, meter, begun) = (&*self.engine.store, &self.config.meter, self.engine.versions.now());
        let read = |max_age: Duration| match &self.config.near {
            Some(near) if !max_age.is_zero() => Box::pin(near.get_all(store, keys, meter, (Timestamp::now(), begun))),
            _ => store.get_all(keys),
        };
        // The other cache keys are variants, to which the entry of the first one leads.
        Ok((self.settled(&keys[0], || self.read(read)).await?, begun))
    }

    /// Sends a read if the breaker allows it. If the store was only late, and the caller's deadline has not passed,
    /// sends it once more. `send` gets the maximum age of a read to join. It is zero for the second read, because the
    /// reads and the connection of the first one may be the late ones.
    async fn read<'a, T>(&self, send: impl Fn(Duration) -> Answer<'a, T>) -> Result<T, StoreError> {
        let mut max_age = self.config.store_timeout;
        loop {
            if let Err(denied) = self.check_breaker(Access::Read) {
                Box::pin(self.wait_for_probe(denied)).await?;
            }
            let answer = self.repeatable(StoreOperation::Get, |_| send(max_age)).await;
            let is_late = answer.as_ref().is_err_and(|error| error.is_timed_out()) && !max_age.is_zero();
            if !is_late || self.deadline.is_some_and(|deadline| deadline <= clock::now()) {
                return answer;
            }
            max_age = Duration::ZERO;
        }
    }

    pub(super) async fn get_or_lease(&self, request: LeaseRequest) -> Result<LeaseReply, StoreError> {
        let ask = || {
            let answer = self.engine.store.get_or_lease(&self.key, request);
            self.with_timeout(Access::Write, StoreOperation::GetOrLease, answer)
        };
        // If the lease of a first question was granted, an invalidation has dropped it, or the same token gets it again.
        self.settled(&self.key, ask).await
    }

    /// Fills the entry. A fill that fails is sent again for as long as a lease lives, unless the store has refused it.
    /// This is safe because a fill may run twice. While the breaker is open, only its probes are sent.
    pub(super) async fn fill(&self, condition: FillCondition, fill_set: &FillSet) -> Result<FillOutcome, StoreError> {
        let (began, mut retries) = (Timestamp::now(), 0);
        let outcome = loop {
            let send = async {
                self.check_breaker(Access::Write)?;
                let fill = self.engine.store.fill(&self.key, condition, fill_set.writes(&self.key));
                self.with_timeout(Access::Write, StoreOperation::Fill, fill).await
            };
            match send.await {
                Err(error) if retries == 0 && !error.is_refused() => {}
                Err(error) if !error.is_refused() && Timestamp::now().since(began) < self.config.lease_ttl => {
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

    /// Reports whether the store has room for an entry with this payload. Counts it if not.
    pub(crate) fn has_room_for(&self, payload: &Payload) -> bool {
        let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::now());
        self.can_keep(&Entry::new(meta, payload.clone()).into())
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
        let extended = self.with_timeout(Access::Write, StoreOperation::Extend, extend).await;
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
        let release = |_: bool| self.engine.store.release(&self.key, token, failure_marker.clone());
        self.repeatable(StoreOperation::Release, release).await
    }

    /// Drops the entries, except for what is left. Over a connection that was broken no value is left, because the next one
    /// may have lost an invalidation.
    pub(super) async fn drop_entries(&self, keys: &[CacheKey], leaves: Leaves) -> Result<Option<Lease>, StoreError> {
        let send = |is_repeated: bool| {
            let leaves = if is_repeated && matches!(leaves, Leaves::StaleValues) { Leaves::Nothing } else { leaves };
            self.engine.store.invalidate(keys, leaves)
        };
        self.repeatable(StoreOperation::Invalidate, send).await
    }

    /// Sends an operation. If the connection was broken, repeats it once within the same timeout, because an idle
    /// connection may have been cut long ago, and reports it only now. Safe, because all operations may run twice.
    async fn repeatable<'a, T>(
        &self,
        operation: StoreOperation,
        send: impl Fn(bool) -> Answer<'a, T>,
    ) -> Result<T, StoreError> {
        let answer = async {
            match send(false).await {
                Err(error) if error.is_disconnected() => send(true).await,
                answer => answer,
            }
        };
        let access = if operation == StoreOperation::Get { Access::Read } else { Access::Write };
        self.with_timeout(access, operation, answer).await
    }

    /// PERF: not an `async fn`, which reserves room for its arguments twice.
    fn with_timeout<T>(
        &self,
        access: Access,
        operation: StoreOperation,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let access = self.engine.store.has_separate_reads().then_some(access); // when it is sent
        let now = clock::now();
        let sent_at = Timestamp::of(now);
        timeout_at(clock::after(now, self.config.store_timeout), answer).map(move |answer| {
            let answer = answer.unwrap_or_else(|_| Err(StoreError::timed_out(self.config.store_timeout)));
            telemetry::store_answered(&self.config.meter, operation, || Timestamp::now().since(sent_at));
            match &answer {
                Ok(_) => {
                    self.record_answer(access, sent_at);
                    self.repeat_lost(Some(sent_at));
                }
                Err(error) => self.record_failure(access, operation, error, sent_at),
            }
            answer
        })
    }

    /// Checks whether the breakers allow an operation: a store whose reads are not answered is not asked to write either.
    /// If a probe is due, sends one in the background.
    pub(super) fn check_breaker(&self, access: Access) -> Result<(), StoreError> {
        if self.engine.breakers.is_idle() {
            return Ok(());
        }
        // Not short-circuited, because reads may be the only requests that can have the writes probed.
        let [reads, writes] = Access::ALL.map(|access| self.is_permitted(access));
        let is_permitted = reads && (writes || access == Access::Read);
        is_permitted.then_some(()).ok_or_else(|| StoreError::new("circuit breaker open: the store failed recently"))
    }

    fn is_permitted(&self, access: Access) -> bool {
        let access = if self.engine.store.has_separate_reads() { access } else { Access::Read };
        let permit = self.with_breaker(access, |breaker| breaker.permit(Timestamp::now(), self.config.store_timeout));
        if permit == Permit::Probe {
            let resource = self.clone();
            self.engine.tasks.spawn(async move { resource.probe(access).await });
        }
        permit == Permit::Allow
    }

    async fn probe(&self, access: Access) {
        let (store, probe) = (&self.engine.store, StoreOperation::Probe);
        match access {
            // Not through the near cache, whose connection may fail while the store works.
            Access::Read => _ = self.with_timeout(access, probe, store.get(&self.key)).await,
            Access::Write => {
                let nobody = Token::unique(Inbox::unique()); // holds no lease, so nothing is released
                _ = self.with_timeout(access, probe, store.release(&self.key, nobody, None)).await;
            }
        }
    }

    /// Waits for the reply to a probe, for as long as the store may be only late, and at most until the caller's
    /// deadline.
    async fn wait_for_probe(&self, denied: StoreError) -> Result<(), StoreError> {
        let (now, store_timeout) = (Timestamp::now(), self.config.store_timeout);
        let patience = self.with_breaker(Access::Read, |breaker| breaker.patience(now, store_timeout));
        let closed = self.breaker_is(&[Access::Read], |breaker| breaker.has_closed_since(now));
        let until = clock::deadline_after(patience);
        let until = self.deadline.map_or(until, |deadline| until.min(deadline));
        let is_late = !patience.is_zero() && timeout_at(until, closed).await.is_ok();
        is_late.then_some(()).ok_or(denied)
    }

    /// Waits until the condition holds for one of the breakers.
    pub(super) async fn breaker_is(&self, breakers: &[Access], condition: impl Fn(&Breaker) -> bool) {
        loop {
            let changed = self.engine.breakers.changed(); // before the check, so that no change is missed
            if breakers.iter().any(|access| self.with_breaker(*access, |breaker| condition(breaker))) {
                return;
            }
            changed.await;
        }
    }

    /// Records a reply to an operation that was sent at `sent_at`. Without an access, reads and writes share a
    /// connection, and the reply is one for both.
    fn record_answer(&self, access: Option<Access>, sent_at: Timestamp) {
        if self.engine.breakers.is_idle() {
            return;
        }
        self.engine.breakers.set_answered();
        for each in Access::ALL.into_iter().filter(|each| access.is_none_or(|access| access == *each)) {
            if let Some(open_for) = self.with_breaker(each, |breaker| breaker.answered(sent_at, Timestamp::now())) {
                telemetry::breaker_closed(&self.config.meter, &self.key, open_for);
            }
        }
    }

    /// Records the failure of an operation that was sent at this time.
    fn record_failure(&self, access: Option<Access>, operation: StoreOperation, error: &StoreError, at: Timestamp) {
        telemetry::store_failed(&self.config.meter, &self.key, operation, error);
        self.engine.failures.record(operation, error);
        if error.is_refused() {
            self.record_answer(access, at); // the store is alive
            if error.is_unauthorized() {
                self.with_breaker(access.unwrap_or(Access::Read), |breaker| breaker.refused(Timestamp::now()));
            }
            return;
        }
        let kind = if error.is_timed_out() { FailureKind::TimedOut } else { FailureKind::Error };
        let (now, access) = (Timestamp::now(), access.unwrap_or(Access::Read));
        // While the store answers nothing, one breaker reports it.
        let is_reported = access == Access::Write && self.with_breaker(Access::Read, |breaker| breaker.is_open());
        if !is_reported && self.with_breaker(access, |breaker| breaker.failed(kind, at, now)) {
            telemetry::breaker_opened(&self.config.meter, &self.key, error);
        }
    }

    fn with_breaker<T>(&self, access: Access, action: impl FnOnce(&mut Breaker) -> T) -> T {
        let domain = (self.engine.store.failure_domain(&self.key), access, self.config.store_timeout);
        self.engine.breakers.with(domain, action)
    }
}
