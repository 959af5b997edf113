//! How a response was obtained: the `Cache-Status` field (RFC 9211) and an extension of the response.

use super::body::CacheBody;
use crate::uncached::Uncached;
pub(crate) use crate::{cache_status::CacheStatus, key::Key};
use http::{HeaderName, HeaderValue, Response, header::Entry};
use std::fmt::{self, Write};

/// A response before it is [annotated](annotate), with a note on how it was made.
pub(super) struct Annotated<B> {
    pub(super) response: Response<B>,
    pub(super) note: Option<StatusNote>,
}

/// The result of a request, before and after `Cache-Status` is added.
pub(super) type Answer<B, E> = Result<Annotated<CacheBody<B>>, E>;
pub(super) type Finished<B, E> = Result<Response<CacheBody<B>>, E>;

/// The source of a response.
#[derive(Clone, Copy)]
pub(super) enum StatusNote {
    /// From an entry: seconds until it becomes stale, negative if it is stale already.
    Hit { ttl: i64 },
    /// By the origin: why it was forwarded (RFC 9211 §2.2), its status, and whether the response is stored.
    Forwarded { reason: &'static str, status: u16, storage: Storage },
    /// By a fetch that another request leads, with the reason why that was forwarded.
    Collapsed { reason: &'static str },
    /// By the origin, with this status, to an unsafe request whose invalidation the store has not acknowledged yet.
    InvalidationPending { status: u16 },
    /// By the cache itself, for this reason.
    Generated(Uncached),
}

/// Whether a response of the origin is stored, as far as its head says.
#[derive(Clone, Copy)]
pub(super) enum Storage {
    Stored,
    /// It is stored if its body turns out to be small enough.
    Undecided,
    NotStored(Uncached),
}

/// Returns why a response was neither answered from the cache nor stored.
pub(super) fn uncached(note: Option<StatusNote>, status: CacheStatus) -> Option<Uncached> {
    match note {
        Some(StatusNote::Hit { .. } | StatusNote::Collapsed { .. }) => None,
        Some(StatusNote::Forwarded { storage, .. }) => match storage {
            Storage::Stored => None,
            Storage::Undecided => Some(Uncached::UnknownLength),
            Storage::NotStored(reason) => Some(reason),
        },
        Some(StatusNote::InvalidationPending { .. }) => Some(Uncached::InvalidationPending),
        Some(StatusNote::Generated(reason)) => Some(reason),
        None => (status == CacheStatus::Rejected).then_some(Uncached::Failed),
    }
}

/// Adds `Cache-Status`, with the key if it is exposed, and the [`CacheStatus`].
pub(super) fn annotate<B>(annotated: Annotated<B>, status: CacheStatus, exposed_key: Option<&Key>) -> Response<B> {
    let Annotated { mut response, note } = annotated;
    response.extensions_mut().insert(status);
    let mut text = String::with_capacity(64);
    text.push_str(NAME);
    // Writing to a `String` does not fail.
    let _ = match note {
        // PERF: every hit comes here; this takes less than half the time of `write`.
        Some(StatusNote::Hit { ttl }) if status != CacheStatus::Coalesced => {
            text.push_str("; hit; ttl=");
            text.write_str(&ttl.to_string())
        }
        _ => write_forwarded(&mut text, note, status),
    };
    if let Some(key) = exposed_key {
        let _ = write!(text, "; key={}", quoted(&key.to_text()));
    }
    // The text is always a valid value. The field is a list to which each cache on the way appends (RFC 9211 §2).
    if let Ok(value) = HeaderValue::from_str(&text) {
        match response.headers_mut().entry(CACHE_STATUS) {
            Entry::Occupied(mut others) if others.iter().any(|stated| !stated.is_empty()) => others.append(value),
            Entry::Occupied(mut room) => _ = room.insert(value),
            Entry::Vacant(none) => _ = none.insert(value),
        }
    }
    response
}

/// Writes the parameters of a response that is no hit.
fn write_forwarded(text: &mut String, note: Option<StatusNote>, status: CacheStatus) -> fmt::Result {
    match note {
        Some(StatusNote::Hit { .. }) => text.push_str("; fwd=miss; collapsed"),
        Some(StatusNote::Collapsed { reason }) => write!(text, "; fwd={reason}; collapsed")?,
        Some(StatusNote::Forwarded { reason, status: code, storage }) => {
            let stored = if matches!(storage, Storage::Stored) { "; stored" } else { "" };
            write!(text, "; fwd={reason}; fwd-status={code}{stored}")?;
        }
        Some(StatusNote::InvalidationPending { status: code }) => write!(text, "; fwd=method; fwd-status={code}")?,
        Some(StatusNote::Generated(_)) => {}
        None if status == CacheStatus::Rejected => text.push_str("; fwd=miss; collapsed"),
        None => text.push_str("; fwd=miss"),
    }
    match uncached(note, status) {
        Some(reason) => write!(text, "; detail={reason}"),
        None => Ok(()),
    }
}

/// Quotes the key as a string of RFC 9651 §3.3.3. Bytes outside of printable ASCII are percent-encoded.
fn quoted(key: &[u8]) -> String {
    let mut text = String::from("\"");
    for byte in key {
        let _ = match byte {
            b'"' | b'\\' => write!(text, "\\{}", char::from(*byte)),
            b' '..=b'~' => text.write_char(char::from(*byte)),
            _ => write!(text, "%{byte:02X}"),
        };
    }
    text.push('"');
    text
}

pub(super) const CACHE_STATUS: HeaderName = HeaderName::from_static("cache-status");
const NAME: &str = "stampede-guard";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_in_cache_status_is_printable_ascii() {
        assert_eq!(quoted(b"GET http://h/\"a\\\0\xff"), r#""GET http://h/\"a\\%00%FF""#);
    }
}
