//! Entity tags (RFC 9110 §8.8.3).

use http::{HeaderMap, HeaderName, header};

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

    pub(super) fn is_strong(self) -> bool {
        !self.weak
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

#[cfg(test)]
mod tests {
    use super::{super::kit::headers, *};
    use proptest::prelude::*;

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
