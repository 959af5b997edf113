//! What a client gets: a response rendered for its request (whole, one range, head only, 304, or 412), or an error of a
//! guard as a response. How it was obtained: the `Cache-Status` field (RFC 9211), an extension of the response, and what
//! is recorded about its route.

use super::{
    body::{CacheBody, OriginBody},
    directives::FOREVER,
    semantics::{
        ranges::{self, RangeSelection},
        request::{CacheRequest, ClientRequest},
        validation,
    },
    stored_response::{CACHE_STATUS, SharedHead},
};
use crate::{
    cache_status::CacheStatus,
    clock,
    config::Config,
    engine::frontend::Completed,
    error::{Error, ErrorKind},
    guard::StampedeGuard,
    telemetry::{self, routes::Route},
    uncached::Uncached,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, response::Parts};
use http_body::Body;
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
    pub(super) fn selected(&self, request: ClientRequest<'_>, for_everyone: bool) {
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

/// How a response is rendered for a request.
impl ClientRequest<'_> {
    /// Renders a response that was not made for this request.
    pub(super) fn shared<B: OriginBody>(
        self,
        head: &SharedHead,
        body: CacheBody<B>,
        resident_time: Duration,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        let mut annotated = self.own(head.with(body), note);
        set_age(annotated.response.headers_mut(), resident_time + head.age);
        annotated
    }

    /// Renders the response to a fetch, which was sent as a GET without the conditions and the range of the client.
    pub(super) fn own<B: OriginBody>(
        self,
        response: Response<CacheBody<B>>,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        let CacheRequest { head, conditional, range, .. } = *self.cache_request;
        let response = if head || conditional || range { self.cut(response) } else { response };
        Annotated { response, note }
    }

    /// Renders what the client gets of a whole response, by its method, its conditions and its range.
    fn cut<B: OriginBody>(self, response: Response<CacheBody<B>>) -> Response<CacheBody<B>> {
        let (mut parts, body) = response.into_parts();
        let length = body.size_hint().exact().or_else(|| validation::content_length(&parts.headers));
        let mut body = self.select(&mut parts, body, length);
        if self.cache_request.head {
            // RFC 9110 §9.3.2: the same head as for a GET.
            if let Some(length @ 1..) = body.size_hint().exact().or(length) {
                parts.headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
            }
            body = CacheBody::stored(Bytes::new());
        }
        Response::from_parts(parts, body)
    }

    /// Changes the head of a response to that of what the client gets of it, by its conditions and its range. Returns the
    /// body.
    fn select<B>(self, parts: &mut Parts, body: CacheBody<B>, length: Option<u64>) -> CacheBody<B> {
        let (CacheRequest { conditional, range, .. }, head) = (*self.cache_request, &parts.headers);
        let precondition = conditional.then(|| validation::precondition(self.headers, parts.status, head)).flatten();
        let (status, head, body) = if let Some(status) = precondition {
            let head = match status {
                StatusCode::NOT_MODIFIED => validation::not_modified(head),
                _ => generated(status).into_parts().0.headers,
            };
            (status, head, CacheBody::stored(Bytes::new()))
        } else {
            let Some(length) = length.filter(|_| range) else { return body };
            match ranges::range(self.headers, parts.status, head, length) {
                RangeSelection::Whole => return body,
                RangeSelection::Part { first, last } => {
                    (StatusCode::PARTIAL_CONTENT, ranges::part(head, first, last, length), body.part(first, last))
                }
                RangeSelection::Unsatisfiable => (
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    ranges::unsatisfiable(generated(StatusCode::RANGE_NOT_SATISFIABLE).headers(), length),
                    CacheBody::stored(Bytes::new()),
                ),
            }
        };
        (parts.status, parts.headers) = (status, head);
        body
    }
}

/// Sets the `Age`. RFC 9111 §5.1: the age at arrival plus the time spent in this cache, rounded up so that it is never
/// understated.
fn set_age(headers: &mut HeaderMap, age: Duration) {
    let seconds = age.as_secs().saturating_add(u64::from(age.subsec_millis() > 0));
    if let Ok(age) = HeaderValue::try_from(seconds.min(FOREVER).to_string()) {
        match headers.iter_mut().next() {
            // PERF: its place in a stored head; a lookup takes 170 instructions more.
            Some((&header::AGE, room)) => *room = age,
            _ => _ = headers.insert(header::AGE, age),
        }
    }
}

/// Renders an error as a response, because this layer cannot create an error of the inner service's type.
pub(super) fn rejection<B>(error: &Error) -> Annotated<CacheBody<B>> {
    let response = error_head(error).map(|()| CacheBody::stored(Bytes::new()));
    Annotated { response, note: StatusNote::Error }
}

/// Returns the head of the response to an error. Its body is empty.
fn error_head(error: &Error) -> Response<()> {
    let status = match error.kind() {
        // The request was not forwarded, so this is no status of the origin.
        _ if error.retry_in().is_some() => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Store | ErrorKind::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Panicked | ErrorKind::InvalidKey | ErrorKind::Uncacheable => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut head = generated(status);
    if let Some(retry_in) = error.retry_in() {
        let seconds = retry_in.as_millis().div_ceil(1000).min(u128::from(u32::MAX)) as u32;
        head.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    head
}

/// Returns an empty response that the cache generates for one client only.
pub(super) fn empty<B>(status: StatusCode, note: StatusNote) -> Annotated<CacheBody<B>> {
    Annotated { response: generated(status).map(|()| CacheBody::stored(Bytes::new())), note }
}

fn generated(status: StatusCode) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = status;
    head.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    head
}

/// With the feature `axum`, a handler may return the error of a guard.
///
/// The response equals that of the layer for the same error: an empty body, `Cache-Control: no-store`,
/// and the status of the kind, or 503 with `Retry-After` if [`Error::retry_in`] is known:
///
/// | kind | status |
/// |---|---|
/// | `Origin`, `InvalidUrl` | 502 |
/// | `TimedOut` | 504 |
/// | `Panicked`, `InvalidKey`, `Uncacheable` | 500 |
/// | `Store`, `Overloaded` | 503 |
///
/// The response shows nothing of the source of the error, and nothing is logged: a handler logs
/// [`source`](std::error::Error::source) first. A handler that wants another response for its origin's own error matches
/// on [`Error::origin`].
///
/// ```
/// # #[cfg(feature = "bincode")] {
/// use axum::{Json, Router, extract::{Path, State}, routing::get};
/// use stampede_guard::{Error, StampedeGuard};
///
/// async fn load(id: u64) -> Result<String, std::io::Error> {
///     match id {
///         0 => Err(std::io::ErrorKind::NotFound.into()),
///         _ => Ok(format!("user {id}")),
///     }
/// }
///
/// async fn user(State(guard): State<StampedeGuard>, Path(id): Path<u64>) -> Result<Json<String>, Error> {
///     Ok(Json(guard.fetch(format!("user:{id}"), async move || load(id).await).await?))
/// }
///
/// let app: Router = Router::new().route("/users/{id}", get(user)).with_state(StampedeGuard::in_memory());
/// # use axum::{body::Body, http::Request};
/// # use tower::ServiceExt;
/// # let ask = |uri: &str| app.clone().oneshot(Request::get(uri).body(Body::empty()).unwrap());
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// # assert_eq!(ask("/users/1").await.unwrap().status(), 200);
/// # assert_eq!(ask("/users/0").await.unwrap().status(), 502);
/// # });
/// # }
/// ```
#[cfg(feature = "axum")]
impl axum::response::IntoResponse for Error {
    fn into_response(self) -> axum::response::Response {
        error_head(&self).map(|()| axum::body::Body::empty())
    }
}

const NAME: &str = "stampede-guard";
const HIT: HeaderValue = HeaderValue::from_static("stampede-guard; hit");
#[cfg(all(test, feature = "axum"))]
mod tests {
    use super::*;
    use crate::error::BoxError;
    use axum::response::IntoResponse;
    use header::{CACHE_CONTROL, RETRY_AFTER};

    #[test]
    fn errors_get_the_status_and_fields_of_a_rejection() {
        let cause = || -> BoxError { "as intended".into() };
        let cases = [
            (Error::origin_failed(cause()), 502, None),
            (Error::new(ErrorKind::InvalidUrl, "no host"), 502, None),
            (Error::new(ErrorKind::TimedOut, "late"), 504, None),
            (Error::new(ErrorKind::Panicked, "panic"), 500, None),
            (Error::store_down(cause()), 503, Some("1")),
            (Error::wait_timed_out(), 503, Some("1")),
            (Error::reported(ErrorKind::Origin, Duration::from_millis(1001)), 503, Some("2")),
            (Error::reported(ErrorKind::TimedOut, Duration::from_secs(3)), 503, Some("3")),
            (Error::origin_failed(cause()).with_retry_in(Duration::from_secs(3)), 503, Some("3")),
        ];
        for (error, status, retry_after) in cases {
            let response = error.clone().into_response();
            assert_eq!(response.status(), status, "{error}");
            assert_eq!(response.headers().get(RETRY_AFTER).map(|value| value.to_str().unwrap()), retry_after);
            assert_eq!(response.headers()[CACHE_CONTROL], "no-store");
            assert!(response.body().is_end_stream());
        }
    }
}
