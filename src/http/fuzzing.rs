//! The doors to the parsers of this module; see [`crate::fuzzing`].

use super::{
    Rules,
    directives::Directives,
    head,
    key::{Class, Target},
    semantics::{
        self,
        freshness::Times,
        request::{self, Asked, Credentials},
        reuse::Facts,
        storing::{self, Shared},
    },
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
        Shared::Nobody(_) | Shared::Failure { .. } => None,
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
    head::decode(payload).map(|stored| (stored.status, stored.headers, stored.age, stored.body))
}

/// The key of a request.
#[must_use]
pub fn http_key(request: &Request<()>) -> Key {
    Target::of(request).key(Class::Get, &Rules::default())
}
