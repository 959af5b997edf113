//! `Range` and `If-Range`, for a body of any length.

use super::{append, lines};
use http::{
    HeaderMap, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_RANGE, DATE, ETAG, IF_RANGE, LAST_MODIFIED, RANGE},
};
use stampede_guard::fuzzing;
use std::ops::Range;

/// The input: eight bytes of length, then a line for each field.
pub(super) fn hold(input: &[u8]) {
    let Some((length, fields)) = input.split_first_chunk() else { return };
    let length = u64::from_le_bytes(*length);
    let (mut request, mut stored) = (HeaderMap::new(), HeaderMap::new());
    let mut lines = lines(fields);
    for (name, value) in [RANGE, IF_RANGE].into_iter().zip(&mut lines) {
        append(&mut request, name, value);
    }
    for (name, value) in [ETAG, LAST_MODIFIED, DATE].into_iter().zip(lines) {
        append(&mut stored, name, value);
    }
    let got = is_within(&request, &stored, length);
    request.remove(IF_RANGE);
    let without = is_within(&request, &stored, length);
    assert!(got == without || got == whole(length), "an If-Range changes the part");
    if let Some(line) = request.get(RANGE).cloned() {
        request.append(RANGE, line);
        assert_eq!(is_within(&request, &stored, length), whole(length), "two lines are one range");
    }
    mean_what_they_say(length, fields);
}

/// Checks that the head describes the selected part, and returns status and part.
fn is_within(request: &HeaderMap, stored: &HeaderMap, length: u64) -> (StatusCode, Range<u64>) {
    let (status, head, part) = fuzzing::range(request, stored, length);
    let says = |name| head.get(name).map(|value| value.to_str().expect("ASCII").to_owned());
    match status.as_u16() {
        200 => assert_eq!((part.clone(), &head), (0..length, stored)),
        206 => {
            assert!(part.start < part.end && part.end <= length, "{part:?} of {length}");
            assert_eq!(says(CONTENT_LENGTH), Some((part.end - part.start).to_string()));
            assert_eq!(says(CONTENT_RANGE), Some(format!("bytes {}-{}/{length}", part.start, part.end - 1)));
        }
        416 => {
            assert_eq!((part.clone(), says(CONTENT_LENGTH)), (0..0, Some("0".to_owned())));
            assert_eq!(says(CONTENT_RANGE), Some(format!("bytes */{length}")));
        }
        other => panic!("a range gets a {other}"),
    }
    (status, part)
}

/// Ranges made of two numbers, interpreted as in RFC 9110 §14.1.2.
fn mean_what_they_say(length: u64, numbers: &[u8]) {
    let (first, rest) = number(numbers);
    let (last, _) = number(rest);
    let (partial, unsatisfiable) = (StatusCode::PARTIAL_CONTENT, (StatusCode::RANGE_NOT_SATISFIABLE, 0..0));
    let from = |end: u64| if first < length { (partial, first..end.min(length)) } else { unsatisfiable.clone() };
    let (closed, open) = (if last < first { whole(length) } else { from(last.saturating_add(1)) }, from(length));
    let suffix = match (last, length) {
        (0, _) => unsatisfiable.clone(),
        (_, 0) => whole(0),
        (last, length) => (partial, length.saturating_sub(last)..length),
    };
    for (line, expected) in [
        (format!("bytes={first}-{last}"), closed),
        (format!("bytes={first}-"), open),
        (format!("bytes=-{last}"), suffix),
    ] {
        let mut request = HeaderMap::new();
        append(&mut request, RANGE, line.as_bytes());
        assert_eq!(is_within(&request, &HeaderMap::new(), length), expected, "{line} of {length}");
    }
}

/// Reads a number from at most eight bytes.
fn number(bytes: &[u8]) -> (u64, &[u8]) {
    let (bytes, rest) = bytes.split_at(bytes.len().min(8));
    (bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)), rest)
}

fn whole(length: u64) -> (StatusCode, Range<u64>) {
    (StatusCode::OK, 0..length)
}
