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
        resource::Resource,
    },
    store::{
        entry::{Audience, Entry, Kind},
        lease::{FailureMarker, LeaseStatus},
    },
    telemetry,
};
use std::sync::Arc;

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
        let (repeat, failure_marker) = self.failure_effect(cause, code);
        let now = Timestamp::now();
        let usable = |entry: &mut Entry| self.policy.stale_answer(entry, now).is_some();
        let permit = match self.execution.seen.take_if(usable) {
            // Only a lease that is still held proves that the entry is valid: an invalidation would have dropped both.
            Some(stale) if permit.lease().is_some() => {
                if let LeaseStatus::Held = permit.release(failure_marker).await
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
        if let (true, failure_marker) = self.failure_effect(FailureCause::ClientError, 0) {
            self.reply_to_caller(result);
            return AfterHead::Repeat(state, failure_marker, completion);
        }
        self.complete(result, state);
        let config = &self.execution.resource.config;
        AfterHead::Mark(Kind::HitForPass, audience, config.failure_ttl.min(config.uncacheable_ttl), completion)
    }

    /// Returns whether a waiter leads again, and the failure marker that this leader leaves in place of its lease.
    fn failure_effect(&self, cause: FailureCause, code: u16) -> (bool, Option<FailureMarker>) {
        let Execution { resource, seen, earlier_failures, .. } = &*self.execution;
        let failed = FailedFetch { seen: seen.as_ref(), cause, earlier_failures: *earlier_failures };
        let FailureEffect { repeat, block } = self.policy.on_failure(failed, Timestamp::now());
        (repeat, block.and_then(|limit| resource.config.failure_marker(code, *earlier_failures, limit)))
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
