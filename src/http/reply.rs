//! Renders a response for one request: whole, one range, head only, or 304. Errors of a guard as responses.

use super::{
    annotation::{Annotated, StatusNote},
    body::CacheBody,
    semantics::{
        ranges::{self, RangeSelection},
        request::CacheRequest,
        storing::ORIGIN_FAILURES,
        validation,
    },
    stored_response::StoredResponse,
};
use crate::error::{Error, ErrorKind};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use std::time::Duration;

/// The request that a response is rendered for.
pub(super) struct Reply<'a> {
    pub(super) cache_request: &'a CacheRequest,
    /// Head of the client's request.
    pub(super) client: &'a HeaderMap,
}

impl Reply<'_> {
    /// Renders a stored response.
    pub(super) fn stored<B>(
        &self,
        stored: &StoredResponse,
        age: Duration,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        let (head, whole) = (&stored.headers, &stored.body);
        let length = whole.len() as u64;
        let selection = match self.cache_request.range {
            true => ranges::range(self.client, stored.status, head, length),
            false => RangeSelection::Whole,
        };
        let (status, mut headers, mut body) = match selection {
            _ if self.client_has_it(stored.status, head) => {
                (StatusCode::NOT_MODIFIED, validation::not_modified(head), Bytes::new())
            }
            RangeSelection::Whole => (stored.status, head.clone(), whole.clone()),
            RangeSelection::Part { first, last } => {
                // The range lies within the body, which is in memory, so it fits a `usize`.
                let part = whole.slice(first as usize..=last as usize);
                (StatusCode::PARTIAL_CONTENT, ranges::part(head, first, last, length), part)
            }
            RangeSelection::Unsatisfiable => {
                (StatusCode::RANGE_NOT_SATISFIABLE, ranges::unsatisfiable(head, length), Bytes::new())
            }
        };
        if self.cache_request.head {
            // RFC 9110 §9.3.2: the same head as for a GET. An entry made from a HEAD has no body to measure.
            if !body.is_empty() && !headers.contains_key(header::CONTENT_LENGTH) {
                headers.insert(header::CONTENT_LENGTH, body.len().into());
            }
            body = Bytes::new();
        }
        let mut response = Response::new(CacheBody::stored(body));
        (*response.status_mut(), *response.headers_mut()) = (status, headers);
        set_age(response.headers_mut(), age);
        Annotated { response, note }
    }

    /// Renders the response to another request's fetch.
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

    /// Renders the response to the request's own fetch, which was sent without the conditions of the client.
    pub(super) fn own<B>(&self, mut response: Response<CacheBody<B>>, note: StatusNote) -> Annotated<CacheBody<B>> {
        if self.client_has_it(response.status(), response.headers()) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            *response.headers_mut() = validation::not_modified(response.headers());
            *response.body_mut() = CacheBody::stored(Bytes::new());
        }
        Annotated { response, note }
    }

    /// Reports whether the client has the response already (RFC 9111 §4.3.2).
    fn client_has_it(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.cache_request.conditional && validation::not_modified_since(self.client, status, headers)
    }
}

/// Sets the `Age`. RFC 9111 §5.1: the age at arrival plus the time spent in this cache, rounded up so that it is never
/// understated.
fn set_age(headers: &mut HeaderMap, age: Duration) {
    let seconds = age.as_secs().saturating_add(u64::from(age.subsec_millis() > 0));
    if let Ok(age) = HeaderValue::try_from(seconds.min(MAX_DELTA_SECONDS).to_string()) {
        headers.insert(header::AGE, age);
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
        ErrorKind::Origin => error
            .status()
            .and_then(|status| StatusCode::from_u16(status).ok())
            .filter(|status| status.is_server_error() || ORIGIN_FAILURES.contains(status))
            .unwrap_or(StatusCode::BAD_GATEWAY),
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
/// `Retry-After` if [`Error::retry_in`] is known, and the status of the kind:
///
/// | kind | status |
/// |---|---|
/// | `Origin` | the [recorded status](Error::status) if it is a 5xx, 408, 425 or 429, otherwise 502 |
/// | `InvalidUrl` | 502 |
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
            (Error::reported(ErrorKind::Origin, 504, Duration::from_millis(1001)), 504, Some("2")),
            (Error::reported(ErrorKind::Origin, 404, Duration::from_secs(3)), 502, Some("3")),
            (Error::reported(ErrorKind::Origin, 0, Duration::from_secs(3)), 502, Some("3")),
            (Error::reported(ErrorKind::TimedOut, 0, Duration::from_secs(3)), 504, Some("3")),
            (Error::origin_failed(cause()).with_retry_in(Duration::from_secs(3)), 502, Some("3")),
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
