//! The doors to the parsers of this module; see [`crate::fuzzing`].

use super::{
    directives::Directives,
    head, key,
    semantics::{self, Asked, Shared},
};
use crate::key::Key;
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use std::{
    fmt::Debug,
    time::{Duration, SystemTime},
};

/// What `Cache-Control` says, to be compared.
#[must_use]
pub fn directives(headers: &HeaderMap) -> impl PartialEq + Debug + use<> {
    Directives::of(headers)
}

/// Whether a GET with that head may be answered from an entry, and of which age at most.
#[must_use]
pub fn may_answer(headers: &HeaderMap) -> Option<Option<Duration>> {
    match semantics::asked(&Method::GET, headers, false) {
        Asked::Cache { max_age } => Some(max_age),
        Asked::Bypass(_) => None,
    }
}

/// Whether a response may be stored, and for how long if it says so itself.
#[must_use]
pub fn may_store(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Option<Duration>> {
    match semantics::shared(status, headers, now) {
        Shared::Everybody { lifetime, .. } => Some(lifetime),
        Shared::Nobody | Shared::Failure { .. } => None,
    }
}

/// The age that a response came with, in seconds.
#[must_use]
pub fn age(headers: &HeaderMap) -> u32 {
    semantics::age(headers)
}

/// The head of a response as it is stored.
#[must_use]
pub fn encode_head(status: StatusCode, headers: &HeaderMap) -> Option<Vec<u8>> {
    head::encode(status, headers)
}

/// A payload as status, fields, age and body.
#[must_use]
pub fn decode_head(payload: &Bytes) -> Option<(StatusCode, HeaderMap, u32, Bytes)> {
    head::decode(payload).map(|stored| (stored.status, stored.headers, stored.age, stored.body))
}

/// The key of a request.
#[must_use]
pub fn http_key(request: &Request<()>) -> Key {
    key::of(request)
}
