//! A response as one request gets it: whole, a part of it, its head, or that it has not changed.

use super::{
    body::GuardBody,
    head::Stored,
    semantics::{
        ranges::{self, Cut},
        request::Wish,
        validation,
    },
    status::{Note, Noted},
};
use crate::error::{Error, ErrorKind};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use std::time::Duration;

/// To whom.
pub(super) struct Reply<'a> {
    pub(super) wish: &'a Wish,
    pub(super) request: &'a HeaderMap,
}

impl Reply<'_> {
    /// From the cache.
    pub(super) fn stored<B>(&self, stored: &Stored, age: Duration, note: Note) -> Noted<GuardBody<B>> {
        let (head, whole) = (&stored.headers, &stored.body);
        if self.is_known(stored.status, head) {
            return not_modified(head, age, note);
        }
        let length = whole.len() as u64;
        let cut = match self.wish.range {
            true => ranges::range(self.request, stored.status, head, length),
            false => Cut::Whole,
        };
        let (status, mut headers, mut body) = match cut {
            Cut::Whole => (stored.status, head.clone(), whole.clone()),
            Cut::Part { first, last } => {
                // Within the length, which is one of memory.
                let part = whole.slice(first as usize..=last as usize);
                (StatusCode::PARTIAL_CONTENT, ranges::part(head, first, last, length), part)
            }
            Cut::Unsatisfiable => {
                (StatusCode::RANGE_NOT_SATISFIABLE, ranges::unsatisfiable(head, length), Bytes::new())
            }
        };
        if self.wish.head {
            // RFC 9110 §9.3.2: as a GET would say. An entry that was made of a HEAD has no body to say it of.
            if !body.is_empty() && !headers.contains_key(header::CONTENT_LENGTH) {
                headers.insert(header::CONTENT_LENGTH, body.len().into());
            }
            body = Bytes::new();
        }
        respond(status, headers, GuardBody::stored(body), age, note)
    }

    /// From somebody else's call.
    pub(super) fn shared<B>(
        &self,
        (status, headers, body): (StatusCode, HeaderMap, GuardBody<B>),
        age: Duration,
        note: Note,
    ) -> Noted<GuardBody<B>> {
        if self.is_known(status, &headers) {
            return not_modified(&headers, age, note);
        }
        respond(status, headers, body, age, note)
    }

    /// From its own call, whose conditions were not its own.
    pub(super) fn own<B>(&self, response: Response<GuardBody<B>>, note: Note) -> Noted<GuardBody<B>> {
        let (mut parts, mut body) = response.into_parts();
        if self.is_known(parts.status, &parts.headers) {
            parts.status = StatusCode::NOT_MODIFIED;
            (parts.headers, body) = (validation::not_modified(&parts.headers), GuardBody::stored(Bytes::new()));
        }
        Noted { response: Response::from_parts(parts, body), note: Some(note) }
    }

    /// RFC 9111 §4.3.2: whether the client has it already.
    fn is_known(&self, status: StatusCode, headers: &HeaderMap) -> bool {
        self.wish.conditional && validation::not_modified_since(self.request, status, headers)
    }
}

fn not_modified<B>(headers: &HeaderMap, age: Duration, note: Note) -> Noted<GuardBody<B>> {
    let headers = validation::not_modified(headers);
    respond(StatusCode::NOT_MODIFIED, headers, GuardBody::stored(Bytes::new()), age, note)
}

fn respond<B>(
    status: StatusCode,
    mut headers: HeaderMap,
    body: GuardBody<B>,
    age: Duration,
    note: Note,
) -> Noted<GuardBody<B>> {
    // RFC 9111 §5.1: the age it came with, and the time it has spent here.
    if let Ok(age) = HeaderValue::try_from(age.as_secs().min(MOST_SECONDS).to_string()) {
        headers.insert(header::AGE, age);
    }
    let mut response = Response::new(body);
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    Noted { response, note: Some(note) }
}

/// A refusal is a response: the inner service's error type is not ours to make.
pub(super) fn refused<B>(error: &Error) -> Noted<GuardBody<B>> {
    let status = match error.kind() {
        ErrorKind::FailedElsewhere => StatusCode::from_u16(error.code())
            .ok()
            .filter(StatusCode::is_server_error)
            .unwrap_or(StatusCode::SERVICE_UNAVAILABLE),
        ErrorKind::Store | ErrorKind::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        ErrorKind::Panicked => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut refused = empty(status);
    if let Some(retry_in) = error.retry_in() {
        let seconds = retry_in.as_millis().div_ceil(1000).min(u128::from(u32::MAX)) as u32;
        refused.response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    refused
}

/// RFC 9111 §5.2.1.7.
pub(super) fn only_if_cached<B>() -> Noted<GuardBody<B>> {
    Noted { note: Some(Note::Own("only-if-cached")), ..empty(StatusCode::GATEWAY_TIMEOUT) }
}

/// Of the cache's own making, and for nobody else.
pub(super) fn empty<B>(status: StatusCode) -> Noted<GuardBody<B>> {
    let mut response = Response::new(GuardBody::stored(Bytes::new()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Noted { response, note: None }
}

/// RFC 9111 §1.2.2.
const MOST_SECONDS: u64 = 1 << 31;
