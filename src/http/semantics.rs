//! The rules of a shared cache, as pure functions of heads and times. Each stands beside the clause that requires it.

mod credentials;
#[cfg(test)]
mod differential;
mod etag;
mod field_kind;
pub(super) mod fields;
pub(super) mod forwarded;
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

/// Returns the age with which a response arrived, in seconds (RFC 9111 §5.1): the first of a list, 0 if it is not a
/// number.
pub(super) fn age(headers: &HeaderMap) -> u32 {
    let first = headers.get(header::AGE).and_then(|ages| ages.as_bytes().split(|byte| *byte == b',').next());
    first.and_then(|age| directives::seconds(age.trim_ascii())).unwrap_or(0)
}
