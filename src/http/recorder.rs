//! Records whether the responses of a route can be cached, and the reasons why not.

use super::{
    cache_status_field::{self, Annotated, StatusNote, Storage},
    semantics::storing::ORIGIN_FAILURES,
};
use crate::{
    cache_status::CacheStatus,
    clock,
    config::Config,
    engine::frontend::Completed,
    guard::StampedeGuard,
    key::Key,
    telemetry::{self, routes::Route},
    uncached::Uncached,
};
use http::{Extensions, Method, Request, Response};
use std::sync::Arc;
use tokio::time::Instant;

/// Records the response to one request.
#[derive(Clone)]
pub(super) struct Recorder {
    config: Arc<Config>,
    /// `None` if the route needs no attention: it was cacheable before, or the method is neither GET nor HEAD.
    route: Option<Arc<Route>>,
}

impl Recorder {
    pub(super) fn new<B>(guard: &StampedeGuard, request: &Request<B>) -> Self {
        // Only an event needs the route.
        let is_read = cfg!(feature = "tracing") && matches!(*request.method(), Method::GET | Method::HEAD);
        let find = || guard.engine().routes.find(matched_path(request.extensions()), guard.settings_id());
        let route = is_read.then(find).flatten();
        Self { config: guard.config().clone(), route }
    }

    /// Records the response, and adds its `Cache-Status`.
    pub(super) fn annotate<B>(
        &self,
        annotated: Annotated<B>,
        status: CacheStatus,
        exposed_key: Option<&Key>,
    ) -> Response<B> {
        let status_code = annotated.response.status();
        let is_failure = status_code.is_server_error() || ORIGIN_FAILURES.contains(&status_code);
        match cache_status_field::uncached(annotated.note, status) {
            // It is decided at the end of the body.
            Some(Uncached::UnknownLength) if is_undecided(annotated.note) => {}
            Some(reason) => self.uncached(reason),
            None if status == CacheStatus::Coalesced && is_failure => {}
            None => self.cacheable(),
        }
        cache_status_field::annotate(annotated, status, exposed_key)
    }

    /// Records the end of a body that was collected until `limit` at most.
    pub(super) fn body_ended(&self, completed: &Completed, limit: Instant) {
        match completed {
            Completed::Payload(_) => self.cacheable(),
            Completed::TooLarge if clock::now() >= limit => self.uncached(Uncached::UnknownLength),
            Completed::TooLarge => self.uncached(Uncached::TooLarge),
            Completed::Truncated => self.uncached(Uncached::Truncated),
        }
    }

    fn uncached(&self, reason: Uncached) {
        telemetry::uncached(&self.config.meter, self.route.as_deref(), reason);
    }

    fn cacheable(&self) {
        telemetry::cacheable(self.route.as_deref());
    }
}

fn is_undecided(note: Option<StatusNote>) -> bool {
    matches!(note, Some(StatusNote::Forwarded { storage: Storage::Undecided, .. }))
}

/// Returns the path of the route that a router has matched.
fn matched_path(extensions: &Extensions) -> Option<&str> {
    #[cfg(feature = "axum")]
    let path = extensions.get::<axum::extract::MatchedPath>().map(axum::extract::MatchedPath::as_str);
    #[cfg(not(feature = "axum"))]
    let (path, _) = (None, extensions);
    path
}
