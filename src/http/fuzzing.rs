//! Entry points to the parsers of this module for fuzzing; see [`crate::fuzzing`].

use super::{
    directives::Directives,
    key::Target,
    semantics::{
        freshness::{self, Times},
        ranges::{self, RangeSelection},
        request::{self, Credentials, Disposition, ForwardedFields},
        storing::{self, Sharing, Storable},
        validation,
    },
    stored_response::{self, CACHE_STATUS, SharedHead},
    vary::SelectingFields,
};
use crate::{config::http::HttpOptions, key::Key, store::token::Token};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use std::{
    fmt::Debug,
    ops::Range,
    time::{Duration, SystemTime},
};

/// Returns the directives of `Cache-Control`, for comparison.
#[must_use]
pub fn directives(headers: &HeaderMap) -> impl PartialEq + Debug + use<> {
    Directives::of(headers)
}

/// Returns what a GET with that head accepts from the cache, for comparison. `None` if it goes to the origin.
#[must_use]
pub fn may_answer(headers: &HeaderMap) -> Option<impl PartialEq + Debug + use<>> {
    match request::disposition(&Method::GET, headers, false, &HttpOptions::default().honour_request_directives()) {
        Disposition::Cache(cache_request) => Some(cache_request),
        Disposition::Forward(_) | Disposition::Unsafe => None,
    }
}

/// Returns the freshness lifetime that a response states, or `None` if it must not be stored.
#[must_use]
pub fn may_store(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Option<Duration>> {
    let times = Times { request_time: now, response_time: now };
    match storing::storable(status, headers, Credentials::None, times, &HttpOptions::default()) {
        Storable::Shared(terms) => Some(terms.lifetime),
        Storable::WaitersOnly(_) | Storable::Private(_) => None,
    }
}

/// Returns the age with which a response arrived.
#[must_use]
pub fn age(headers: &HeaderMap) -> Duration {
    freshness::age(headers)
}

/// Encodes the head of a response that arrived with this age.
#[must_use]
pub fn encode_head(status: StatusCode, headers: &HeaderMap, age: Duration) -> Vec<u8> {
    let sharing = Sharing::of(headers, &HttpOptions::default());
    let (headers, index_id) = (validation::end_to_end(headers), Token::from_bytes([0; 16]));
    stored_response::encode(&SharedHead { status, headers, age, sharing, others: None, index_id })
}

/// Decodes a payload into status, fields, age and body.
#[must_use]
pub fn decode_head(payload: &Bytes) -> Option<(StatusCode, HeaderMap, Duration, Bytes)> {
    let stored = stored_response::decode(payload)?;
    let SharedHead { status, mut headers, age, .. } = stored.head;
    for placeholder in [header::AGE, CACHE_STATUS] {
        assert_eq!(headers.remove(placeholder)?, "", "a placeholder is empty");
    }
    Some((status, headers, age, stored.body))
}

/// Returns the key of a request. `None` if the layer forwards it.
#[must_use]
pub fn http_key(request: &Request<()>) -> Option<Key> {
    let options = HttpOptions::default();
    let target = Target::unambiguous(request, &mut ForwardedFields::None, &options).ok()?;
    Some(target.key(&options))
}

/// Returns the fields of a `Vary` as they are stored. `None` if no request selects the response.
#[must_use]
pub fn selecting_fields(headers: &HeaderMap) -> Option<Vec<u8>> {
    SelectingFields::of(headers, true).map(|fields| fields.encode().split_off(FOR_EVERYONE.len()))
}

/// Returns the request's values of stored selecting fields. `None` if these do not decode.
#[must_use]
pub fn selecting_values(stored: &[u8], request: &HeaderMap) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    SelectingFields::decode(&[FOR_EVERYONE, stored].concat())?.values(request, &mut values);
    Some(values)
}

/// Returns status, head and byte range that a GET gets from a stored 200 of that length.
#[must_use]
pub fn range(request: &HeaderMap, stored: &HeaderMap, length: u64) -> (StatusCode, HeaderMap, Range<u64>) {
    match ranges::range(request, StatusCode::OK, stored, length) {
        RangeSelection::Whole => (StatusCode::OK, stored.clone(), 0..length),
        RangeSelection::Part { first, last } => {
            (StatusCode::PARTIAL_CONTENT, ranges::part(stored, first, last, length), first..last + 1)
        }
        RangeSelection::Unsatisfiable => {
            (StatusCode::RANGE_NOT_SATISFIABLE, ranges::unsatisfiable(stored, length), 0..0)
        }
    }
}

/// How the stored fields of a response for all clients begin.
const FOR_EVERYONE: &[u8] = b"+";
