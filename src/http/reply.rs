//! Renders a response for one request: whole, one range, head only, or 304.

use super::{
    body::CacheBody,
    cache_status_field::{Annotated, StatusNote},
    semantics::{
        fields,
        ranges::{self, RangeSelection},
        request::CacheRequest,
        storing::ORIGIN_FAILURES,
        validation,
    },
    stored_response::StoredResponse,
};
use crate::{
    error::{Error, ErrorKind},
    uncached::Uncached,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header};
use std::time::Duration;

/// The request that a response is rendered for.
pub(super) struct Reply<'a> {
    pub(super) cache_request: &'a CacheRequest,
    pub(super) headers: &'a HeaderMap,
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
        if self.client_has_it(stored.status, head) {
            return self.not_modified(head, &stored.per_request, age, note);
        }
        let length = whole.len() as u64;
        let selection = match self.cache_request.range {
            true => ranges::range(self.headers, stored.status, head, length),
            false => RangeSelection::Whole,
        };
        let (status, mut headers, mut body) = match selection {
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
        fields::fill_in(&mut headers, &stored.per_request, self.headers);
        respond(status, headers, CacheBody::stored(body), age, note)
    }

    /// Renders the response to another request's fetch. The fields of one request are empty in its head.
    pub(super) fn shared<B>(
        &self,
        (status, mut headers, body): (StatusCode, HeaderMap, CacheBody<B>),
        per_request: &[HeaderName],
        age: Duration,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        if self.client_has_it(status, &headers) {
            return self.not_modified(&headers, per_request, age, note);
        }
        fields::fill_in(&mut headers, per_request, self.headers);
        respond(status, headers, body, age, note)
    }

    /// Renders the response to the request's own fetch, which was sent without the conditions of the client.
    pub(super) fn own<B>(&self, response: Response<CacheBody<B>>, note: StatusNote) -> Annotated<CacheBody<B>> {
        let (mut parts, mut body) = response.into_parts();
        if self.client_has_it(parts.status, &parts.headers) {
            parts.status = StatusCode::NOT_MODIFIED;
            (parts.headers, body) = (validation::not_modified(&parts.headers), CacheBody::stored(Bytes::new()));
        }
        Annotated { response: Response::from_parts(parts, body), note: Some(note) }
    }

    fn not_modified<B>(
        &self,
        headers: &HeaderMap,
        per_request: &[HeaderName],
        age: Duration,
        note: StatusNote,
    ) -> Annotated<CacheBody<B>> {
        let mut headers = validation::not_modified(headers);
        fields::fill_in(&mut headers, per_request, self.headers);
        respond(StatusCode::NOT_MODIFIED, headers, CacheBody::stored(Bytes::new()), age, note)
    }

    /// Reports whether the client has the response already (RFC 9111 §4.3.2).
    fn client_has_it(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.cache_request.conditional && validation::not_modified_since(self.headers, status, headers)
    }
}

fn respond<B>(
    status: StatusCode,
    mut headers: HeaderMap,
    body: CacheBody<B>,
    age: Duration,
    note: StatusNote,
) -> Annotated<CacheBody<B>> {
    // RFC 9111 §5.1: the age at arrival plus the time spent in this cache, rounded up so that it is never understated.
    let seconds = age.as_secs().saturating_add(u64::from(age.subsec_millis() > 0));
    if let Ok(age) = HeaderValue::try_from(seconds.min(MAX_DELTA_SECONDS).to_string()) {
        headers.insert(header::AGE, age);
    }
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    Annotated { response, note: Some(note) }
}

/// Renders an error as a response, because this layer cannot create an error of the inner service's type.
pub(super) fn rejection<B>(error: &Error) -> Annotated<CacheBody<B>> {
    Annotated { response: error_head(error).map(|()| CacheBody::stored(Bytes::new())), note: None }
}

/// Returns the head of the response to an error. Its body is empty.
pub(super) fn error_head(error: &Error) -> Response<()> {
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

/// Returns the response to `only-if-cached` if nothing suitable is stored: 504 (RFC 9111 §5.2.1.7).
pub(super) fn only_if_cached<B>() -> Annotated<CacheBody<B>> {
    Annotated { note: Some(StatusNote::Generated(Uncached::OnlyIfCached)), ..empty(StatusCode::GATEWAY_TIMEOUT) }
}

/// Returns an empty response that the cache generates for one client only.
pub(super) fn empty<B>(status: StatusCode) -> Annotated<CacheBody<B>> {
    Annotated { response: generated(status).map(|()| CacheBody::stored(Bytes::new())), note: None }
}

fn generated(status: StatusCode) -> Response<()> {
    let mut head = Response::new(());
    *head.status_mut() = status;
    head.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    head
}

/// The greatest delta-seconds (RFC 9111 §1.2.2).
const MAX_DELTA_SECONDS: u64 = 1 << 31;
