//! What is said of how a request was answered: `Cache-Status` (RFC 9211) and an extension of the response.

use crate::{engine::CacheVerdict, key::Key};
use http::{HeaderName, HeaderValue, Response, header::Entry};
use std::fmt::Write;

/// A response as it is before it is [`stamp`]ed, with what whoever made it knows of how.
pub(super) struct Noted<B> {
    pub(super) response: Response<B>,
    pub(super) note: Option<Note>,
}

/// How a response was made.
#[derive(Clone, Copy)]
pub(super) enum Note {
    /// From an entry: seconds until it is stale, negative if it is.
    Ttl(i64),
    /// By the origin: why it was asked (RFC 9211 §2.2), with what status it answered, and whether that is stored.
    Forwarded { why: &'static str, status: u16, stored: bool },
    /// By what somebody else had asked the origin for.
    Collapsed { why: &'static str },
    /// By the cache itself, for this reason.
    Own(&'static str),
}

/// Adds the `Cache-Status`, with the key if that is to be shown, and the [`CacheVerdict`].
pub(super) fn stamp<B>(noted: Noted<B>, verdict: CacheVerdict, shown: Option<&Key>) -> Response<B> {
    let Noted { mut response, note } = noted;
    response.extensions_mut().insert(verdict);
    let mut text = String::with_capacity(64);
    text.push_str(NAME);
    // Writing to a `String` does not fail.
    let _ = match note {
        // Of every hit: less than half of what the machinery of `write` takes.
        Some(Note::Ttl(ttl)) if verdict != CacheVerdict::Coalesced => {
            text.push_str("; hit; ttl=");
            text.write_str(&ttl.to_string())
        }
        Some(Note::Ttl(_)) => text.write_str("; fwd=miss; collapsed"),
        Some(Note::Collapsed { why }) => write!(text, "; fwd={why}; collapsed"),
        Some(Note::Forwarded { why, status, stored }) => {
            let stored = if stored && verdict != CacheVerdict::FailedOpen { "; stored" } else { "" };
            write!(text, "; fwd={why}; fwd-status={status}{stored}")
        }
        Some(Note::Own(why)) => write!(text, "; detail={why}"),
        None => text.write_str("; fwd=miss"),
    };
    match verdict {
        CacheVerdict::FailedOpen => text.push_str("; detail=fail-open"),
        CacheVerdict::Refused if note.is_none() => text.push_str("; collapsed; detail=failed"),
        _ => {}
    }
    if let Some(key) = shown {
        let _ = write!(text, "; key={}", quoted(key.as_bytes()));
    }
    // Made of what is above, it is a valid value; a list, to which each cache on the way appends (RFC 9211 §2).
    if let Ok(value) = HeaderValue::from_str(&text) {
        match response.headers_mut().entry(CACHE_STATUS) {
            Entry::Occupied(mut others) if others.iter().any(|said| !said.is_empty()) => others.append(value),
            Entry::Occupied(mut room) => _ = room.insert(value),
            Entry::Vacant(none) => _ = none.insert(value),
        }
    }
    response
}

/// As a string of RFC 9651 §3.3.3, which knows nothing but printable ASCII: the rest is percent-encoded.
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
    fn a_key_is_a_string_of_printable_ascii() {
        assert_eq!(quoted(b"GET http://h/\"a\\\0\xff"), r#""GET http://h/\"a\\%00%FF""#);
    }
}
