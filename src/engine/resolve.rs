//! The entry points of the front ends.

use super::{
    caller::Caller,
    core::Engine,
    fill_set::FillSet,
    frontend::{BoxFetch, FetchHead, FetchMode, FollowedRedirect, ReusePolicy, StoreAs},
    lookup::Lookup,
    outage::KeptResult,
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    policy::status_of,
    store::{
        entry::{Entry, Payload},
        port::FillCondition,
        token::{Inbox, Token},
    },
    telemetry::{self, RequestSpan},
};
use std::future::Future;

impl Resource {
    /// Resolves the key. A fetch runs in a task of its own and outlives its caller.
    ///
    /// Cancel safe: a fetch started by this future keeps running, and a fetch that it joined is unaffected.
    pub(crate) fn resolve<R, J, F, Fut>(self, policy: J, fetch: F) -> impl Future<Output = (R, CacheStatus)> + Send
    where
        R: Send + 'static,
        J: ReusePolicy<R> + Clone + Send + Sync + 'static,
        F: FnOnce(FetchMode) -> Fut + Send + 'static,
        Fut: Future<Output = FetchHead<R>> + Send + 'static,
    {
        let spawn = |engine: &Engine, flight| _ = engine.tasks.spawn(flight);
        Caller::deferred(self, policy, Some(spawn), boxed(fetch))
    }

    /// Resolves the key. A fetch runs within its caller, so that it may borrow.
    ///
    /// Cancellation: dropping the future drops a fetch that it started, and the next waiter takes over with its own
    /// fetch.
    pub(crate) fn resolve_scoped<'a, R, J, F, Fut>(
        self,
        policy: J,
        fetch: F,
    ) -> impl Future<Output = (R, CacheStatus)> + Send
    where
        R: Send + 'a,
        J: ReusePolicy<R> + Clone + Send + Sync + 'static,
        F: FnOnce(FetchMode) -> Fut + Send + 'a,
        Fut: Future<Output = FetchHead<R>> + Send + 'a,
    {
        Caller::deferred(self, policy, None, boxed(fetch))
    }

    /// Resolves the key from the store only, without a fetch and without waiting for one. An entry that may be served
    /// while it is refreshed is served, but not refreshed. Without an answer, returns the id of the entry, if there is
    /// one.
    pub(crate) async fn lookup_only<R: Send, J: ReusePolicy<R> + Clone + Send + Sync + 'static>(
        self,
        policy: J,
    ) -> Result<(R, CacheStatus), Option<Token>> {
        let span = RequestSpan::new(&self.config.meter, &self.key, self.front_end);
        span.instrument(self.answer_from_store(policy)).await
    }

    async fn answer_from_store<R: Send, J: ReusePolicy<R> + Clone + Send + Sync + 'static>(
        self,
        policy: J,
    ) -> Result<(R, CacheStatus), Option<Token>> {
        let (requested_at, mut lookup) = (Timestamp::now(), Lookup::new(self, policy));
        let found = lookup.find().await;
        let now = Timestamp::now();
        let (answer, status) = match lookup.consult_outage_cache(&found) {
            Some(KeptResult::Answer(answer, status)) => (answer, status),
            Some(KeptResult::Bypass | KeptResult::NothingThere) => return Err(None),
            None => {
                let entry = found.ok().flatten().ok_or(None)?;
                let answer = lookup.policy.servable(&entry, now).ok_or(Some(entry.meta().id))?;
                (answer, status_of(&entry, now))
            }
        };
        let Self { config, key, front_end, .. } = &lookup.resource;
        telemetry::answered_in_span(&config.meter, key, *front_end, status, false, || now.since(requested_at));
        Ok((answer, status))
    }

    /// Returns the stored entry, its cache key, and the redirects on the way to it. The entry may be of no use to the
    /// caller.
    pub(crate) async fn lookup_entry<R: Send, J: ReusePolicy<R> + Clone + Send + Sync + 'static>(
        self,
        policy: J,
    ) -> Option<(Self, Entry, Vec<FollowedRedirect>)> {
        let mut lookup = Lookup::new(self, policy);
        let entry = lookup.find().await.ok()??;
        Some((lookup.resource, entry, lookup.redirects))
    }

    /// Replaces the entry, if it is still stored.
    pub(crate) async fn freshen(
        &self,
        (entry, redirects): (&Entry, &[FollowedRedirect]),
        store_as: StoreAs,
        payload: Payload,
    ) {
        let meta = entry.meta();
        let now = Timestamp::now();
        let times = (now.before(meta.cost), now);
        let fill_set = FillSet::new(Token::unique(Inbox::unique()), times, store_as, payload).under(redirects);
        // Ignores the outcome: if the fill fails, the old entry is still valid.
        let _ = self.fill(FillCondition::ReplaceMarker(meta.id), &fill_set).await;
    }

    /// Returns the handle of the whole resource, without a variant.
    pub(crate) fn to_primary(&self) -> Self {
        Self { key: self.key.to_primary(), ..self.clone() }
    }
}

fn boxed<'a, R, F, Fut>(fetch: F) -> BoxFetch<'a, R>
where
    F: FnOnce(FetchMode) -> Fut + Send + 'a,
    Fut: Future<Output = FetchHead<R>> + Send + 'a,
{
    Box::new(move |mode| Box::pin(fetch(mode)))
}
