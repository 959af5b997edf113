//! Unsafe methods pass through, and invalidate (RFC 9111 §4.4).

use super::{
    cache_status_field::{self, Finished},
    forward::forward_uncached,
    key::Target,
    semantics::invalidation,
    service::HttpCache,
};
use crate::{cache_status::CacheStatus, engine::resource::Resource};
use futures_util::future::join_all;
use http::{Request, Response};
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
        let targets = Target::changed_by(&request, &self.guard.config().http);
        let uris: Vec<_> = targets.iter().filter_map(Target::uri).collect();
        let mut resources: Vec<_> = targets.into_iter().filter_map(|target| self.guard.url(target)).collect();
        let fields = request.headers().clone();
        let annotated = forward_uncached(self.inner, request, "method").await?;
        if invalidation::invalidates(annotated.response.status()) {
            for uri in &uris {
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
