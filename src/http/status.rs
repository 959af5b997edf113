//! What is said of how a request was answered: `Cache-Status` (RFC 9211) and an extension of the response.

use crate::engine::CacheVerdict;
use http::{Extensions, HeaderValue, Response};

/// Left in a response for [`stamp`] by whoever knows it.
#[derive(Clone, Copy)]
pub(super) enum Note {
    /// From an entry: seconds until it is stale, negative if it is.
    Ttl(i64),
    /// By the origin: whether a stale entry was at hand, and whether the answer is stored.
    Forwarded { stale: bool, stored: bool },
    /// Not looked up, for this reason.
    Reason(&'static str),
}

pub(super) fn note(extensions: &mut Extensions, note: Note) {
    extensions.insert(note);
}

/// Adds the `Cache-Status` and the [`CacheVerdict`].
pub(super) fn stamp<B>(mut response: Response<B>, verdict: CacheVerdict) -> Response<B> {
    let note = response.extensions_mut().remove::<Note>();
    response.extensions_mut().insert(verdict);
    let status = response.status().as_u16();
    let text = match (verdict, note) {
        (CacheVerdict::Hit | CacheVerdict::Stale, Some(Note::Ttl(ttl))) => format!("{NAME}; hit; ttl={ttl}"),
        (CacheVerdict::Hit | CacheVerdict::Stale, _) => format!("{NAME}; hit"),
        (CacheVerdict::Coalesced, _) => format!("{NAME}; fwd=uri-miss; collapsed"),
        (CacheVerdict::Refused, _) => format!("{NAME}; fwd=uri-miss; collapsed; detail=failed"),
        (CacheVerdict::FailedOpen, _) => format!("{NAME}; fwd=uri-miss; fwd-status={status}; detail=fail-open"),
        (CacheVerdict::Filled | CacheVerdict::Bypassed, Some(Note::Forwarded { stale, stored })) => {
            let reason = if stale { "stale" } else { "uri-miss" };
            let stored = if stored { "; stored" } else { "" };
            format!("{NAME}; fwd={reason}; fwd-status={status}{stored}")
        }
        (CacheVerdict::Filled, _) => format!("{NAME}; fwd=uri-miss; fwd-status={status}"),
        (CacheVerdict::Bypassed, Some(Note::Reason(reason))) => format!("{NAME}; fwd={reason}; fwd-status={status}"),
        (CacheVerdict::Bypassed, _) => format!("{NAME}; fwd=bypass; fwd-status={status}"),
    };
    // Made of what is above, it is a valid value; a list, to which each cache on the way appends (RFC 9211 §2).
    if let Ok(value) = HeaderValue::from_maybe_shared(bytes::Bytes::from(text)) {
        response.headers_mut().append("cache-status", value);
    }
    response
}

const NAME: &str = "stampede-guard";
