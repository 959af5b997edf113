//! Failed fetches: what the callers get, and which failure marker is left.

use super::{Leader, LeaderResult};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    engine::{
        execution::{AfterHead, Execution},
        flight::state::Progress,
        frontend::{Completion, FailedFetch, Failure, FailureCause, FailureEffect, ReusePolicy},
        lookup::Lookup,
        permit::FillPermit,
    },
    store::{
        entry::{Audience, Entry, Kind},
        lease::{FailureMarker, LeaseStatus},
    },
};
use std::sync::Arc;

impl<'a, R: Send + 'a, J: ReusePolicy<R> + Clone + Send + Sync + 'static> Leader<'a, R, J> {
    /// Handles a failed fetch: answers with the stale entry or with the failure, or lets a waiter lead anew.
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
                    self.complete(result, Progress::Failed(failure, Some(stale)));
                    return None;
                }
                FillPermit::None
            }
            _ => permit,
        };
        let state = Progress::Failed(failure, None);
        if repeat {
            self.end_inconclusively(permit, result, state, failure_marker).await;
            return Some((FillPermit::None, AfterHead::Release(None, completion)));
        }
        self.complete(result, state);
        Some((permit, AfterHead::Release(failure_marker, completion)))
    }

    /// Handles a private response that may be due to this request alone.
    pub(super) async fn on_inconclusive(
        &mut self,
        permit: FillPermit,
        result: LeaderResult<'a, R>,
        audience: Audience,
        completion: Completion,
    ) -> (FillPermit, AfterHead) {
        let state = Progress::Uncacheable(audience);
        if let (true, failure_marker) = self.failure_effect(FailureCause::Inconclusive, 0) {
            self.end_inconclusively(permit, result, state, failure_marker).await;
            return (FillPermit::None, AfterHead::Release(None, completion));
        }
        self.complete(result, state);
        let config = &self.execution.resource.config;
        let ttl = config.failure_ttl.min(config.uncacheable_ttl);
        (permit, AfterHead::Mark(Kind::HitForPass, audience, ttl, completion))
    }

    /// Ends the flight with a result that may be due to this request alone. The lease is released before the waiters try
    /// again, so that the store tells the next leader of this failure.
    async fn end_inconclusively(
        &mut self,
        permit: FillPermit,
        result: LeaderResult<'a, R>,
        state: Progress,
        failure_marker: Option<FailureMarker>,
    ) {
        self.reply_to_caller(result);
        permit.release(failure_marker).await;
        self.execution.flight.complete(Progress::Inconclusive(Arc::new(state)));
    }

    /// Returns whether a waiter leads anew, and the failure marker that this leader leaves in place of its lease.
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
