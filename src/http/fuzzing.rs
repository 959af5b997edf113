//! The doors to the parsers of this module; see [`crate::fuzzing`].

use super::{
    Rules,
    directives::Directives,
    head::{self, Stored},
    key::{Class, Target},
    semantics::{
        self,
        freshness::Times,
        ranges::{self, Cut},
        request::{self, Asked, Credentials},
        reuse::Facts,
        storing::{self, Shared},
    },
    status::CACHE_STATUS,
    vary::Selecting,
};
use crate::key::Key;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, header};
use std::{
    fmt::Debug,
    ops::Range,
    time::{Duration, SystemTime},
};

/// What `Cache-Control` says, to be compared.
#[must_use]
pub fn directives(headers: &HeaderMap) -> impl PartialEq + Debug + use<> {
    Directives::of(headers)
}

/// What a GET with that head may have from the cache, to be compared; nothing if it goes to the origin.
#[must_use]
pub fn may_answer(headers: &HeaderMap) -> Option<impl PartialEq + Debug + use<>> {
    match request::asked(&Method::GET, headers, false, &Rules::default()) {
        Asked::Cache(wish) => Some(wish),
        Asked::Forward(_) | Asked::Unsafe => None,
    }
}

/// Whether a response may be stored, and for how long it is fresh if it says so itself.
#[must_use]
pub fn may_store(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Option<Duration>> {
    let times = Times { asked: now, answered: now };
    match storing::shared(status, headers, Credentials::None, times, &Rules::default()) {
        Shared::Everybody(terms) => Some(terms.lifetime),
        Shared::Nobody | Shared::Failure { .. } => None,
    }
}

/// The age that a response came with, in seconds.
#[must_use]
pub fn age(headers: &HeaderMap) -> u32 {
    semantics::age(headers)
}

/// The head of a response as it is stored, that has come with this age.
#[must_use]
pub fn encode_head(status: StatusCode, headers: &HeaderMap, age: Duration) -> Option<Vec<u8>> {
    head::encode(status, headers, age, Facts::of(headers, &Rules::default()))
}

/// A payload as status, fields, age and body.
#[must_use]
pub fn decode_head(payload: &Bytes) -> Option<(StatusCode, HeaderMap, Duration, Bytes)> {
    let Stored { status, mut headers, age, body, .. } = head::decode(payload)?;
    for said_anew in [header::AGE, CACHE_STATUS] {
        assert_eq!(headers.remove(said_anew)?, "", "room, and nothing else");
    }
    Some((status, headers, age, body))
}

/// The key of a request.
#[must_use]
pub fn http_key(request: &Request<()>) -> Key {
    Target::of(request).key(Class::Get, &Rules::default())
}

/// The fields of a `Vary`, as they are stored; nothing if no request selects the response.
#[must_use]
pub fn selecting(headers: &HeaderMap) -> Option<Vec<u8>> {
    Selecting::of(headers).map(|fields| fields.encode())
}

/// What a request says in the fields that were stored so; nothing if these do not decode.
#[must_use]
pub fn selected(stored: &[u8], request: &HeaderMap) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    Selecting::decode(stored)?.values(request, &Rules::default(), &mut values);
    Some(values)
}

/// The status, the head, and which bytes of a stored 200 of that length a GET gets.
#[must_use]
pub fn range(request: &HeaderMap, stored: &HeaderMap, length: u64) -> (StatusCode, HeaderMap, Range<u64>) {
    match ranges::range(request, StatusCode::OK, stored, length) {
        Cut::Whole => (StatusCode::OK, stored.clone(), 0..length),
        Cut::Part { first, last } => {
            (StatusCode::PARTIAL_CONTENT, ranges::part(stored, first, last, length), first..last + 1)
        }
        Cut::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, ranges::unsatisfiable(stored, length), 0..0),
    }
}
