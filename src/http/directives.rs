//! `Cache-Control` and the fields that come before it, parsed once into what this cache goes by.

mod targeted;

use http::{HeaderMap, HeaderName, header};
use std::time::Duration;

/// RFC 9111 §5.2, RFC 5861, RFC 8246, of requests and of responses. What is not understood is ignored, as is
/// `no-transform`: nothing is transformed here. A qualified `no-cache="x"` or `private="x"` counts as the whole, which
/// §5.2.2.4 and §5.2.2.7 allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) public: bool,
    pub(super) private: bool,
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) must_revalidate: bool,
    pub(super) proxy_revalidate: bool,
    pub(super) must_understand: bool,
    pub(super) immutable: bool,
    pub(super) only_if_cached: bool,
    pub(super) max_age: Option<Duration>,
    pub(super) s_maxage: Option<Duration>,
    pub(super) stale_while_revalidate: Option<Duration>,
    pub(super) stale_if_error: Option<Duration>,
    /// Without a value it is `Duration::MAX`.
    pub(super) max_stale: Option<Duration>,
    pub(super) min_fresh: Option<Duration>,
}

/// Which field has spoken to this cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// One for caches like this: `Cache-Control`, `Expires` and `Pragma` count for nothing (RFC 9213 §2.2).
    Targeted,
    CacheControl,
    Silence,
}

impl Directives {
    /// What `Cache-Control` says.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        for line in headers.get_all(header::CACHE_CONTROL) {
            let mut quotes = Quotes::default();
            line.as_bytes().split(|byte| quotes.end_member(*byte)).for_each(|directive| directives.note(directive));
            if quotes.open {
                // A quote that is never closed quotes nothing: a `no-store` may stand behind it.
                line.as_bytes().split(|byte| *byte == b',').for_each(|directive| directives.note(directive));
            }
        }
        directives
    }

    /// What a response says to this cache: the first of the targeted fields that is a dictionary with members, else
    /// `Cache-Control`, else `Pragma`. RFC 9111 §5.4 gives that no meaning in a response; those who write it mean this.
    pub(super) fn for_cache(headers: &HeaderMap, targets: &[HeaderName]) -> (Self, Source) {
        if let Some(directives) = targets.iter().find_map(|field| targeted::directives(headers, field)) {
            return (directives, Source::Targeted);
        }
        match headers.contains_key(header::CACHE_CONTROL) {
            true => (Self::of(headers), Source::CacheControl),
            false => (Self { no_cache: pragma(headers), ..Self::default() }, Source::Silence),
        }
    }

    /// RFC 9111 §4.2.4: what forbids to serve a response stale. `s-maxage` means `proxy-revalidate` as well (§5.2.2.10).
    pub(super) fn forbid_stale(&self) -> bool {
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
            // RFC 9111 §4.2.1: what is given twice, or is not a number, makes a response stale rather than fresh.
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

type Part<T> = (&'static str, fn(&mut Directives) -> &mut T);

const FLAGS: [Part<bool>; 9] = [
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

const SPANS: [Part<Option<Duration>>; 4] = [
    ("max-age", |directives| &mut directives.max_age),
    ("s-maxage", |directives| &mut directives.s_maxage),
    ("stale-while-revalidate", |directives| &mut directives.stale_while_revalidate),
    ("stale-if-error", |directives| &mut directives.stale_if_error),
];

/// RFC 9111 §5.4: a `Pragma: no-cache`, which counts where there is no `Cache-Control`.
pub(super) fn pragma(headers: &HeaderMap) -> bool {
    let no_cache = |member: &[u8]| member.trim_ascii().eq_ignore_ascii_case(b"no-cache");
    let mut lines = headers.get_all(header::PRAGMA).iter();
    !headers.contains_key(header::CACHE_CONTROL)
        && lines.any(|line| line.as_bytes().split(|byte| *byte == b',').any(no_cache))
}

/// Where the bytes of a line stand, from left to right.
#[derive(Default)]
pub(super) struct Quotes {
    open: bool,
    escaped: bool,
}

impl Quotes {
    /// Whether this is the next comma that is not quoted.
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

/// A token or a quoted string, both of which RFC 9111 §5.2 has recipients accept.
fn number(value: &[u8]) -> Option<Duration> {
    let digits = value.trim_ascii();
    let digits = digits.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(digits);
    seconds(digits).map(|seconds| Duration::from_secs(seconds.into()))
}

/// RFC 9111 §1.2.2: a number too large to hold is the largest one.
pub(super) fn seconds(digits: &[u8]) -> Option<u32> {
    let number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let digits = number.then(|| std::str::from_utf8(digits).ok())??;
    Some(digits.parse().unwrap_or(FOREVER).min(FOREVER))
}

/// What RFC 9111 §1.2.2 calls infinity.
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
    fn names_are_case_insensitive_and_lines_add_up() {
        let d = of(&["Public, Max-Age=60", " NO-STORE ,s-maxage=\"5\""]);
        assert!(d.no_store && !d.private);
        assert_eq!((d.max_age, d.s_maxage), (Some(Duration::from_secs(60)), Some(Duration::from_secs(5))));
    }

    #[test]
    fn a_comma_in_quotes_does_not_separate() {
        let d = of(&[r#"ext="a, no-store, \", private", no-cache="set-cookie, x""#]);
        assert!(!d.no_store && !d.private && d.no_cache);
    }

    #[test]
    fn a_quote_that_is_not_closed_hides_nothing() {
        assert!(of(&[r#"ext="a, no-store"#]).no_store);
        assert!(of(&[r#"ext="a, \", private, max-age=60"#]).private);
        assert_eq!(of(&[r#"max-age=60", max-age=5"#]).max_age, Some(Duration::ZERO));
    }

    #[test]
    fn what_is_not_a_number_is_stale() {
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
    fn all_directives_of_responses_are_known() {
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
    fn a_max_stale_without_a_value_accepts_any_staleness() {
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
    fn the_longer_min_fresh_counts_and_garbage_asks_for_nothing() {
        for (line, min_fresh) in [("min-fresh=5, min-fresh=7", secs(7)), ("min-fresh=x", None), ("min-fresh", None)] {
            assert_eq!(of(&[line]).min_fresh, min_fresh, "{line}");
        }
    }

    #[test]
    fn what_forbids_to_be_served_stale() {
        for line in ["must-revalidate", "proxy-revalidate", "s-maxage=60", "no-cache", "no-cache=\"x\""] {
            assert!(of(&[line]).forbid_stale(), "{line}");
        }
        assert!(!of(&["public, max-age=60, immutable"]).forbid_stale());
    }

    proptest! {
        #[test]
        fn never_panics_and_never_misses_a_no_store(before in "[ -~]{0,40}", after in "[ -~]{0,40}") {
            let plain = |text: &str| text.replace(['"', '\\'], "");
            let line = format!("{},no-store,{}", plain(&before), after);
            prop_assert!(of(&[&line]).no_store);
            let _ = of(&[&before, &after]);
        }
    }
}
