//! `StampedeGuard::keyed`: a layer for any tower service whose response is a plain value.

use crate::{
    engine::resolve::IN_A_TASK,
    error::{BoxError, Error, into_cause},
    guard::StampedeGuard,
    key::Key,
    store::error::BoxFuture,
    telemetry::FrontEnd,
};
use futures_util::{FutureExt, TryFutureExt, future::Either};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    future::{poll_fn, ready},
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

impl StampedeGuard {
    /// Returns a layer for any tower service: requests with one key share one call, and its response is cached. A
    /// request whose `key` is `None` is passed through.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::{Key, StampedeGuard};
    /// use tower::{Service, ServiceBuilder};
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let mut squares = ServiceBuilder::new()
    ///     .layer(guard.keyed(|n: &u64| Some(Key::new(*n))))
    ///     .service_fn(async |n: u64| Ok::<_, std::io::Error>(n * n));
    /// assert_eq!(squares.call(12).await?, 144);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Annotate the closure (`|request: &Request|`), or name the request: `keyed::<Request, _>(|r| ..)`.
    ///
    /// The service is always ready, so that a saturated origin does not delay hits; each call drives a clone of the
    /// inner service to readiness. An error of the inner service becomes an [`Error`] that all waiters share;
    /// [`Error::origin`] returns the original. Cancel safe: dropping a response future does not stop a call that other
    /// requests may share, within the limit of [`max_detached`](Self::max_detached).
    pub fn keyed<Req, F>(&self, key: F) -> KeyedLayer<F>
    where
        F: Fn(&Req) -> Option<Key>,
    {
        KeyedLayer { guard: self.clone(), key }
    }
}

/// The layer that [`StampedeGuard::keyed`] returns.
#[derive(Clone)]
pub struct KeyedLayer<F> {
    guard: StampedeGuard,
    key: F,
}

impl<S, F: Clone> Layer<S> for KeyedLayer<F> {
    type Service = Keyed<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        Keyed { inner, guard: self.guard.clone(), key: self.key.clone() }
    }
}

/// A service protected by a guard. See [`StampedeGuard::keyed`].
#[derive(Clone)]
pub struct Keyed<S, F> {
    inner: S,
    guard: StampedeGuard,
    key: F,
}

impl<S, F, Req> Service<Req> for Keyed<S, F>
where
    S: Service<Req> + Clone + Send + 'static,
    S::Response: Serialize + DeserializeOwned + Send + Sync + 'static,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send,
    F: Fn(&Req) -> Option<Key>,
    Req: Send + 'static,
{
    type Response = S::Response;
    type Error = Error;
    type Future = BoxFuture<'static, Result<S::Response, Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let key = (self.key)(&request);
        let mut inner = self.inner.clone();
        let call = async move {
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            inner.call(request).await
        };
        let Some(key) = key else {
            return Box::pin(call.map_err(|error: S::Error| Error::origin_failed(into_cause(error))));
        };
        // PERF: the box of a hit is small.
        match self.guard.hit_or_miss(FrontEnd::Keyed, &key) {
            Either::Left(hit) => Box::pin(ready(hit)),
            Either::Right(miss) => Box::pin(miss.resolve(IN_A_TASK, || call).map(|(answer, _)| answer)),
        }
    }
}

impl<F> fmt::Debug for KeyedLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedLayer").field("guard", &self.guard).finish_non_exhaustive()
    }
}

impl<S: fmt::Debug, F> fmt::Debug for Keyed<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("inner", &self.inner).field("guard", &self.guard).finish_non_exhaustive()
    }
}
