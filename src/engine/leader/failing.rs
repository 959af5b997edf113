//! Failed fetches: what the callers get, and which failure marker is left.

use super::{Leader, LeaderResult};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    engine::{
        containment::Aborted,
        execution::{AfterHead, Execution},
        flight::state::Progress,
        frontend::{Completion, FailedFetch, Failure, FailureCause, FailureEffect, ReusePolicy},
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

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Leader<'a, R, J> {
    /// Handles a fetch that was aborted before its response head.
    pub(super) async fn on_aborted(
        &mut self,
        permit: FillPermit,
        aborted: &Aborted,
    ) -> Option<(FillPermit, AfterHead)> {
        let Resource { key, config, .. } = &self.execution.resource;
        let Some((kind, error)) = aborted.failure(config) else {
            telemetry::fetch_dropped(&config.meter, key);
            self.execution.flight.complete(Progress::Abandoned);
            return Some((permit, AfterHead::Release(None, Completion::None)));
        };
        telemetry::fetch_failed(&config.meter, key, kind);
        let result = LeaderResult::Failed(error.clone(), None);
        let failure = (Failure::Error(error), FailureCause::Origin, 0);
        self.on_fetch_failed(permit, result, failure, Completion::None).await
    }

    /// Handles a failed fetch: answers with the stale entry or with the failure, or lets a waiter lead again.
    pub(super) async fn on_fetch_failed(
        &mut self,
        permit: FillPermit,
        result: LeaderResult<'a, R>,
        (failure, cause, code): (Failure, FailureCause, u16),
        completion: Completion,
    ) -> Option<(FillPermit, AfterHead)> {
        let FailureEffect { repeat, block } = self.failure_effect(cause);
        let failure_marker = self.failure_marker(&permit, block, &failure, code);
        let now = Timestamp::now();
        let usable =
            |entry: &mut Entry| cause != FailureCause::Answer && self.policy.stale_answer(entry, now).is_some();
        let permit = match self.execution.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                if let LeaseStatus::Held = permit.release(failure_marker.clone()).await
                    && Box::pin(self.is_still_reachable()).await
                    && let Some(answer) = self.policy.stale_answer(&stale, now)
                {
                    let result = LeaderResult::FailureResponse(answer, CacheStatus::Stale);
                    let state = Progress::Failed(failure, Some(stale));
                    self.complete(result, if repeat { Progress::Inconclusive(Arc::new(state)) } else { state });
                    return None;
                }
                FillPermit::None
            }
            _ => permit,
        };
        if repeat {
            self.reply_to_caller(result);
            return Some((permit, AfterHead::Repeat(Progress::Failed(failure, None), failure_marker, completion)));
        }
        self.complete(result, Progress::Failed(failure, None));
        Some((permit, AfterHead::Release(failure_marker, completion)))
    }

    /// Handles a private response that may be due to this request alone.
    pub(super) fn on_inconclusive(
        &mut self,
        result: LeaderResult<'a, R>,
        audience: Audience,
        completion: Completion,
    ) -> AfterHead {
        let state = Progress::Uncacheable(audience);
        let FailureEffect { repeat, block } = self.failure_effect(FailureCause::ClientError);
        if repeat {
            let Execution { resource, earlier_failures, .. } = &*self.execution;
            let count = block.and_then(|limit| resource.config.failure_marker(Bytes::new(), *earlier_failures, limit));
            self.reply_to_caller(result);
            return AfterHead::Repeat(state, count, completion);
        }
        self.complete(result, state);
        let config = &self.execution.resource.config;
        AfterHead::Mark(Kind::HitForPass, audience, config.failure_ttl.min(config.uncacheable_ttl), completion)
    }

    fn failure_effect(&self, cause: FailureCause) -> FailureEffect {
        let Execution { seen, earlier_failures, .. } = &*self.execution;
        let failed = FailedFetch { seen: seen.as_ref(), cause, earlier_failures: *earlier_failures };
        self.policy.on_failure(failed, Timestamp::now())
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
        let Execution { resource: Resource { engine, config, .. }, earlier_failures, .. } = &*self.execution;
        let (id, limit) = (permit.lease()?.token, limit?);
        let mut marker = config.failure_marker(Bytes::new(), *earlier_failures, limit)?;
        if !marker.blocks_for.is_zero() {
            // The block begins when the marker arrives, which takes up to two attempts.
            let span = marker.blocks_for.saturating_add(config.store_timeout.saturating_mul(2));
            let is_kept = matches!(failure, Failure::Error(error) if engine.recent_failures.keep(id, error, span));
            // Formatting runs code of the application, so it is not done for nothing.
            let shares_text = config.share_error_text && (engine.store.is_shared() || !is_kept);
            marker.report = report_of(id, failure, code, shares_text);
        }
        Some(marker)
    }

    /// Reports whether the redirects still lead to this cache key. The invalidation of a resource with variants drops
    /// only its first redirect, and leaves entries and leases of the variants.
    async fn is_still_reachable(&self) -> bool {
        let resource = &self.execution.resource;
        if self.execution.redirects.is_empty() {
            return true;
        }
        let mut lookup = Lookup::new(resource.to_primary(), self.policy.clone());
        matches!(lookup.find().await, Ok(Some(_))) && lookup.resource.key == resource.key
    }
}
