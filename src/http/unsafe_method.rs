//! Unsafe methods pass through, and invalidate (RFC 9111 §4.4).

use super::{
    cache_status_field::{Finished, StatusNote},
    forward::forward_uncached,
    key::Target,
    recorder::Recorder,
    semantics::invalidation,
    service::HttpCache,
};
use crate::{cache_status::CacheStatus, engine::resource::Resource, uncached::Uncached};
use futures_util::future::join_all;
use http::{Request, Response};
use tower_service::Service;

impl<S> HttpCache<S> {
    /// Forwards an unsafe request and invalidates its target, and the URIs that the response names, unless the response
    /// is an error.
    ///
    /// The response is returned after the store has acknowledged. Then no fetch that began before the change is stored.
    /// The response does not wait for a store that is unavailable: its `Cache-Status` says that the invalidation is
    /// pending. If the client leaves after the origin has responded, the invalidation goes on.
    pub(super) async fn forward_unsafe<Req, B>(self, request: Request<Req>) -> Finished<B, S::Error>
    where
        S: Service<Request<Req>, Response = Response<B>>,
    {
        let targets = Target::changed_by(&request, &self.guard.config().http);
        let uris: Vec<_> = targets.iter().filter_map(Target::uri).collect();
        let mut resources: Vec<_> = targets.into_iter().filter_map(|target| self.guard.url(target)).collect();
        let fields = request.headers().clone();
        let recorder = Recorder::new(&self.guard, &request);
        let mut annotated = forward_uncached(self.inner, request, "method", Uncached::Method).await?;
        if invalidation::invalidates(annotated.response.status()) {
            for uri in &uris {
                for path in invalidation::also(uri, annotated.response.headers()) {
                    let other = self.guard.url(Target::of_uri(uri).with_path(path.as_str()).with_fields(&fields));
                    resources.extend(other.filter(|other| resources.iter().all(|known| known.key != other.key)));
                }
            }
            // All begin before the first await, at which the client may leave.
            let begun: Vec<_> = resources.into_iter().map(Resource::invalidate_or_defer).collect();
            if join_all(begun).await.contains(&false) {
                annotated.note = Some(StatusNote::InvalidationPending { status: annotated.response.status().as_u16() });
            }
        }
        Ok(recorder.annotate(annotated, CacheStatus::Bypass, None))
    }
}
