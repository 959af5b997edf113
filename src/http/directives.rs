//! `Cache-Control` and its targeted variants (RFC 9213), parsed once into the directives that this cache uses.

use http::{HeaderMap, HeaderName, header};
use std::time::Duration;

/// The directives of a request or a response (RFC 9111 §5.2, RFC 5861).
///
/// Unknown directives are ignored. So is `no-transform`, because nothing is transformed here. A qualified
/// `no-cache="x"` or `private="x"` counts as unqualified, which §5.2.2.4 and §5.2.2.7 permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    /// They come from a targeted field: `Cache-Control`, `Expires` and `Pragma` are ignored (RFC 9213 §2.2).
    pub(super) are_targeted: bool,
    pub(super) public: bool,
    pub(super) private: bool,
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) must_revalidate: bool,
    pub(super) proxy_revalidate: bool,
    pub(super) must_understand: bool,
    pub(super) only_if_cached: bool,
    pub(super) max_age: Option<Duration>,
    pub(super) s_maxage: Option<Duration>,
    pub(super) stale_while_revalidate: Option<Duration>,
    pub(super) stale_if_error: Option<Duration>,
    pub(super) min_fresh: Option<Duration>,
}

impl Directives {
    /// Returns the directives of a response for this cache: the directives of the first targeted field with a
    /// directive that this cache knows, otherwise of `Cache-Control`, otherwise of `Pragma`. RFC 9111 §5.4 gives
    /// `Pragma` no meaning in a response, but origins that send `no-cache` there mean it.
    pub(super) fn for_cache(headers: &HeaderMap, targets: &[HeaderName]) -> Self {
        let none = Self { are_targeted: true, ..Self::default() };
        let targeted = targets.iter().map(|field| none.with(headers, field)).find(|directives| *directives != none);
        targeted.unwrap_or_else(|| Self::of(headers))
    }

    /// Parses `Cache-Control`, or `Pragma` without one (RFC 9111 §5.4).
    pub(super) fn of(headers: &HeaderMap) -> Self {
        Self { no_cache: pragma(headers), ..Self::default() }.with(headers, &header::CACHE_CONTROL)
    }

    /// Adds the directives of a field. A targeted field is read as `Cache-Control` is, and not as a dictionary of RFC 9651.
    fn with(mut self, headers: &HeaderMap, field: &HeaderName) -> Self {
        for line in headers.get_all(field) {
            let mut quotes = Quotes::default();
            // A semicolon separates too: what follows it is a parameter of a targeted field, or a mistake.
            let mut ends = |byte: &u8| quotes.end_member(*byte) || *byte == b';' && !quotes.open;
            line.as_bytes().split(&mut ends).for_each(|directive| self.note(directive));
            if quotes.open {
                // An unclosed quote quotes nothing, because a `no-store` may follow it.
                line.as_bytes().split(|byte| b",;".contains(byte)).for_each(|directive| self.note(directive));
            }
        }
        self
    }

    /// Reports whether the response must not be served stale (RFC 9111 §4.2.4). `s-maxage` implies `proxy-revalidate`
    /// (§5.2.2.10).
    pub(super) fn forbid_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.s_maxage.is_some()
    }

    /// Records a directive. RFC 9111 §4.2.1: of repeated numbers the least counts, and an invalid one is 0, which makes a
    /// response stale.
    fn note(&mut self, directive: &[u8]) {
        let mut parts = directive.splitn(2, |byte| *byte == b'=');
        let name = parts.next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        let value = parts.next().unwrap_or_default().trim_ascii();
        // If a comma is missing, a directive is among the words of the name, or follows the value.
        let words = name.split(u8::is_ascii_whitespace).filter(|word| word.len() < name.len());
        let rest = value.split(u8::is_ascii_whitespace).skip(1).filter(|_| !value.contains(&b'"'));
        words.chain(rest).for_each(|word| self.note(word));
        let number = number(value);
        let least = |known: Option<Duration>| Some(known.unwrap_or(Duration::MAX).min(number.unwrap_or_default()));
        match &name[..] {
            b"public" => self.public = true,
            b"private" => self.private = true,
            b"no-store" => self.no_store = true,
            b"no-cache" => self.no_cache = true,
            b"must-revalidate" => self.must_revalidate = true,
            b"proxy-revalidate" => self.proxy_revalidate = true,
            b"must-understand" => self.must_understand = true,
            b"only-if-cached" => self.only_if_cached = true,
            b"max-age" => self.max_age = least(self.max_age),
            b"s-maxage" => self.s_maxage = least(self.s_maxage),
            b"stale-while-revalidate" => self.stale_while_revalidate = least(self.stale_while_revalidate),
            b"stale-if-error" => self.stale_if_error = least(self.stale_if_error),
            b"min-fresh" => self.min_fresh = self.min_fresh.max(number),
            _ => {}
        }
    }
}

/// A tracker of quoted strings while the bytes of a line are read from left to right.
#[derive(Default)]
pub(super) struct Quotes {
    open: bool,
    escaped: bool,
}

impl Quotes {
    /// Reports whether this byte is a comma outside of quotes.
    pub(super) fn end_member(&mut self, byte: u8) -> bool {
        match byte {
            _ if self.escaped => self.escaped = false,
            b'\\' => self.escaped = self.open,
            b'"' => self.open = !self.open,
            b',' => return !self.open,
            _ => {}
        }
        false
    }
}

/// Reports whether there is a `Pragma: no-cache` and no `Cache-Control` (RFC 9111 §5.4).
fn pragma(headers: &HeaderMap) -> bool {
    let no_cache = |member: &[u8]| member.trim_ascii().eq_ignore_ascii_case(b"no-cache");
    !headers.contains_key(header::CACHE_CONTROL)
        && headers.get_all(header::PRAGMA).iter().any(|line| line.as_bytes().split(|byte| *byte == b',').any(no_cache))
}

/// Parses seconds from a token or a quoted string; RFC 9111 §5.2 asks recipients to accept both.
fn number(value: &[u8]) -> Option<Duration> {
    let digits = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    seconds(digits)
}

/// Parses delta-seconds. A number that is too large counts as 2^31 (RFC 9111 §1.2.2).
pub(super) fn seconds(digits: &[u8]) -> Option<Duration> {
    decimal(digits).map(|seconds| Duration::from_secs(seconds.min(FOREVER)))
}

/// Parses digits. A number that is too large becomes `u64::MAX`.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let digits = is_number.then(|| std::str::from_utf8(digits).ok())??;
    Some(digits.parse().unwrap_or(u64::MAX))
}

/// The greatest delta-seconds, which stand for infinity (RFC 9111 §1.2.2).
pub(super) const FOREVER: u64 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");
    const OURS: HeaderName = HeaderName::from_static("ours-cache-control");

    fn of(lines: &[&str]) -> Directives {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::CACHE_CONTROL, HeaderValue::from_bytes(line.as_bytes()).expect("a value"));
        }
        Directives::of(&headers)
    }

    fn secs(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    fn max_age(line: &str) -> Option<u64> {
        of(&[line]).max_age.map(|age| age.as_secs())
    }

    #[test]
    fn directive_names_ignore_case_and_lines_are_merged() {
        let d = of(&["Public, Max-Age=60", " NO-STORE ,s-maxage=\"5\""]);
        assert!(d.no_store && !d.private);
        assert_eq!((d.max_age, d.s_maxage), (Some(Duration::from_secs(60)), Some(Duration::from_secs(5))));
    }

    #[test]
    fn quoted_comma_does_not_separate_directives() {
        let d = of(&[r#"ext="a, no-store, \", private", no-cache="set-cookie, x""#]);
        assert!(!d.no_store && !d.private && d.no_cache);
    }

    #[test]
    fn unclosed_quote_does_not_hide_directives() {
        assert!(of(&[r#"ext="a, no-store"#]).no_store);
        assert!(of(&[r#"ext="a, \", private, max-age=60"#]).private);
        assert_eq!(of(&[r#"max-age=60", max-age=5"#]).max_age, Some(Duration::ZERO));
    }

    /// Seen to fail: a response with `no-cache no-store` was stored.
    #[test]
    fn missing_comma_hides_no_directive() {
        for line in ["no-cache no-store", "no-cache\tno-store", "max-age=60  no-store", "no-store max-age=60"] {
            assert!(of(&[line]).no_store, "{line}");
        }
        assert!(of(&["no-cache private no-store"]).private);
        let ages = ["private max-age=60", "max-age=60 private", "max-age = 60", r#"x="a max-age=60 b""#].map(max_age);
        assert_eq!(ages, [Some(0), Some(0), Some(60), None]);
    }

    #[test]
    fn invalid_or_repeated_max_age_is_stale() {
        for (line, seconds) in [
            ("max-age=60", 60),
            ("max-age=", 0),
            ("max-age", 0),
            ("max-age=-1", 0),
            ("max-age=1.5", 0),
            ("max-age=60, max-age=10", 10),
            ("max-age=99999999999999999999", 1 << 31),
        ] {
            assert_eq!(max_age(line), Some(seconds), "{line}");
        }
        assert_eq!(max_age("max-agee=60"), None);
    }

    #[test]
    fn all_response_directives_are_parsed() {
        let all = of(&[
            "public, private, no-store, no-cache, must-revalidate, proxy-revalidate, must-understand, immutable",
            "no-transform, max-age=1, s-maxage=2, stale-while-revalidate=3, stale-if-error=4, only-if-cached",
        ]);
        let expected = Directives {
            are_targeted: false,
            public: true,
            private: true,
            no_store: true,
            no_cache: true,
            must_revalidate: true,
            proxy_revalidate: true,
            must_understand: true,
            only_if_cached: true,
            max_age: secs(1),
            s_maxage: secs(2),
            stale_while_revalidate: secs(3),
            stale_if_error: secs(4),
            min_fresh: None,
        };
        assert_eq!(all, expected);
        assert_eq!(of(&["no-transform, x=1, , =, \"no-store\""]), Directives::default());
    }

    #[test]
    fn longest_min_fresh_counts_and_invalid_ones_are_ignored() {
        for (line, min_fresh) in [("min-fresh=5, min-fresh=7", secs(7)), ("min-fresh=x", None), ("min-fresh", None)] {
            assert_eq!(of(&[line]).min_fresh, min_fresh, "{line}");
        }
    }

    #[test]
    fn forbid_stale_holds_for_all_revalidate_directives() {
        for line in ["must-revalidate", "proxy-revalidate", "s-maxage=60", "no-cache", "no-cache=\"x\""] {
            assert!(of(&[line]).forbid_stale(), "{line}");
        }
        assert!(!of(&["public, max-age=60, immutable"]).forbid_stale());
    }

    proptest! {
        #[test]
        fn parser_never_panics_and_never_misses_a_no_store(before in "[ -~]{0,40}", after in "[ -~]{0,40}") {
            let plain = |text: &str| text.replace(['"', '\\'], "");
            let line = format!("{},no-store,{}", plain(&before), after);
            prop_assert!(of(&[&line]).no_store);
            let _ = of(&[&before, &after]);
        }
    }

    fn directives_of(fields: &[(&'static str, &str)]) -> Directives {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
        Directives::for_cache(&fields.collect(), &[OURS, CDN])
    }

    fn only_max_age(seconds: u64, are_targeted: bool) -> Directives {
        Directives { max_age: Some(Duration::from_secs(seconds)), are_targeted, ..Directives::default() }
    }

    #[test]
    fn first_targeted_field_with_a_known_directive_is_used() {
        let general = ("cache-control", "max-age=1");
        assert_eq!(directives_of(&[]), Directives::default());
        assert_eq!(directives_of(&[general]), only_max_age(1, false));
        for ignored in ["", "  ", "!", "unknown", "\u{e9}=1"] {
            assert_eq!(directives_of(&[general, ("cdn-cache-control", ignored)]), only_max_age(1, false), "{ignored}");
        }
        assert_eq!(directives_of(&[general, ("cdn-cache-control", "max-age=2")]), only_max_age(2, true));
        let both = [general, ("cdn-cache-control", "max-age=2"), ("ours-cache-control", "max-age=3")];
        assert_eq!(directives_of(&both), only_max_age(3, true));
    }

    #[test]
    fn targeted_field_is_read_as_cache_control() {
        for value in ["max-age=1.5", "max-age=-1", "max-age", "max-age=(60)", "max-age=60 x"] {
            assert_eq!(directives_of(&[("cdn-cache-control", value)]), only_max_age(0, true), "{value}");
        }
        assert_eq!(directives_of(&[("cdn-cache-control", "max-age=999999999999")]), only_max_age(1 << 31, true));
        assert_eq!(directives_of(&[("cdn-cache-control", "max-age=60;x=\"a;public\"")]), only_max_age(60, true));
        for value in ["private", "private=\"x\"", "private;x", "max-age=60; private", "x=\"a; private"] {
            assert!(directives_of(&[("cdn-cache-control", value)]).private, "{value}");
        }
    }

    proptest! {
        #[test]
        fn targeted_field_parser_never_panics(value in "[ -~]{0,60}", tokens in "([a-z-]{1,9}(=[0-9]{0,20})?[,; ]{0,2}){0,6}") {
            let _ = (directives_of(&[("cdn-cache-control", &value)]), directives_of(&[("cdn-cache-control", &tokens)]));
        }
    }
}
