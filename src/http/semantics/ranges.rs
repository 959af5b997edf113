//! Parts of a stored response: RFC 9110 §14.

use super::{etag::Tag, freshness::date, validation};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use std::time::Duration;

/// What of a stored body a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::http) enum Cut {
    /// All of it, with the status that it has.
    Whole,
    /// 206: from the first to the last byte, both included.
    Part { first: u64, last: u64 },
    /// 416.
    Unsatisfiable,
}

/// What a GET asks for, of a stored body of that length. RFC 9110 §14.2 lets a server ignore any `Range`: several ranges,
/// other units and what is no range get the whole.
pub(in crate::http) fn range(request: &HeaderMap, status: StatusCode, stored: &HeaderMap, length: u64) -> Cut {
    // §14.2: only what would be a 200 is cut. §13.1.5: and only if the client has the other parts of the same.
    if status != StatusCode::OK || !if_range(request, stored) {
        return Cut::Whole;
    }
    let mut lines = request.get_all(header::RANGE).iter();
    let (Some(line), None) = (lines.next(), lines.next()) else { return Cut::Whole };
    cut(line.as_bytes(), length).unwrap_or(Cut::Whole)
}

fn cut(line: &[u8], length: u64) -> Option<Cut> {
    let (unit, range) = split(line, b'=')?;
    // §14.1: names of units are case-insensitive.
    if !unit.trim_ascii().eq_ignore_ascii_case(b"bytes") {
        return None;
    }
    let (first, last) = split(range.trim_ascii(), b'-')?;
    let end = length.checked_sub(1);
    Some(match (first, last) {
        (b"", suffix) => match (number(suffix)?, end) {
            (0, _) => Cut::Unsatisfiable,
            (_, None) => Cut::Whole,
            (suffix, Some(end)) => Cut::Part { first: length.saturating_sub(suffix), last: end },
        },
        (first, last) => {
            let first = number(first)?;
            let last = if last.is_empty() { u64::MAX } else { number(last)? };
            match end {
                // §14.1.1: no valid range.
                _ if last < first => Cut::Whole,
                Some(end) if first <= end => Cut::Part { first, last: last.min(end) },
                _ => Cut::Unsatisfiable,
            }
        }
    })
}

/// RFC 9110 §13.1.5: a strong validator of what the client has parts of, if it says which.
fn if_range(request: &HeaderMap, stored: &HeaderMap) -> bool {
    if !request.contains_key(header::IF_RANGE) {
        return true;
    }
    if let Some(tag) = Tag::only(request, &header::IF_RANGE) {
        return Tag::of(stored).is_some_and(|known| known.matches_strongly(tag));
    }
    let modified = date(stored, &header::LAST_MODIFIED);
    // §8.8.2.2: what was modified within the second in which it was sent may have been modified again in it.
    let strong = || date(stored, &header::DATE)?.duration_since(modified?).ok().filter(|span| *span >= SECOND);
    modified.is_some() && date(request, &header::IF_RANGE) == modified && strong().is_some()
}

/// The head of a 206 of a stored 200 (RFC 9110 §15.3.7).
pub(in crate::http) fn part(stored: &HeaderMap, first: u64, last: u64, length: u64) -> HeaderMap {
    let mut head = stored.clone();
    head.insert(header::CONTENT_LENGTH, (last - first + 1).into());
    said(&mut head, format!("bytes {first}-{last}/{length}"));
    head
}

/// The head of a 416, which says how long the body is (RFC 9110 §15.5.17).
pub(in crate::http) fn unsatisfiable(stored: &HeaderMap, length: u64) -> HeaderMap {
    let mut head = validation::not_modified(stored);
    head.insert(header::CONTENT_LENGTH, 0.into());
    said(&mut head, format!("bytes */{length}"));
    head
}

fn said(head: &mut HeaderMap, range: String) {
    if let Ok(range) = HeaderValue::from_maybe_shared(Bytes::from(range)) {
        head.insert(header::CONTENT_RANGE, range);
    }
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let at = text.iter().position(|byte| *byte == at)?;
    Some((&text[..at], &text[at + 1..]))
}

/// What is too large to hold is beyond any body.
fn number(digits: &[u8]) -> Option<u64> {
    let number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let digits = number.then(|| std::str::from_utf8(digits).ok())??;
    Some(digits.parse().unwrap_or(u64::MAX))
}

const SECOND: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::{
        super::kit::{date as date_at, headers, status},
        *,
    };
    use proptest::prelude::*;

    fn of(line: &str, length: u64) -> Cut {
        range(&headers(&[("range", line)]), StatusCode::OK, &HeaderMap::new(), length)
    }

    /// RFC 9110 §14.1.2.
    #[test]
    fn one_range_of_bytes_is_cut() {
        let part = |first, last| Cut::Part { first, last };
        for (line, expected) in [
            ("bytes=0-0", part(0, 0)),
            ("Bytes = 2-4", part(2, 4)),
            ("bytes=2-", part(2, 9)),
            ("bytes=2-99999999999999999999", part(2, 9)),
            ("bytes=-3", part(7, 9)),
            ("bytes=-99", part(0, 9)),
            ("bytes=9-9", part(9, 9)),
            ("bytes=10-", Cut::Unsatisfiable),
            ("bytes=99999999999999999999-", Cut::Unsatisfiable),
            ("bytes=-0", Cut::Unsatisfiable),
        ] {
            assert_eq!(of(line, 10), expected, "{line}");
        }
        assert_eq!((of("bytes=0-", 0), of("bytes=-1", 0)), (Cut::Unsatisfiable, Cut::Whole));
    }

    #[test]
    fn what_is_no_single_range_gets_the_whole() {
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
            assert_eq!(of(line, 10), Cut::Whole, "{line}");
        }
        let two = headers(&[("range", "bytes=0-1"), ("range", "bytes=0-1")]);
        assert_eq!(range(&two, StatusCode::OK, &HeaderMap::new(), 10), Cut::Whole);
        let one = headers(&[("range", "bytes=0-1")]);
        for code in [203, 204, 301, 404] {
            assert_eq!(range(&one, status(code), &HeaderMap::new(), 10), Cut::Whole, "{code}");
        }
    }

    /// RFC 9110 §13.1.5.
    #[test]
    fn a_range_of_something_else_gets_the_whole() {
        let (modified, later) = (date_at(0), date_at(1));
        let stored = |tag, made| headers(&[("etag", tag), ("last-modified", &modified), ("date", made)]);
        for (if_range, stored, cut) in [
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
            let is_cut = range(&request, StatusCode::OK, &stored, 10) != Cut::Whole;
            assert_eq!(is_cut, cut, "{if_range}");
        }
        let missing = headers(&[("range", "bytes=0-1"), ("if-range", &modified)]);
        assert_eq!(range(&missing, StatusCode::OK, &HeaderMap::new(), 10), Cut::Whole);
    }

    #[test]
    fn a_part_says_where_it_stands() {
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
        fn no_part_is_beyond_the_length(length: u64, first: u64, last: u64, form in 0..3, garbage in "[bytes=0-9, -]{0,24}") {
            let line = match form {
                0 => format!("bytes={first}-{last}"),
                1 => format!("bytes=-{last}"),
                _ => garbage,
            };
            if let Cut::Part { first, last } = of(&line, length) {
                prop_assert!(first <= last && last < length);
            }
        }
    }
}
