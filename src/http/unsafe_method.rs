//! Invalidation: by unsafe methods, and by URL on behalf of the application (RFC 9111 §4.4).

use super::{
    cache_status_field::{self, Finished},
    forward::forward_uncached,
    key::Target,
    semantics::invalidation,
    service::HttpCache,
};
use crate::{
    cache_status::CacheStatus,
    engine::resource::Resource,
    error::{Error, ErrorKind},
    guard::StampedeGuard,
};
use futures_util::future::join_all;
use http::{Request, Response, Uri};
use tower_service::Service;

impl<S> HttpCache<S> {
    /// Forwards an unsafe request and invalidates its target, and the URIs that the response names, unless the response
    /// is an error.
    ///
    /// The response is returned after the store has acknowledged, or failed to. Once it has acknowledged, no fetch that
    /// began before the change is stored.
    pub(super) async fn forward_unsafe<Req, B>(self, request: Request<Req>) -> Finished<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let target = Target::of_request(&request);
        let uri = target.uri();
        let mut resources: Vec<_> = self.guard.url(target).into_iter().collect();
        let fields = request.headers().clone();
        let annotated = forward_uncached(self.inner, request, "method").await?;
        if invalidation::invalidates(annotated.response.status()) {
            if let Some(uri) = &uri {
                for path in invalidation::also(uri, annotated.response.headers()) {
                    resources.extend(self.guard.url(Target::of_uri(uri).with_path(path.as_str()).with_fields(&fields)));
                }
            }
            // An unacknowledged invalidation is retried in the background; the change itself has succeeded either way.
            join_all(resources.into_iter().map(Resource::invalidate)).await;
        }
        Ok(cache_status_field::annotate(annotated, CacheStatus::Bypass, None))
    }
}

impl StampedeGuard {
    /// Invalidates a URL: drops all its stored variants and refuses every response to it that was requested earlier.
    ///
    /// For handlers that change what other URLs show. A successful unsafe request to the URL itself invalidates it
    /// without this call.
    ///
    /// The URL is absolute, as clients write it: `https://example.org/products/7?lang=en`. It is
    /// invalidated under both schemes, because a server after a TLS terminator sees `http`, and in one step. With
    /// [`ignore_host`](crate::http::HttpOptions::ignore_host) a path is enough. Request fields that
    /// [`HttpOptions`](crate::http::HttpOptions) add to the key are taken to be absent.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// guard.invalidate_url(&"https://example.org/products/7".parse()?).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidUrl`] for a URL without authority, unless the keys have none.
    /// Otherwise as [`invalidate`](Self::invalidate).
    pub async fn invalidate_url(&self, url: &Uri) -> Result<(), Error> {
        let target = Target::of_uri(url);
        if !target.is_absolute() && !self.config().http.ignore_host {
            let what = format!(
                "`{url}` names no host, which is part of the cache key; add one, or set `HttpOptions::ignore_host`"
            );
            return Err(Error::new(ErrorKind::InvalidUrl, what));
        }
        match self.url(target) {
            Some(url) => url.invalidate().await,
            None => Ok(()),
        }
    }

    /// Returns the resource that stands for all responses to the target. `None` if it is too long, because nothing is
    /// stored of such a target.
    fn url(&self, target: Target<'_>) -> Option<Resource> {
        (!target.exceeds_limit()).then(|| target.any_resource(self))
    }
}
