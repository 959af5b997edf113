//! The work that is left after the response head: the fill, a marker, or the release of the lease.

use super::{AfterHead, Leader};
use crate::{
    clock::{self, Timestamp},
    engine::{
        containment::Aborted,
        fill_set::FillSet,
        flight::Progress,
        frontend::{Completed, Completion, MAX_BODY_TIME, Unshared},
        permit::FillPermit,
    },
    policy::{Freshness, freshness},
    store::entry::{Audience, Entry, Kind},
};
use futures_util::future::join;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

impl Leader {
    /// Does the work that is left, for which the fetch has time until `deadline`. The flight may be joined until an entry
    /// is stored, so that this process does not fetch again what is about to be stored.
    pub(super) async fn finish(self: Box<Self>, permit: FillPermit, deadline: Instant, rest: AfterHead) {
        if self.scoped {
            let (tasks, state) = (self.resource.engine.tasks.clone(), self.flight.state().clone());
            tasks.spawn(state.with_pulse(async move { self.finish_now(permit, deadline, rest).await }));
        } else {
            self.finish_now(permit, deadline, rest).await;
        }
    }

    async fn finish_now(&self, mut permit: FillPermit, deadline: Instant, rest: AfterHead) {
        // Rare work is boxed, here and below, because every flight would reserve room for it.
        match rest {
            AfterHead::Store(id, times, store_as, mut completion) => {
                let completed = match &completion {
                    Completion::Ready(payload) => Ok(Completed::Payload(payload.clone())),
                    _ => self.run_bounded(&mut permit, deadline, completion.completed()).await,
                };
                match completed {
                    Ok(Completed::Payload(payload)) => {
                        let fill_set = FillSet::new(id, times, store_as, payload).under(&self.redirects);
                        self.store(permit, Arc::new(fill_set)).await;
                    }
                    Ok(Completed::TooLarge) => {
                        self.flight.complete(Progress::Unshared(Unshared::Private(Audience::Everyone), false));
                        let ttl = self.resource.config.uncacheable_ttl;
                        Box::pin(self.mark(permit, Kind::HitForPass, Audience::Everyone, ttl)).await;
                    }
                    Ok(Completed::Truncated) | Err(Aborted::Panicked | Aborted::Detached) => self.abandon(permit).await,
                    Err(Aborted::TimedOut) => {
                        Box::pin(join(self.abandon(permit), self.drain(deadline, completion))).await;
                    }
                }
            }
            AfterHead::Mark(kind, audience, ttl, completion) => {
                Box::pin(join(self.mark(permit, kind, audience, ttl), self.drain(deadline, completion))).await;
            }
            AfterHead::Release(failure_marker, repeated, completion) => {
                let released = async {
                    permit.release(failure_marker).await; // first, so that the store tells the next leader of the failure
                    if let Some(result) = repeated {
                        self.flight.complete(Progress::Unshared(result, true));
                    }
                };
                Box::pin(join(released, self.drain(deadline, completion))).await;
            }
        }
    }

    /// Ends the flight without an entry. The waiters try again with one leader, because a call of each waiter would be
    /// the stampede.
    async fn abandon(&self, permit: FillPermit) {
        permit.release(None).await;
        self.flight.complete(Progress::Abandoned);
    }

    /// Publishes the entry, and stores it if that is permitted.
    async fn store(&self, permit: FillPermit, fill_set: Arc<FillSet>) {
        let can_keep = self.resource.can_keep(&fill_set);
        // The flight stays open during the fill only if the entry is of use to new callers.
        let state = Progress::Filled(fill_set.clone());
        match freshness(&fill_set.entry, Timestamp::now()) {
            Freshness::Fresh if can_keep => self.flight.publish(state),
            _ => self.flight.complete(state),
        }
        if let (None, Some((_, index))) = (permit.lease(), &fill_set.index) {
            // The entry stays in this process. Other callers follow the remembered redirect to its flight.
            self.resource.engine.redirect_cache.remember(&self.resource.key, index, self.flight.begun());
        }
        match can_keep {
            true => permit.fill(&self.resource, &self.flight, &fill_set).await,
            false => {
                let ttl = self.resource.config.uncacheable_ttl;
                Box::pin(self.mark(permit, Kind::DoNotStore, Audience::Everyone, ttl)).await;
            }
        }
    }

    /// Stores a marker that applies to this audience for this time. A fresh entry stays, and so does a marker of another
    /// audience that lives longer.
    async fn mark(&self, permit: FillPermit, kind: Kind, audience: Audience, ttl: Duration) {
        let now = Timestamp::now();
        let stays = |entry: &Entry| match entry.meta().kind {
            Kind::Value => freshness(entry, now) == Freshness::Fresh,
            _ if audience == Audience::Everyone || entry.meta().audience == audience => false,
            _ => entry.meta().lifetimes.fresh_for > entry.age(now).saturating_add(ttl),
        };
        let is_off = audience == Audience::NoOne || ttl.is_zero();
        if is_off || self.seen.as_ref().is_some_and(stays) {
            // The count of client errors stays beside the marker of others.
            let is_marker = self.seen.as_ref().is_some_and(|entry| entry.meta().kind != Kind::Value);
            let count = if is_marker && !is_off { self.resource.config.failure_count() } else { None };
            permit.release(count).await;
        } else if permit.can_mark() {
            let marker = FillSet::marker(permit.id(), kind, audience, ttl);
            permit.fill(&self.resource, &self.flight, &marker).await;
        }
    }

    /// Drives a body that is not stored, or not any more, for the callers that read it. `deadline` ends the fetch and
    /// its lease. It does not end the body, because the callers have a part of it already.
    async fn drain(&self, deadline: Instant, mut completion: Completion) {
        let more = self.resource.config.fetch_timeout.saturating_mul(MAX_BODY_TIME - 1);
        let _ = self.run_bounded(&mut FillPermit::None, clock::after(deadline, more), completion.completed()).await;
    }
}
