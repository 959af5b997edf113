//! `guard.keyed(|request| ..)`: any tower service whose response is a plain value.

use crate::{
    clock::Timestamp,
    error::{BoxError, Error},
    fetch::{Fetched, Typed},
    guard::StampedeGuard,
    key::Key,
    store::BoxFuture,
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    fmt,
    future::poll_fn,
    task::{Context, Poll},
};
use tower_layer::Layer;
use tower_service::Service;

impl StampedeGuard {
    /// A layer for any tower service: requests of one key share one call, and its response is cached. Where `key` is
    /// `None` the request is passed on as it is.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::{Key, StampedeGuard};
    /// use tower::{Service, ServiceBuilder};
    ///
    /// let guard = StampedeGuard::in_memory();
    /// let mut squares = ServiceBuilder::new()
    ///     .layer(guard.keyed(|n: &u64| Some(Key::from(*n))))
    ///     .service_fn(async |n: u64| Ok::<_, std::io::Error>(n * n));
    /// assert_eq!(squares.call(12).await?, 144);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Annotate the closure (`|request: &Request|`), or name the request: `keyed::<Request, _>(|r| ..)`.
    ///
    /// The service is always ready, since a saturated origin must not keep hits waiting: a call drives a clone of the
    /// inner service ready. Its error becomes an [`Error`], which all who wait share; [`Error::origin`] has the original.
    pub fn keyed<Req, F>(&self, key: F) -> KeyedLayer<F>
    where
        F: Fn(&Req) -> Option<Key>,
    {
        KeyedLayer { guard: self.clone(), key }
    }
}

/// See [`StampedeGuard::keyed`].
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

/// A service behind a guard. See [`StampedeGuard::keyed`].
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
    S::Error: Into<BoxError>,
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
        let place = (self.key)(&request).map(|key| self.guard.place(key));
        let (mut inner, typed) = (self.inner.clone(), Typed::<S::Response>::new(self.guard.config()));
        let call = async move {
            poll_fn(|cx| inner.poll_ready(cx)).await?;
            inner.call(request).await
        };
        let Some(place) = place else {
            return Box::pin(async move { call.await.map_err(|error: S::Error| Error::origin_failed(error.into())) });
        };
        if let Some(hit) = place.peek(&typed, Timestamp::now()) {
            return Box::pin(std::future::ready(hit));
        }
        let here = place.clone();
        let fetch = async move |_| {
            let fetched = call.await.map(Fetched::new);
            typed.head(&here, fetched, |value, payload| (value, payload))
        };
        Box::pin(async move { place.resolve(typed, fetch).await.0 })
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
