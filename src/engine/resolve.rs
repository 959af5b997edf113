//! The entry points of the front ends.

pub(crate) use super::call::Spawn;
use super::{
    call::Call,
    core::Engine,
    erased::{AnyAnswer, Erased, FetchSlot, Policy},
    frontend::{Answers, FetchHead, FetchMode, MAX_REDIRECTS, Redirect, Reuse},
    lookup::{KeptResult, Lookup},
    resource::Resource,
};
use crate::{
    cache_status::CacheStatus,
    clock::Timestamp,
    config::Config,
    key::CacheKeyRef,
    policy::status_of,
    store::error::StoreError,
    telemetry::{self, FrontEnd, RequestSpan},
};
use futures_util::{FutureExt, future::Either};
use std::{
    future::{Future, ready},
    sync::Arc,
    time::Duration,
};

impl Engine {
    /// Returns the answer of a fresh entry, if this process has it: a lookup that borrows all it needs.
    ///
    /// PERF: such a hit takes a quarter of a microsecond. It clones no handle. Two threads that count references to one
    /// engine, one configuration and one namespace write to the same cache lines, and together serve less than one
    /// thread. A hit takes 60 instructions more if this is not inlined, which otherwise depends on unrelated code.
    #[inline(always)]
    pub(crate) fn peek<R>(
        &self,
        config: &Config,
        front_end: FrontEnd,
        key: CacheKeyRef<'_>,
        policy: &impl Answers<R>,
        now: Timestamp,
    ) -> Option<R> {
        if config.bypass {
            return None;
        }
        let mut redirect = None;
        for _ in 0..=MAX_REDIRECTS {
            let key = redirect.as_ref().map_or(key, |redirect: &Redirect| key.to_variant(&redirect.variant));
            let entry = match &config.near {
                Some(near) => near.get(key, now),
                None => self.store.peek(key),
            }?;
            match policy.evaluate(&entry, now) {
                Reuse::Redirect(next) => redirect = Some(next),
                Reuse::Serve(answer) => {
                    telemetry::answered(&config.meter, key, front_end, CacheStatus::Hit, false, &|| Duration::ZERO);
                    if config.near.is_some() {
                        telemetry::near_hit(&config.meter);
                    }
                    return Some(answer);
                }
                _ => return None,
            }
        }
        None
    }
}

/// Runs a fetch in a task of its own, which outlives its caller.
pub(crate) const IN_A_TASK: Option<Spawn<'static>> = Some(|engine, leader| _ = engine.tasks.spawn(leader));

impl Resource {
    /// Resolves the key. Looks up the entry, and answers with it if it is fresh. Otherwise a [`Call`] goes on, which
    /// does not know the types of the front end.
    ///
    /// Cancel safe with [`IN_A_TASK`]: a fetch started by this future keeps running, and a fetch that it joined is
    /// unaffected. Without it, a fetch runs within its caller, so that it may borrow. Dropping the future then drops a
    /// fetch that it started, and the next waiter takes over with its own fetch.
    pub(crate) fn resolve<'a, R, F, Fut>(
        self,
        policy: impl Answers<R> + 'static,
        spawn: Option<Spawn<'a>>,
        fetch: F,
    ) -> impl Future<Output = (R, CacheStatus)> + Send
    where
        R: Send + 'static,
        F: FnOnce(FetchMode, Arc<Self>) -> Fut + Send + 'a,
        Fut: Future<Output = FetchHead<R>> + Send + 'a,
    {
        // PERF: not one block, which would hold the lookup and the fetch beside the call.
        self.first(policy).then(move |first| match first {
            Ok(hit) => Either::Left(ready(hit)),
            Err((lookup, policy)) => Either::Right(call(lookup, Erased::new(policy, 0), spawn, FetchSlot::new(fetch))),
        })
    }

    /// Looks up the entry. PERF: compiled once per type of a value, not once per fetch. Not an `async fn`, which reserves
    /// room for its arguments twice.
    fn first<R, P: Answers<R>>(self, policy: P) -> impl Future<Output = Result<(R, CacheStatus), (Lookup, P)>> + Send {
        let mut lookup = Lookup::new(self);
        async move {
            if lookup.reads_first(&policy) {
                lookup.found = Some(lookup.read(&policy).await);
            }
            if let Some(Ok(Some(entry))) = &lookup.found {
                let now = Timestamp::now();
                if let Reuse::Serve(answer) = policy.evaluate(entry, now) {
                    let Self { config, key, front_end, .. } = &lookup.resource;
                    let (status, took) = (status_of(entry, now), || now.since(Timestamp::of(lookup.requested_at)));
                    telemetry::answered(&config.meter, key.into(), *front_end, status, false, &took);
                    return Ok((answer, status));
                }
            }
            Err((lookup, policy))
        }
    }

    /// Resolves the key with a fetch that begins from now on: that of this caller, or that of another caller. The stored
    /// entry stays until the fill. Cancel safe, as [`resolve`](Self::resolve).
    pub(crate) fn refresh<R, F, Fut>(
        self,
        policy: impl Answers<R> + 'static,
        fetch: F,
    ) -> impl Future<Output = (R, CacheStatus)> + Send
    where
        R: Send + 'static,
        F: FnOnce(FetchMode, Arc<Self>) -> Fut + Send + 'static,
        Fut: Future<Output = FetchHead<R>> + Send + 'static,
    {
        let policy = Erased::new(policy, self.engine.versions.next());
        call(Lookup::new(self), policy, IN_A_TASK, FetchSlot::new(fetch))
    }

    /// Resolves the key from the store, without a fetch and without waiting for one. An entry that may be served while
    /// it is refreshed is served, but not refreshed. Without the store, the outage cache may have the answer.
    ///
    /// # Errors
    ///
    /// The store did not answer.
    pub(crate) async fn lookup_only<R: Send + 'static>(
        self,
        policy: impl Answers<R> + 'static,
    ) -> Result<Option<(R, CacheStatus)>, StoreError> {
        if self.config.bypass {
            return Ok(None);
        }
        let span = RequestSpan::new(&self.config.meter, &self.key, self.front_end);
        let policy = Erased::new(policy, 0);
        let found = span.instrument(self.answer_from_store(policy.clone())).await?;
        Ok(found.map(|(answer, status)| (policy.restore(answer), status)))
    }

    async fn answer_from_store(self, policy: Policy) -> Result<Option<(AnyAnswer, CacheStatus)>, StoreError> {
        let mut lookup = Lookup::new(self);
        let found = lookup.find(&*policy).await;
        let now = Timestamp::now();
        let answer = match lookup.consult_outage_cache(&policy, &found) {
            Some(KeptResult::Answer(answer, status)) => Some((answer, status)),
            Some(KeptResult::Bypass | KeptResult::NothingThere) => None,
            None => found?.and_then(|entry| Some((policy.servable(&entry, now)?, status_of(&entry, now)))),
        };
        if let Some((_, status)) = answer {
            let Self { config, key, front_end, .. } = &lookup.resource;
            telemetry::record_status(status);
            let took = || now.since(Timestamp::of(lookup.requested_at));
            telemetry::answered(&config.meter, key.into(), *front_end, status, false, &took);
        }
        Ok(answer)
    }

    /// Returns the handle of the whole resource, without a variant.
    pub(crate) fn to_primary(&self) -> Self {
        Self { key: self.key.to_primary(), ..self.clone() }
    }
}

/// Goes on with a call, which does not know the types of the front end.
fn call<'a, R: Send + 'static>(
    lookup: Lookup,
    policy: Arc<Erased<impl Answers<R> + 'static, R>>,
    spawn: Option<Spawn<'a>>,
    fetch: FetchSlot<'a>,
) -> impl Future<Output = (R, CacheStatus)> + Send {
    let call = Call::new(lookup, policy.clone(), spawn, fetch);
    call.run().map(move |(answer, status)| (policy.restore(answer), status))
}
