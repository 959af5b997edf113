//! Range requests for stored responses (RFC 9110 §14).

use super::{
    freshness::date,
    validation::{self, EntityTag},
};
use crate::http::directives::decimal;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::time::Duration;

/// The part of a stored body that a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum RangeSelection {
    /// The whole body, with the stored status.
    Whole,
    /// 206: from the first to the last byte, both inclusive.
    Part { first: u64, last: u64 },
    /// 416: no byte of the range exists.
    Unsatisfiable,
}

/// Selects the part of a stored body of `length` bytes that a GET gets. RFC 9110 §14.2 lets a server ignore any
/// `Range`: several ranges, other units and invalid ranges get the whole body.
pub(in crate::http) fn range(
    request: &HeaderMap,
    status: StatusCode,
    stored: &HeaderMap,
    length: u64,
) -> RangeSelection {
    // §14.2: a range applies only to a 200. §13.1.5: and only if the client has other parts of the same representation.
    if status != StatusCode::OK || !if_range(request, stored) {
        return RangeSelection::Whole;
    }
    let mut lines = request.get_all(header::RANGE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return RangeSelection::Whole };
    select(line.as_bytes(), length).unwrap_or(RangeSelection::Whole)
}

fn select(line: &[u8], length: u64) -> Option<RangeSelection> {
    let (unit, range) = split(line, b'=')?;
    // §14.1: names of units are case-insensitive.
    if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let (first, last) = split(range.trim_ascii(), b'-')?;
    let end = length.checked_sub(1);
    Some(match (first, last) {
        (b"", suffix) => match (decimal(suffix)?, end) {
            (0, _) => RangeSelection::Unsatisfiable,
            (_, None) => RangeSelection::Whole,
            (suffix, Some(end)) => RangeSelection::Part { first: length.saturating_sub(suffix), last: end },
        },
        (first, last) => {
            let first = decimal(first)?;
            let last = if last.is_empty() { u64::MAX } else { decimal(last)? };
            match end {
                // §14.1.1: the range is invalid.
                _ if last < first => RangeSelection::Whole,
                Some(end) if first <= end => RangeSelection::Part { first, last: last.min(end) },
                _ => RangeSelection::Unsatisfiable,
            }
        }
    })
}

/// Reports whether `If-Range` is absent, or is a strong validator of the stored response (RFC 9110 §13.1.5).
fn if_range(request: &HeaderMap, stored: &HeaderMap) -> bool {
    if !request.contains_key(header::IF_RANGE) {
        return true;
    }
    if let Some(tag) = EntityTag::only(request, &header::IF_RANGE) {
        return EntityTag::of(stored).is_some_and(|known| known.matches_strongly(tag));
    }
    let modified = date(stored, &header::LAST_MODIFIED);
    // §8.8.2.2: a response modified in the second in which it was sent may have been modified again in that second.
    let strong = || date(stored, &header::DATE)?.duration_since(modified?).ok().filter(|span| *span >= SECOND);
    modified.is_some() && date(request, &header::IF_RANGE) == modified && strong().is_some()
}

/// Returns the head of a 206 made from a stored 200 (RFC 9110 §15.3.7).
pub(in crate::http) fn part(stored: &HeaderMap, first: u64, last: u64, length: u64) -> HeaderMap {
    cut(stored.clone(), last - first + 1, format!("bytes {first}-{last}/{length}"))
}

/// Returns the head of a 416, which states the length of the body (RFC 9110 §15.5.17).
pub(in crate::http) fn unsatisfiable(stored: &HeaderMap, length: u64) -> HeaderMap {
    cut(validation::not_modified(stored), 0, format!("bytes */{length}"))
}

/// Returns the head with this length and range of its body.
fn cut(mut head: HeaderMap, length: u64, range: String) -> HeaderMap {
    head.insert(header::CONTENT_LENGTH, length.into());
    if let Ok(range) = HeaderValue::from_maybe_shared(Bytes::from(range)) {
        head.insert(header::CONTENT_RANGE, range);
    }
    head
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::{
        super::kit::{date as date_at, headers, status},
        *,
    };
    use proptest::prelude::*;

    fn of(line: &str, length: u64) -> RangeSelection {
        range(&headers(&[("range", line)]), StatusCode::OK, &HeaderMap::new(), length)
    }

    /// RFC 9110 §14.1.2.
    #[test]
    fn single_byte_range_selects_a_part() {
        let part = |first, last| RangeSelection::Part { first, last };
        for (line, expected) in [
            ("bytes=0-0", part(0, 0)),
            ("Bytes = 2-4", part(2, 4)),
            ("bytes=2-", part(2, 9)),
            ("bytes=2-99999999999999999999", part(2, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-99", part(0, 9)),
            ("bytes=9-9", part(9, 9)),
            ("bytes=10-", RangeSelection::Unsatisfiable),
            ("bytes=99999999999999999999-", RangeSelection::Unsatisfiable),
            ("bytes=-0", RangeSelection::Unsatisfiable),
        ] {
            assert_eq!(of(line, 10), expected, "{line}");
        }
        assert_eq!((of("bytes=0-", 0), of("bytes=-1", 0)), (RangeSelection::Unsatisfiable, RangeSelection::Whole));
    }

    #[test]
    fn invalid_or_multiple_ranges_get_the_whole_body() {
        for line in [
            "",
            "bytes",
            "bytes=",
            "bytes=-",
            "bytes=4-2",
            "bytes=0-1,3-4",
            "bytes=0-1,",
            "items=0-1",
            "bytes=a-b",
            "bytes=0x1-2",
            "bytes=+1-2",
            "bytes=1 - 2",
            "bytes=1--2",
        ] {
            assert_eq!(of(line, 10), RangeSelection::Whole, "{line}");
        }
        let two = headers(&[("range", "bytes=0-1"), ("range", "bytes=0-1")]);
        assert_eq!(range(&two, StatusCode::OK, &HeaderMap::new(), 10), RangeSelection::Whole);
        let one = headers(&[("range", "bytes=0-1")]);
        for code in [203, 204, 301, 404] {
            assert_eq!(range(&one, status(code), &HeaderMap::new(), 10), RangeSelection::Whole, "{code}");
        }
    }

    /// RFC 9110 §13.1.5.
    #[test]
    fn if_range_mismatch_gets_the_whole_body() {
        let (modified, later) = (date_at(0), date_at(1));
        let stored = |tag, made| headers(&[("etag", tag), ("last-modified", &modified), ("date", made)]);
        for (if_range, stored, partial) in [
            ("\"a\"", stored("\"a\"", &later), true),
            ("\"b\"", stored("\"a\"", &later), false),
            ("W/\"a\"", stored("W/\"a\"", &later), false),
            ("W/\"a\"", stored("\"a\"", &later), false),
            ("\"a\", \"b\"", stored("\"a\"", &later), false),
            (&modified, stored("\"a\"", &later), true),
            (&later, stored("\"a\"", &later), false),
            (&modified, stored("\"a\"", &modified), false),
            ("", stored("\"a\"", &later), false),
        ] {
            let request = headers(&[("range", "bytes=0-1"), ("if-range", if_range)]);
            let is_partial = range(&request, StatusCode::OK, &stored, 10) != RangeSelection::Whole;
            assert_eq!(is_partial, partial, "{if_range}");
        }
        let missing = headers(&[("range", "bytes=0-1"), ("if-range", &modified)]);
        assert_eq!(range(&missing, StatusCode::OK, &HeaderMap::new(), 10), RangeSelection::Whole);
    }

    #[test]
    fn partial_head_states_its_content_range() {
        let stored = headers(&[("content-length", "10"), ("content-type", "text/plain"), ("etag", "\"a\"")]);
        let expected = [
            ("content-length", "3"),
            ("content-range", "bytes 7-9/10"),
            ("content-type", "text/plain"),
            ("etag", "\"a\""),
        ];
        assert_eq!(part(&stored, 7, 9, 10), headers(&expected));
        let expected = [("content-length", "0"), ("content-range", "bytes */10"), ("etag", "\"a\"")];
        assert_eq!(unsatisfiable(&stored, 10), headers(&expected));
    }

    proptest! {
        #[test]
        fn range_never_exceeds_the_body(length: u64, first: u64, last: u64, form in 0..3, garbage in "[bytes=0-9, -]{0,24}") {
            let line = match form {
                0 => format!("bytes={first}-{last}"),
                1 => format!("bytes=-{last}"),
                _ => garbage,
            };
            if let RangeSelection::Part { first, last } = of(&line, length) {
                prop_assert!(first <= last && last < length);
            }
        }
    }
}
