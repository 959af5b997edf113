//! The directives of `Cache-Control`, and their parser.

use http::{HeaderMap, header};
use std::time::Duration;

/// The directives of a request or a response (RFC 9111 §5.2, RFC 5861, RFC 8246).
///
/// Unknown directives are ignored. So is `no-transform`, because nothing is transformed here. A qualified
/// `no-cache="x"` or `private="x"` counts as unqualified, which §5.2.2.4 and §5.2.2.7 permit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::http) struct Directives {
    pub(in crate::http) public: bool,
    pub(in crate::http) private: bool,
    pub(in crate::http) no_store: bool,
    pub(in crate::http) no_cache: bool,
    pub(in crate::http) must_revalidate: bool,
    pub(in crate::http) proxy_revalidate: bool,
    pub(in crate::http) must_understand: bool,
    pub(in crate::http) immutable: bool,
    pub(in crate::http) only_if_cached: bool,
    pub(in crate::http) max_age: Option<Duration>,
    pub(in crate::http) s_maxage: Option<Duration>,
    pub(in crate::http) stale_while_revalidate: Option<Duration>,
    pub(in crate::http) stale_if_error: Option<Duration>,
    /// `Duration::MAX` if the directive has no value.
    pub(in crate::http) max_stale: Option<Duration>,
    pub(in crate::http) min_fresh: Option<Duration>,
}

impl Directives {
    /// Parses `Cache-Control`.
    pub(in crate::http) fn of(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        for line in headers.get_all(header::CACHE_CONTROL) {
            let mut quotes = Quotes::default();
            line.as_bytes().split(|byte| quotes.end_member(*byte)).for_each(|directive| directives.note(directive));
            if quotes.open {
                // An unclosed quote quotes nothing, because a `no-store` may follow it.
                line.as_bytes().split(|byte| *byte == b',').for_each(|directive| directives.note(directive));
            }
        }
        directives
    }

    /// Reports whether the response must not be served stale (RFC 9111 §4.2.4). `s-maxage` implies `proxy-revalidate`
    /// (§5.2.2.10).
    pub(in crate::http) fn forbid_stale(&self) -> bool {
        self.must_revalidate || self.proxy_revalidate || self.no_cache || self.s_maxage.is_some()
    }

    fn note(&mut self, directive: &[u8]) {
        let (name, value) = match directive.iter().position(|byte| *byte == b'=') {
            Some(at) => (&directive[..at], Some(&directive[at + 1..])),
            None => (directive, None),
        };
        let name = name.trim_ascii();
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if let Some((_, flag)) = FLAGS.iter().find(|(known, _)| is(known)) {
            *flag(self) = true;
        } else if let Some((_, span)) = SPANS.iter().find(|(known, _)| is(known)) {
            // RFC 9111 §4.2.1: of repeated values the least counts, and an invalid value is 0, which makes a response
            // stale.
            let value = number(value.unwrap_or_default()).unwrap_or_default();
            let span = span(self);
            *span = Some(span.map_or(value, |known| known.min(value)));
        } else if is("max-stale") {
            let value = value.map_or(Duration::MAX, |value| number(value).unwrap_or_default());
            self.max_stale = Some(self.max_stale.map_or(value, |known| known.min(value)));
        } else if is("min-fresh") {
            self.min_fresh = self.min_fresh.max(value.and_then(number));
        }
    }
}

pub(super) type Part<T> = (&'static str, fn(&mut Directives) -> &mut T);

pub(super) const FLAGS: [Part<bool>; 9] = [
    ("public", |directives| &mut directives.public),
    ("private", |directives| &mut directives.private),
    ("no-store", |directives| &mut directives.no_store),
    ("no-cache", |directives| &mut directives.no_cache),
    ("must-revalidate", |directives| &mut directives.must_revalidate),
    ("proxy-revalidate", |directives| &mut directives.proxy_revalidate),
    ("must-understand", |directives| &mut directives.must_understand),
    ("immutable", |directives| &mut directives.immutable),
    ("only-if-cached", |directives| &mut directives.only_if_cached),
];

pub(super) const SPANS: [Part<Option<Duration>>; 4] = [
    ("max-age", |directives| &mut directives.max_age),
    ("s-maxage", |directives| &mut directives.s_maxage),
    ("stale-while-revalidate", |directives| &mut directives.stale_while_revalidate),
    ("stale-if-error", |directives| &mut directives.stale_if_error),
];

/// A tracker of quoted strings while the bytes of a line are read from left to right.
#[derive(Default)]
pub(in crate::http) struct Quotes {
    open: bool,
    escaped: bool,
}

impl Quotes {
    /// Reports whether this byte is a comma outside of quotes.
    pub(in crate::http) fn end_member(&mut self, byte: u8) -> bool {
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

/// Parses seconds from a token or a quoted string; RFC 9111 §5.2 asks recipients to accept both.
fn number(value: &[u8]) -> Option<Duration> {
    let digits = value.trim_ascii();
    let digits = digits.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(digits);
    seconds(digits).map(|seconds| Duration::from_secs(seconds.into()))
}

/// Parses delta-seconds. A number that is too large counts as 2^31 (RFC 9111 §1.2.2).
pub(in crate::http) fn seconds(digits: &[u8]) -> Option<u32> {
    let number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let digits = number.then(|| std::str::from_utf8(digits).ok())??;
    Some(digits.parse().unwrap_or(FOREVER).min(FOREVER))
}

/// The greatest delta-seconds, which stand for infinity (RFC 9111 §1.2.2).
const FOREVER: u32 = 1 << 31;

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

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
        assert!(FLAGS.iter().all(|(_, flag)| *flag(&mut { all })));
        let spans = SPANS.map(|(_, span)| *span(&mut { all }));
        assert_eq!(spans, [secs(1), secs(2), secs(3), secs(4)]);
        assert_eq!(of(&["no-transform, x=1, , =, \"no-store\""]), Directives::default());
    }

    #[test]
    fn max_stale_without_a_value_accepts_any_staleness() {
        for (line, max_stale) in [
            ("max-stale", Some(Duration::MAX)),
            ("max-stale=5", secs(5)),
            ("max-stale=\"5\"", secs(5)),
            ("max-stale=", secs(0)),
            ("max-stale=x", secs(0)),
            ("max-stale, max-stale=5", secs(5)),
        ] {
            assert_eq!(of(&[line]).max_stale, max_stale, "{line}");
        }
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
}
