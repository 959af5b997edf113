//! Renders a response for one request: whole, one range, head only, 304, or 412. Errors of a guard as responses.

use super::{
    annotation::{Annotated, StatusNote},
    body::CacheBody,
    semantics::{
        ranges::{self, RangeSelection},
        request::CacheRequest,
        validation,
    },
    stored_response::StoredResponse,
};
use crate::error::{Error, ErrorKind};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header, response::Parts};
use std::time::Duration;

/// The request that a response is rendered for.
pub(super) struct Reply<'a> {
    pub(super) cache_request: &'a CacheRequest,
    /// Head of the client's request.
    pub(super) client: &'a HeaderMap,
    /// Length of the origin's body, if that is known and the response is not stored.
    pub(super) length: Option<u64>,
}

impl Reply<'_> {
    /// Renders a stored response.
    pub(super) fn stored<B>(
        &self,
        stored: &StoredResponse,
        age: Duration,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        let mut response = Response::new(CacheBody::stored(stored.body.clone()));
        *response.status_mut() = stored.status;
        *response.headers_mut() = stored.headers.clone();
        self.shared(response, age, note)
    }

    /// Renders a response that was not made for this request.
    pub(super) fn shared<B>(
        &self,
        response: Response<CacheBody<B>>,
        age: Duration,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        let mut annotated = self.own(response, note);
        set_age(annotated.response.headers_mut(), age);
        annotated
    }

    /// Renders the response to a fetch, which was sent as a GET without the conditions and the range of the client.
    pub(super) fn own<B>(&self, response: Response<CacheBody<B>>, note: StatusNote) -> Annotated<CacheBody<B>> {
        let CacheRequest { head, conditional, range, .. } = *self.cache_request;
        let response = if head || conditional || range { self.cut(response) } else { response };
        Annotated { response, note }
    }

    /// Renders what the client gets of a whole response, by its method, its conditions and its range.
    fn cut<B>(&self, response: Response<CacheBody<B>>) -> Response<CacheBody<B>> {
        let (mut parts, body) = response.into_parts();
        let mut body = self.select(&mut parts, body);
        if self.cache_request.head {
            // RFC 9110 §9.3.2: the same head as for a GET.
            if let Some(length @ 1..) = body.length().or(self.length) {
                parts.headers.entry(header::CONTENT_LENGTH).or_insert(length.into());
            }
            body = CacheBody::stored(Bytes::new());
        }
        Response::from_parts(parts, body)
    }

    /// Changes the head of a response to that of what the client gets of it, by its conditions and its range. Returns the
    /// body.
    fn select<B>(&self, parts: &mut Parts, body: CacheBody<B>) -> CacheBody<B> {
        let (CacheRequest { conditional, range, .. }, head) = (*self.cache_request, &parts.headers);
        let precondition = conditional.then(|| validation::precondition(self.client, parts.status, head)).flatten();
        let (status, head, body) = if let Some(status) = precondition {
            let head = match status {
                StatusCode::NOT_MODIFIED => validation::not_modified(head),
                _ => generated(status).into_parts().0.headers,
            };
            (status, head, CacheBody::stored(Bytes::new()))
        } else {
            let Some(length) = body.length().or(self.length).filter(|_| range) else { return body };
            match ranges::range(self.client, parts.status, head, length) {
                RangeSelection::Whole => return body,
                RangeSelection::Part { first, last } => {
                    (StatusCode::PARTIAL_CONTENT, ranges::part(head, first, last, length), body.part(first, last))
                }
                RangeSelection::Unsatisfiable => (
                    StatusCode::RANGE_NOT_SATISFIABLE,
                    ranges::unsatisfiable(head, length),
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
    if let Ok(age) = HeaderValue::try_from(seconds.min(MAX_DELTA_SECONDS).to_string()) {
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
        ErrorKind::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
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
/// The response is the one that the layer gives for the same error: an empty body, `Cache-Control: no-store`,
/// and the status of the kind, or 503 with `Retry-After` if [`Error::retry_in`] is known:
///
/// | kind | status |
/// |---|---|
/// | `Origin`, `InvalidUrl` | 502 |
/// | `TimedOut` | 504 |
/// | `Panicked` | 500 |
/// | `Store`, `Overloaded` | 503 |
///
/// The response shows nothing of the source of the error. A handler that wants another response for its
/// origin's own error matches on [`Error::origin`].
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

/// The greatest delta-seconds (RFC 9111 §1.2.2).
const MAX_DELTA_SECONDS: u64 = 1 << 31;

#[cfg(all(test, feature = "axum"))]
mod tests {
    use super::*;
    use crate::error::BoxError;
    use axum::response::IntoResponse;
    use header::{CACHE_CONTROL, RETRY_AFTER};
    use http_body::Body as _;

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
