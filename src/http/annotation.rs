//! How a response was obtained: the `Cache-Status` field (RFC 9211), an extension of the response, and what is recorded
//! about its route.

use super::{body::CacheBody, vary::Selector};
use crate::{
    cache_status::CacheStatus,
    clock,
    config::Config,
    engine::frontend::Completed,
    guard::StampedeGuard,
    telemetry::{self, routes::Route},
    uncached::Uncached,
};
use http::{HeaderName, HeaderValue, Method, Request, Response};
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// A response before it is [annotated](annotate), with a note on how it was made.
pub(super) struct Annotated<B> {
    pub(super) response: Response<B>,
    pub(super) note: StatusNote,
}

/// The result of a request, before and after `Cache-Status` is added.
pub(super) type Answer<B, E> = Result<Annotated<CacheBody<B>>, E>;
pub(super) type Finished<B, E> = Result<Response<CacheBody<B>>, E>;

/// The source of a response.
#[derive(Clone, Copy)]
pub(super) enum StatusNote {
    /// From an entry, which is stale for this time.
    Hit { stale_for: Duration },
    /// By the origin: why it was forwarded (RFC 9211 §2.2), its status, and whether the response is stored.
    Forwarded { reason: &'static str, status: u16, storage: Storage },
    /// By a fetch that another request leads, with the reason why that was forwarded.
    Collapsed { reason: &'static str },
    /// By the cache itself, for this reason.
    Generated(Uncached),
    /// By the cache itself, because of an error of the guard.
    Error,
}

/// Whether a response of the origin is stored, as far as its head says.
#[derive(Clone, Copy)]
pub(super) enum Storage {
    Stored,
    /// It is stored if its body turns out to be small enough.
    Undecided,
    NotStored(Uncached),
}

impl StatusNote {
    /// Returns why a response was neither answered from the cache nor stored.
    fn uncached(self, status: CacheStatus) -> Option<Uncached> {
        match self {
            Self::Hit { .. } | Self::Collapsed { .. } | Self::Forwarded { storage: Storage::Stored, .. } => None,
            Self::Forwarded { storage: Storage::Undecided, .. } => Some(Uncached::UnknownLength),
            Self::Forwarded { storage: Storage::NotStored(reason), .. } | Self::Generated(reason) => Some(reason),
            Self::Error => (status == CacheStatus::Rejected).then_some(Uncached::Failed),
        }
    }

    /// Returns the value of `Cache-Status`. A fresh hit states no `ttl`: the client has its age.
    fn text(self, status: CacheStatus) -> String {
        let parameters = match self {
            Self::Hit { .. } if status == CacheStatus::Coalesced => "; fwd=miss; collapsed".to_owned(),
            Self::Hit { stale_for } => format!("; hit; ttl=-{}", stale_for.as_millis().div_ceil(1000)),
            Self::Collapsed { reason } => format!("; fwd={reason}; collapsed"),
            Self::Forwarded { reason, status: code, storage } => {
                let stored = if matches!(storage, Storage::Stored) { "; stored" } else { "" };
                format!("; fwd={reason}; fwd-status={code}{stored}")
            }
            // RFC 9211 §2.2: `fwd` means that the request was forwarded.
            Self::Error if status != CacheStatus::Rejected => "; fwd=miss".to_owned(),
            Self::Generated(_) | Self::Error => String::new(),
        };
        let detail = self.uncached(status).map(|reason| format!("; detail={reason}")).unwrap_or_default();
        [NAME, &parameters, &detail].concat()
    }
}

/// Adds `Cache-Status` and the [`CacheStatus`].
pub(super) fn annotate<B>(annotated: Annotated<B>, status: CacheStatus) -> Response<B> {
    let Annotated { mut response, note } = annotated;
    response.extensions_mut().insert(status);
    let value = match note {
        // PERF: nearly every hit comes here, without an allocation.
        StatusNote::Hit { stale_for: Duration::ZERO } if status != CacheStatus::Coalesced => HIT,
        // The text is always a valid value.
        _ => HeaderValue::try_from(note.text(status)).unwrap_or(HeaderValue::from_static(NAME)),
    };
    match (note, response.headers_mut().iter_mut().nth(1)) {
        // PERF: its place in a stored head; a lookup takes 150 instructions more.
        (StatusNote::Hit { .. }, Some((name, room))) if *name == CACHE_STATUS => *room = value,
        // The field is a list to which each cache on the way appends (RFC 9211 §2).
        _ => _ = response.headers_mut().append(CACHE_STATUS, value),
    }
    response
}

/// Records whether the response to one request can be cached, and the reason why not.
pub(super) struct Recorder {
    config: Arc<Config>,
    /// `None` if the method is neither GET nor HEAD, or the table of routes is full.
    route: Option<Arc<Route>>,
}

impl Recorder {
    pub(super) fn new<B>(guard: &StampedeGuard, request: &Request<B>) -> Self {
        #[cfg(feature = "axum")]
        let path = request.extensions().get().map(axum::extract::MatchedPath::as_str);
        #[cfg(not(feature = "axum"))]
        let path = None;
        // Only an event needs the route.
        let route = match *request.method() {
            Method::GET | Method::HEAD if cfg!(feature = "tracing") => guard.engine.routes.find(path),
            _ => None,
        };
        Self { config: guard.config.clone(), route }
    }

    /// Records the response, and annotates it.
    pub(super) fn annotate<B>(&self, annotated: Annotated<B>, status: CacheStatus) -> Response<B> {
        let status_code = annotated.response.status();
        let is_failure = status_code.is_server_error() || status_code.is_client_error();
        match (annotated.note, annotated.note.uncached(status)) {
            // It is decided at the end of the body.
            (StatusNote::Forwarded { storage: Storage::Undecided, .. }, _) => {}
            (_, None) if status == CacheStatus::Coalesced && is_failure => {}
            (_, uncached) => self.record(uncached),
        }
        annotate(annotated, status)
    }

    /// Records the fields that select a response without a `Vary`. The value of each field counts, because a field with
    /// many values leaves little to share.
    pub(super) fn selected(&self, request: Selector<'_>, for_everyone: bool) {
        let Some(route) = &self.route else { return };
        for field in request.other_fields(for_everyone) {
            if !request.options.selecting_fields.contains(field)
                && route.has_many_values(field.as_str(), request.hash(&[field]))
            {
                telemetry::many_values(&route.name, field.as_str());
            }
        }
    }

    /// Records the end of a body that was collected until `limit` at most.
    pub(super) fn body_ended(&self, completed: &Completed, limit: Instant) {
        self.record(match completed {
            Completed::Payload(_) => None,
            Completed::TooLarge if clock::now() >= limit => Some(Uncached::UnknownLength),
            Completed::TooLarge => Some(Uncached::TooLarge),
            Completed::Truncated => Some(Uncached::Truncated),
        });
    }

    fn record(&self, uncached: Option<Uncached>) {
        if let Some(reason) = uncached {
            telemetry::uncached(&self.config.meter, self.route.as_deref(), reason);
        } else if let Some(route) = &self.route {
            route.was_cacheable();
        }
    }
}

pub(super) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const NAME: &str = "stampede-guard";
const HIT: HeaderValue = HeaderValue::from_static("stampede-guard; hit");
