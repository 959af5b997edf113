//! The fields of a response that are stored and sent on, its validators, and its validation (RFC 9110 §8.8, RFC 9111
//! §3.1, §4.3).

use super::freshness::date;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use std::time::SystemTime;

/// Returns the end-to-end fields. Fields of one connection are neither stored nor sent on (RFC 9110 §7.6.1,
/// RFC 9111 §3.1). `Age` and `Cache-Status` are removed too, because each reply sets them.
pub(in crate::http) fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for line in headers.get_all(header::CONNECTION) {
        for name in line.as_bytes().split(|byte| *byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                kept.remove(name);
            }
        }
    }
    for name in NOT_STORED {
        kept.remove(name);
    }
    kept
}

/// Returns the stated length of the body. A body of another length is incomplete (RFC 9112 §8), and RFC 9111 §3.3
/// forbids storing it as complete.
pub(in crate::http) fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.trim().parse().ok())
}

/// Adds a `Date` if it is missing or invalid, as RFC 9110 §6.6.1 requires of a recipient with a clock.
pub(in crate::http) fn dated(headers: &mut HeaderMap, response_time: SystemTime) {
    if date(headers, &header::DATE).is_none()
        && let Ok(date) = HeaderValue::try_from(httpdate::fmt_http_date(response_time))
    {
        headers.insert(header::DATE, date);
    }
}

/// Returns the fields of a conditional request that validates the stored response (RFC 9111 §4.3.1). The map is
/// empty if the response has no validator.
pub(in crate::http) fn conditions(stored: &HeaderMap) -> HeaderMap {
    let tag = EntityTag::of(stored).and_then(|_| stored.get(header::ETAG));
    let modified = date(stored, &header::LAST_MODIFIED).and_then(|_| stored.get(header::LAST_MODIFIED));
    let tag = tag.map(|tag| (header::IF_NONE_MATCH, tag.clone()));
    let modified = modified.map(|date| (header::IF_MODIFIED_SINCE, date.clone()));
    tag.into_iter().chain(modified).collect()
}

/// Removes the client's own conditions and range from a request whose response is to be shared, because such a response
/// must be complete.
pub(in crate::http) fn strip(request: &mut HeaderMap) {
    for field in ["if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range", "range"] {
        request.remove(field);
    }
}

/// Reports whether a 304 is about this stored response, whose [`conditions`] were sent (RFC 9111 §4.3.4).
///
/// A 304 without a validator is taken to be about the response that was validated. RFC 9111 requires that response to
/// lack a validator too. But RFC 9110 §15.4.5 lets an origin omit `Last-Modified`, and the condition named no other
/// response.
pub(in crate::http) fn freshens(stored: &HeaderMap, answer: &HeaderMap) -> bool {
    match (EntityTag::of(answer), EntityTag::of(stored)) {
        (Some(new), Some(old)) if !new.weak => new.matches_strongly(old),
        (Some(new), Some(old)) => new.matches_weakly(old),
        (Some(_), None) => false,
        (None, _) => match date(answer, &header::LAST_MODIFIED) {
            Some(new) => date(stored, &header::LAST_MODIFIED) == Some(new),
            None => true,
        },
    }
}

/// Returns the stored head with the fields of a newer head that has a `Date` (RFC 9111 §3.2). The result may have other
/// storage terms, or be private, so it must be evaluated again.
pub(in crate::http) fn updated(stored: &HeaderMap, newer: &HeaderMap) -> HeaderMap {
    let (mut head, mut newer) = (end_to_end(stored), end_to_end(newer));
    for field in OF_THE_BODY {
        newer.remove(field);
    }
    for name in newer.keys() {
        head.remove(name);
    }
    head.extend(newer);
    head
}

/// Returns the status with which the conditions of a request replace a response, in the order of RFC 9110 §13.2.2: 412,
/// or 304 because the client has the response already (RFC 9111 §4.3.2).
pub(in crate::http) fn precondition(request: &HeaderMap, status: StatusCode, stored: &HeaderMap) -> Option<StatusCode> {
    // RFC 9110 §13.2.1: conditions apply only if the response would otherwise be successful.
    if !status.is_success() {
        return None;
    }
    // The `Date` does not replace a missing `Last-Modified`, because the page may have changed within that second.
    let modified = date(stored, &header::LAST_MODIFIED);
    // §13.1.4, §13.1.3: a date is ignored if there are entity tags.
    let holds = listed(request, header::IF_MATCH, stored, EntityTag::matches_strongly)
        .unwrap_or_else(|| date(request, &header::IF_UNMODIFIED_SINCE).is_none_or(|since| modified <= Some(since)));
    if !holds {
        return Some(StatusCode::PRECONDITION_FAILED);
    }
    let is_known = listed(request, header::IF_NONE_MATCH, stored, EntityTag::matches_weakly)
        .unwrap_or_else(|| modified.is_some() && date(request, &header::IF_MODIFIED_SINCE) >= modified);
    is_known.then_some(StatusCode::NOT_MODIFIED)
}

/// Reports whether the field lists the entity tag of the response, or a `*`. `None` without the field.
fn listed<'a>(request: &'a HeaderMap, field: HeaderName, stored: &'a HeaderMap, by: Comparison<'a>) -> Option<bool> {
    request.get(&field)?;
    let known = EntityTag::of(stored);
    Some(request.get_all(field).iter().map(|line| line.as_bytes()).any(|line| {
        line.trim_ascii() == b"*" || known.is_some_and(|known| EntityTag::list(line).any(|tag| by(tag, known)))
    }))
}

type Comparison<'a> = fn(EntityTag<'a>, EntityTag<'a>) -> bool;

/// Returns the head of a 304, without fields that describe the missing body (RFC 9110 §15.4.5). `Last-Modified` stays
/// only if there is no `ETag`, which is more precise.
pub(in crate::http) fn not_modified(stored: &HeaderMap) -> HeaderMap {
    let mut head = stored.clone();
    for field in OF_THE_BODY.into_iter().chain(["content-language", "content-digest", "repr-digest"]) {
        head.remove(field);
    }
    if head.contains_key(header::ETAG) {
        head.remove(header::LAST_MODIFIED);
    }
    head
}

/// An entity tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityTag<'a> {
    weak: bool,
    opaque: &'a [u8],
}

impl<'a> EntityTag<'a> {
    /// Returns the entity tag of a response.
    pub(super) fn of(headers: &'a HeaderMap) -> Option<Self> {
        Self::only(headers, &header::ETAG)
    }

    /// Returns the tag of a field that contains exactly one tag.
    pub(super) fn only(headers: &'a HeaderMap, field: &HeaderName) -> Option<Self> {
        let mut lines = headers.get_all(field).iter();
        let (tag, rest) = Self::next(lines.next()?.as_bytes().trim_ascii())?;
        (rest.is_empty() && lines.next().is_none()).then_some(tag)
    }

    /// Returns the tags of a list, up to the first syntax error.
    pub(super) fn list(mut line: &'a [u8]) -> impl Iterator<Item = Self> {
        std::iter::from_fn(move || {
            let start = line.iter().position(|byte| !b", \t".contains(byte))?;
            let (tag, rest) = Self::next(&line[start..])?;
            line = rest;
            Some(tag)
        })
    }

    fn next(text: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (weak, quoted) = match text.strip_prefix(b"W/") {
            Some(quoted) => (true, quoted),
            None => (false, text),
        };
        let inner = quoted.strip_prefix(b"\"")?;
        let end = inner.iter().position(|byte| *byte == b'"')?;
        let opaque = &inner[..end];
        // RFC 9110 §8.8.3: no white space, no control characters.
        let valid = opaque.iter().all(|byte| *byte > b' ' && *byte != 0x7f);
        valid.then_some((Self { weak, opaque }, &inner[end + 1..]))
    }

    /// Compares strongly (RFC 9110 §8.8.3.2).
    pub(super) fn matches_strongly(self, other: Self) -> bool {
        !self.weak && !other.weak && self.opaque == other.opaque
    }

    /// Compares weakly (RFC 9110 §8.8.3.2).
    pub(super) fn matches_weakly(self, other: Self) -> bool {
        self.opaque == other.opaque
    }
}

const NOT_STORED: [&str; 12] = [
    "age",
    "cache-status",
    "connection",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authentication-info",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Fields that describe the stored body: a newer head does not change them (RFC 9111 §3.2).
const OF_THE_BODY: [&str; 4] = ["content-encoding", "content-length", "content-range", "content-type"];

#[cfg(test)]
mod tests {
    use super::{
        super::kit::{at, date as date_at, headers, status},
        *,
    };
    use proptest::prelude::*;

    const MODIFIED: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
    const EARLIER: &str = "Sun, 06 Nov 1994 08:49:36 GMT";
    const LATER: &str = "Sun, 06 Nov 1994 08:49:38 GMT";

    /// RFC 9110 §7.6.1.
    #[test]
    fn connection_fields_are_not_stored() {
        let kept = end_to_end(&headers(&[
            ("connection", "close, X-Hop"),
            ("connection", ",x-other ,\u{e9}, X-Third"),
            ("x-hop", "1"),
            ("x-other", "1"),
            ("x-third", "1"),
            ("keep-alive", "1"),
            ("transfer-encoding", "chunked"),
            ("age", "3"),
            ("etag", "e"),
        ]));
        assert_eq!(kept, headers(&[("etag", "e")]));
    }

    /// RFC 9110 §6.6.1.
    #[test]
    fn missing_or_invalid_date_is_added() {
        let now = date_at(0);
        for fields in [&[][..], &[("date", "today")], &[("date", "0"), ("date", "1")]] {
            let mut head = headers(fields);
            dated(&mut head, at(0));
            assert_eq!(head, headers(&[("date", &now)]), "{fields:?}");
        }
        let (earlier, mut head) = (headers(&[("date", &date_at(-9))]), headers(&[("date", &date_at(-9))]));
        dated(&mut head, at(0));
        assert_eq!(head, earlier);
    }

    /// RFC 9111 §4.3.1.
    #[test]
    fn validators_become_request_conditions() {
        let both = headers(&[("etag", "W/\"a\""), ("last-modified", MODIFIED), ("x", "y")]);
        let conditional = headers(&[("if-none-match", "W/\"a\""), ("if-modified-since", MODIFIED)]);
        assert_eq!(conditions(&both), conditional);
        assert_eq!(conditions(&headers(&[("etag", "a"), ("last-modified", "yesterday")])), HeaderMap::new());
        let mut request = conditional;
        request.extend(headers(&[("if-match", "*"), ("if-unmodified-since", MODIFIED)]));
        request.extend(headers(&[("range", "bytes=0-1"), ("if-range", "\"a\""), ("accept", "x")]));
        strip(&mut request);
        assert_eq!(request, headers(&[("accept", "x")]));
    }

    /// RFC 9111 §4.3.4.
    #[test]
    fn a_304_freshens_only_the_matching_response() {
        let (strong, weak, dated) = (("etag", "\"a\""), ("etag", "W/\"a\""), ("last-modified", MODIFIED));
        for (stored, answer, expected) in [
            (&[strong][..], &[strong][..], true),
            (&[weak], &[strong], false),
            (&[strong], &[weak], true),
            (&[weak], &[weak], true),
            (&[strong], &[("etag", "\"b\"")], false),
            (&[], &[strong], false),
            (&[dated], &[strong], false),
            (&[strong, dated], &[strong, ("last-modified", LATER)], true),
            (&[dated], &[dated], true),
            (&[dated], &[("last-modified", LATER)], false),
            (&[strong], &[dated], false),
            (&[strong, dated], &[dated], true),
            (&[strong], &[], true),
            (&[dated], &[], true),
        ] {
            assert_eq!(freshens(&headers(stored), &headers(answer)), expected, "{stored:?} {answer:?}");
        }
    }

    /// RFC 9111 §3.2.
    #[test]
    fn newer_head_replaces_all_fields_except_body_fields() {
        let stored = headers(&[
            ("content-length", "5"),
            ("content-type", "text/plain"),
            ("content-encoding", "gzip"),
            ("link", "<a>"),
            ("link", "<b>"),
            ("etag", "\"a\""),
            ("x-old", "1"),
        ]);
        let newer = headers(&[
            ("content-length", "0"),
            ("content-type", "text/html"),
            ("content-encoding", "br"),
            ("content-range", "bytes 0-1/5"),
            ("link", "<c>"),
            ("link", "<d>"),
            ("connection", "x-hop"),
            ("x-hop", "1"),
            ("age", "9"),
            ("cache-control", "max-age=9"),
        ]);
        let expected = headers(&[
            ("content-length", "5"),
            ("content-type", "text/plain"),
            ("content-encoding", "gzip"),
            ("link", "<c>"),
            ("link", "<d>"),
            ("etag", "\"a\""),
            ("x-old", "1"),
            ("cache-control", "max-age=9"),
        ]);
        assert_eq!(updated(&stored, &newer), expected);
    }

    /// RFC 9110 §13.2.2, §13.1.2, §13.1.3.
    #[test]
    fn client_with_a_matching_validator_gets_a_304() {
        let not_modified = |request: &HeaderMap, status, stored: &HeaderMap| {
            precondition(request, status, stored) == Some(StatusCode::NOT_MODIFIED)
        };
        let stored = headers(&[("etag", "\"a\""), ("last-modified", MODIFIED), ("date", LATER)]);
        for (request, expected) in [
            (&[][..], false),
            (&[("if-none-match", "\"a\"")], true),
            (&[("if-none-match", "W/\"a\"")], true),
            (&[("if-none-match", "\"b\", W/\"a\"")], true),
            (&[("if-none-match", "\"b\""), ("if-none-match", "\"a\"")], true),
            (&[("if-none-match", " * ")], true),
            (&[("if-none-match", "\"b\"")], false),
            (&[("if-none-match", "a")], false),
            (&[("if-none-match", "")], false),
            (&[("if-none-match", "\"b\""), ("if-modified-since", LATER)], false),
            (&[("if-none-match", "\"a\""), ("if-modified-since", EARLIER)], true),
            (&[("if-modified-since", MODIFIED)], true),
            (&[("if-modified-since", LATER)], true),
            (&[("if-modified-since", EARLIER)], false),
            (&[("if-modified-since", "0")], false),
            (&[("if-modified-since", LATER), ("if-modified-since", LATER)], false),
        ] {
            assert_eq!(not_modified(&headers(request), status(200), &stored), expected, "{request:?}");
        }
        let since = headers(&[("if-modified-since", MODIFIED)]);
        assert!(!not_modified(&since, status(404), &stored));
        assert!(!not_modified(&since, status(200), &headers(&[("date", &date_at(0))])), "it may be newer");
        assert!(!not_modified(&since, status(200), &HeaderMap::new()));
        let any = headers(&[("if-none-match", "*")]);
        assert!(not_modified(&any, status(200), &HeaderMap::new()));
        assert!(!not_modified(&headers(&[("if-none-match", "\"\"")]), status(200), &HeaderMap::new()));
    }

    /// RFC 9110 §13.2.2, §13.1.1, §13.1.4.
    #[test]
    fn client_whose_precondition_fails_gets_a_412() {
        let stored = headers(&[("etag", "\"a\""), ("last-modified", MODIFIED), ("date", LATER)]);
        for (request, expected) in [
            (&[("if-match", "*")][..], None),
            (&[("if-match", "\"b\", \"a\"")], None),
            (&[("if-match", "W/\"a\"")], Some(412)),
            (&[("if-match", "\"b\"")], Some(412)),
            (&[("if-match", "")], Some(412)),
            (&[("if-unmodified-since", MODIFIED)], None),
            (&[("if-unmodified-since", EARLIER)], Some(412)),
            (&[("if-unmodified-since", "0")], None),
            (&[("if-match", "\"a\""), ("if-unmodified-since", EARLIER)], None),
            (&[("if-match", "\"a\""), ("if-none-match", "\"a\"")], Some(304)),
            (&[("if-match", "\"b\""), ("if-none-match", "\"a\"")], Some(412)),
            (&[("if-unmodified-since", LATER), ("if-modified-since", MODIFIED)], Some(304)),
        ] {
            assert_eq!(
                precondition(&headers(request), status(200), &stored).map(|s| s.as_u16()),
                expected,
                "{request:?}"
            );
        }
        let [tags, since] = [("if-match", "\"a\""), ("if-unmodified-since", EARLIER)].map(|field| headers(&[field]));
        assert_eq!(precondition(&tags, status(404), &stored), None);
        assert_eq!(precondition(&tags, status(200), &HeaderMap::new()), Some(StatusCode::PRECONDITION_FAILED));
        assert_eq!(precondition(&since, status(200), &HeaderMap::new()), None);
    }

    /// RFC 9110 §15.4.5.
    #[test]
    fn a_304_carries_all_fields_except_body_fields() {
        let must = [
            ("cache-control", "max-age=9"),
            ("content-location", "/a"),
            ("date", MODIFIED),
            ("etag", "\"a\""),
            ("expires", LATER),
            ("vary", "accept"),
            ("access-control-allow-origin", "*"),
        ];
        let mut stored = headers(&must);
        stored.extend(headers(&[
            ("content-length", "5"),
            ("content-type", "text/plain"),
            ("content-encoding", "gzip"),
            ("content-language", "en"),
            ("last-modified", EARLIER),
        ]));
        assert_eq!(not_modified(&stored), headers(&must));
        let dated = headers(&[("last-modified", EARLIER)]);
        assert_eq!(not_modified(&dated), dated);
    }

    proptest! {
        #[test]
        fn update_keeps_the_stored_content_length(
            length in 0_u64..1 << 40, names in proptest::collection::vec("(content-length|x-[ab]|link)", 0..8),
        ) {
            let mut stored = HeaderMap::new();
            stored.insert(header::CONTENT_LENGTH, length.into());
            let mut newer = HeaderMap::new();
            for (n, name) in names.iter().enumerate() {
                newer.append(HeaderName::from_bytes(name.as_bytes()).expect("a name"), n.into());
            }
            let updated = updated(&stored, &newer);
            prop_assert_eq!(updated.get_all("content-length").iter().collect::<Vec<_>>(), [&length.to_string()]);
            for name in ["link", "x-a"] {
                prop_assert!(updated.get_all(name).iter().eq(newer.get_all(name)));
            }
        }

        #[test]
        fn response_is_freshened_by_its_own_head(tag in "(W/)?\"[!#-~]{0,8}\"", seconds in 0_i64..99) {
            let head = headers(&[("etag", &tag), ("last-modified", &date_at(seconds))]);
            prop_assert!(freshens(&head, &head));
            prop_assert_eq!(precondition(&conditions(&head), StatusCode::OK, &head), Some(StatusCode::NOT_MODIFIED));
        }
    }

    /// The table of RFC 9110 §8.8.3.2.
    #[test]
    fn strong_and_weak_comparison_differ() {
        for (a, b, strong, weak) in [
            ("W/\"1\"", "W/\"1\"", false, true),
            ("W/\"1\"", "W/\"2\"", false, false),
            ("W/\"1\"", "\"1\"", false, true),
            ("\"1\"", "\"1\"", true, true),
        ] {
            let (a, b) = (headers(&[("etag", a)]), headers(&[("etag", b)]));
            let (a, b) = (EntityTag::of(&a).expect("a tag"), EntityTag::of(&b).expect("a tag"));
            assert_eq!((a.matches_strongly(b), a.matches_weakly(b)), (strong, weak), "{a:?} {b:?}");
        }
    }

    #[test]
    fn entity_tag_may_contain_a_comma() {
        let tags: Vec<_> = EntityTag::list(b" \"a,b\" ,, W/\"c\"\t,\"\"").map(|tag| (tag.weak, tag.opaque)).collect();
        assert_eq!(tags, [(false, &b"a,b"[..]), (true, b"c"), (false, b"")]);
        assert_eq!(EntityTag::list(b"\"a\", b, \"c\"").count(), 1);
    }

    #[test]
    fn invalid_entity_tag_is_ignored() {
        for garbage in ["", "a", "\"a", "a\"", "w/\"a\"", "W/", "\"a b\"", "\"a\" ,", "\"a\", \"b\"", "*"] {
            assert_eq!(EntityTag::of(&headers(&[("etag", garbage)])), None, "{garbage}");
        }
        assert_eq!(EntityTag::of(&headers(&[("etag", "\"a\""), ("etag", "\"a\"")])), None);
    }

    proptest! {
        #[test]
        fn entity_tag_list_terminates(line in proptest::collection::vec(any::<u8>(), 0..60)) {
            prop_assert!(EntityTag::list(&line).count() <= line.len() / 2);
        }
    }
}
