//! What a shared cache may do with a request and a response: pure functions of their heads and of times, each beside
//! the clause that asks for it.

#[cfg(test)]
mod differential;
mod etag;
pub(super) mod fields;
pub(super) mod freshness;
pub(super) mod invalidation;
#[cfg(test)]
mod kit;
pub(super) mod ranges;
pub(super) mod request;
pub(super) mod reuse;
pub(super) mod storing;
pub(super) mod validation;

use super::directives;
use http::{HeaderMap, header};

/// RFC 9111 §5.1: the age that a response came with, the first of a list. What is not a number is ignored.
pub(super) fn age(headers: &HeaderMap) -> u32 {
    let first = headers.get(header::AGE).and_then(|ages| ages.as_bytes().split(|byte| *byte == b',').next());
    first.and_then(|age| directives::seconds(age.trim_ascii())).unwrap_or(0)
}
