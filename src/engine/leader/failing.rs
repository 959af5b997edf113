//! Failed fetches: what the callers get, and which failure marker is left.

use super::{AfterHead, Leader, LeaderAnswer};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    engine::{
        containment::Aborted,
        erased::AnyAnswer,
        failure::{Effect, FailureCause, effect},
        flight::Progress,
        frontend::{Completion, Failure},
        lookup::Lookup,
        permit::FillPermit,
        recent_failures::report_of,
        resource::Resource,
    },
    store::{
        entry::{Audience, Entry, Kind},
        lease::{FailureMarker, LeaseStatus},
    },
    telemetry,
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};

impl Leader {
    /// Handles a fetch that was aborted before its response head.
    pub(super) async fn on_aborted(
        &mut self,
        permit: FillPermit,
        aborted: &Aborted,
    ) -> Option<(FillPermit, AfterHead)> {
        let Resource { key, config, .. } = &self.resource;
        let Some((kind, error)) = aborted.failure(config) else {
            telemetry::fetch_dropped(&config.meter, key);
            self.flight.complete(Progress::Abandoned);
            return Some((permit, AfterHead::Release(None, Completion::None)));
        };
        telemetry::fetch_failed(&config.meter, key, kind);
        let response = (self.policy.reject(error.clone()), CacheStatus::Rejected);
        let failure = (Failure::Error(error), FailureCause::Origin, 0);
        self.on_fetch_failed(permit, response, failure, Completion::None).await
    }

    /// Handles a failed fetch: answers with the stale entry or with the failure, or lets a waiter lead again.
    pub(super) async fn on_fetch_failed(
        &mut self,
        permit: FillPermit,
        (response, status): (AnyAnswer, CacheStatus),
        (failure, cause, code): (Failure, FailureCause, u16),
        completion: Completion,
    ) -> Option<(FillPermit, AfterHead)> {
        let Effect { repeat, block } = self.effect_of(cause);
        let failure_marker = self.failure_marker(&permit, block, &failure, code);
        let now = Timestamp::now();
        let usable =
            |entry: &mut Entry| cause != FailureCause::Answer && self.policy.stale_answer(entry, now).is_some();
        let permit = match self.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                if let LeaseStatus::Held = permit.release(failure_marker.clone()).await
                    && Box::pin(self.is_still_reachable()).await
                    && let Some(answer) = self.policy.stale_answer(&stale, now)
                {
                    self.answer_failure(answer, CacheStatus::Stale);
                    let state = Progress::Failed(failure, Some(stale));
                    self.flight.complete(if repeat { Progress::Inconclusive(Arc::new(state)) } else { state });
                    return None;
                }
                FillPermit::None
            }
            _ => permit,
        };
        self.answer_failure(response, status);
        let state = Progress::Failed(failure, None);
        if repeat {
            return Some((permit, AfterHead::Repeat(state, failure_marker, completion)));
        }
        self.flight.complete(state);
        Some((permit, AfterHead::Release(failure_marker, completion)))
    }

    fn answer_failure(&mut self, response: AnyAnswer, status: CacheStatus) {
        self.reply_to_opener(LeaderAnswer { response, status, is_failure: true });
    }

    /// Handles a private response that may be due to this request alone.
    pub(super) fn on_inconclusive(&self, audience: Audience, completion: Completion) -> AfterHead {
        let state = Progress::Private(audience);
        let Effect { repeat, block } = self.effect_of(FailureCause::ClientError);
        let config = &self.resource.config;
        if repeat {
            let count = block.and_then(|limit| config.failure_marker(Bytes::new(), self.earlier_failures, limit));
            return AfterHead::Repeat(state, count, completion);
        }
        self.flight.complete(state);
        AfterHead::Mark(Kind::HitForPass, audience, config.failure_ttl.min(config.uncacheable_ttl), completion)
    }

    fn effect_of(&self, cause: FailureCause) -> Effect {
        effect(cause, self.policy.circumstances(self.seen.as_ref(), Timestamp::now()), self.earlier_failures)
    }

    /// Returns the failure marker that this leader leaves in place of its lease. It blocks callers for at most `limit`,
    /// and for that time this process keeps the error itself.
    fn failure_marker(
        &self,
        permit: &FillPermit,
        limit: Option<Duration>,
        failure: &Failure,
        code: u16,
    ) -> Option<FailureMarker> {
        let Self { resource: Resource { engine, config, .. }, earlier_failures, .. } = self;
        let (id, limit) = (permit.lease()?.token, limit?);
        let mut marker = config.failure_marker(Bytes::new(), *earlier_failures, limit)?;
        if !marker.blocks_for.is_zero() {
            // The block begins when the marker arrives, which takes up to two attempts.
            let span = marker.blocks_for.saturating_add(config.store_timeout.saturating_mul(2));
            if let Failure::Error(error) = failure {
                engine.recent_failures.keep(id, error, span);
            }
            marker.report = report_of(id, failure, code);
        }
        Some(marker)
    }

    /// Reports whether the redirects still lead to this cache key. The invalidation of a resource with variants drops
    /// only its first redirect, and leaves entries and leases of the variants.
    async fn is_still_reachable(&self) -> bool {
        let resource = &self.resource;
        if self.redirects.is_empty() {
            return true;
        }
        let mut lookup = Lookup::new(resource.to_primary());
        matches!(lookup.find(&*self.policy).await, Ok(Some(_))) && lookup.resource.key == resource.key
    }
}
