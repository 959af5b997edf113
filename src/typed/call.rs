//! One call of a guard or a cache: a hit in this process, or what resolves the key.

use super::{
    answer::AnswerForm,
    context::{FetchContext, FetchOutcome},
    encoding::Encoding,
    head::TypedFetch,
    policy::TypedPolicy,
};
use crate::{
    cache_status::CacheStatus,
    clock::{self, Timestamp},
    codec::value_codec::ValueCodec,
    config::StoreFailure,
    engine::{
        frontend::FetchMode,
        resolve::{IN_A_TASK, Spawn},
        resource::Resource,
    },
    error::{BoxError, Error},
    guard::StampedeGuard,
    key::{CacheKeyRef, to_key::KeyText},
    policy::{EarlyRefresh, Policy},
    telemetry::FrontEnd,
};
use futures_util::future::Either;
use std::{borrow::Borrow, future::Future, sync::Arc};
use tokio::time::Instant;

/// The options of one call. The policy takes the place of that of its cache.
#[derive(Debug, Default)]
pub(super) struct CallOptions {
    /// PERF: a handle, because each call moves its options, and few have a policy of their own.
    pub(super) policy: Option<Arc<Policy>>,
    pub(super) deadline: Option<Instant>,
    /// The end of the soft timeout, if it is not that of the policy.
    pub(super) soft_until: Option<Instant>,
}

/// A call that this process cannot answer without waiting.
pub(super) struct Miss<V, C> {
    resource: Resource,
    policy: TypedPolicy<V, C>,
    fetch: TypedFetch<C>,
}

/// A hit, or the call that goes on.
pub(super) type Outcome<V, A, C> = Either<Result<A, Error>, Miss<V, C>>;

/// Returns the answer that this process has, otherwise what resolves the key.
///
/// PERF: the callers await what a [`Miss`] returns, and no hit has room for it or moves it. The future of `fetch` takes
/// 704 bytes.
pub(super) fn hit_or_miss<V, A, C>(
    guard: &StampedeGuard,
    front_end: FrontEnd,
    encoding: &Encoding<C>,
    key: &KeyText,
    options: &CallOptions,
) -> Outcome<V, A, C>
where
    V: Send + Sync + 'static,
    A: AnswerForm<V>,
    C: Borrow<dyn ValueCodec<V>> + Clone,
{
    let (config, layout) = (&*guard.config, encoding.layout);
    if let Err(error) = key.check() {
        return Either::Left(Err(error));
    }
    let policy_of_call = options.policy.as_deref().unwrap_or(&config.policy);
    let early_refresh = policy_of_call.sample_early_refresh(clock::random_unit);
    let borrowed: Encoding<&dyn ValueCodec<V>> = Encoding { codec: encoding.codec.borrow(), layout };
    let at = CacheKeyRef::of_text(&config.namespace, layout, key);
    let policy = TypedPolicy::new(borrowed, early_refresh);
    if let Some(hit) = guard.engine.peek(config, front_end, at, &policy, Timestamp::now()) {
        return Either::Left(hit);
    }
    Either::Right(miss(guard, front_end, encoding, key, options, early_refresh))
}

/// Returns what resolves the key.
#[inline]
pub(super) fn miss<V, C>(
    guard: &StampedeGuard,
    front_end: FrontEnd,
    encoding: &Encoding<C>,
    key: &KeyText,
    options: &CallOptions,
    early_refresh: Option<EarlyRefresh>,
) -> Miss<V, C>
where
    V: 'static,
    C: Borrow<dyn ValueCodec<V>> + Clone,
{
    let policy_of_call = options.policy.as_deref().unwrap_or(&guard.config.policy);
    let mut resource = guard.resource_in(front_end, encoding.layout, key.to_key());
    resource.deadline = options.deadline;
    resource.soft_until = options.soft_until.or_else(|| policy_of_call.soft_timeout.map(clock::deadline_after));
    Miss {
        resource,
        policy: TypedPolicy::new(encoding.clone(), early_refresh),
        fetch: TypedFetch { encoding: encoding.clone(), policy: options.policy.clone() },
    }
}

impl<V, C> Miss<V, C>
where
    V: Send + Sync + 'static,
    C: Borrow<dyn ValueCodec<V>> + Clone + Send + Sync + 'static,
{
    /// Resolves the key. A fetch runs in a task of its own, or without `spawn` within the future.
    pub(super) fn resolve<'f, A, E, F, Fut>(
        self,
        spawn: Option<Spawn<'f>>,
        fetch: F,
    ) -> impl Future<Output = (Result<A, Error>, CacheStatus)> + Send
    where
        A: AnswerForm<V>,
        E: Into<BoxError> + 'static,
        F: FnOnce() -> Fut + Send + 'f,
        Fut: Future<Output = Result<V, E>> + Send + 'f,
    {
        let Self { resource, policy, fetch: typed } = self;
        // PERF: not an async closure, which reserves room for its arguments.
        let fetch =
            move |_, here: Arc<Resource>| async move { typed.head(&here, fetch().await.map(FetchOutcome::new)) };
        resource.resolve(policy, spawn, fetch)
    }

    /// Resolves the key in a task, with the context of the fetch.
    pub(super) fn with_context<A, E, F, Fut>(
        self,
        fetch: F,
    ) -> impl Future<Output = (Result<A, Error>, CacheStatus)> + Send
    where
        A: AnswerForm<V>,
        E: Into<BoxError> + 'static,
        F: FnOnce(FetchContext<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<FetchOutcome<V>, E>> + Send + 'static,
    {
        let Self { resource, policy, fetch: typed } = self;
        let fetch = move |mode: FetchMode, here: Arc<Resource>| async move {
            let fetched = fetch(typed.context(mode)).await;
            typed.head(&here, fetched)
        };
        resource.resolve(policy, IN_A_TASK, fetch)
    }

    /// Fetches the value, or shares a fetch that begins from now on. `fetch` gets what makes its context.
    pub(super) fn refresh<A, E, F, Fut>(self, fetch: F) -> impl Future<Output = (Result<A, Error>, CacheStatus)> + Send
    where
        A: AnswerForm<V>,
        E: Into<BoxError> + 'static,
        F: FnOnce(&TypedFetch<C>, FetchMode) -> Fut + Send + 'static,
        Fut: Future<Output = Result<FetchOutcome<V>, E>> + Send + 'static,
    {
        let Self { resource, policy, fetch: typed } = self;
        let fetch = move |mode: FetchMode, here: Arc<Resource>| async move {
            let fetched = fetch(&typed, mode).await;
            typed.head(&here, fetched)
        };
        resource.refresh(policy, fetch)
    }

    /// Returns what the store has, without a fetch.
    pub(super) async fn in_store(self) -> Result<Option<V>, Error> {
        let then = self.resource.config.on_store_failure;
        match self.resource.lookup_only(self.policy).await {
            Ok(found) => found.map(|(answer, _)| answer).transpose(),
            Err(error) if then == StoreFailure::FailClosed => Err(Error::store_down(error.into())),
            Err(_) => Ok(None),
        }
    }
}
