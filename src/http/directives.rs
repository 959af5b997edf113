//! `Cache-Control`, parsed once into what this cache goes by.

use http::{HeaderMap, header};
use std::time::Duration;

/// RFC 9111 §5.2. What is not understood is ignored; a qualified `no-cache="x"` or `private="x"` counts as the whole,
/// which §5.2.2.4 and §5.2.2.7 allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Directives {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    pub(super) must_revalidate: bool,
    pub(super) max_age: Option<Duration>,
    pub(super) s_maxage: Option<Duration>,
}

impl Directives {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut directives = Self::default();
        for line in headers.get_all(header::CACHE_CONTROL) {
            let mut quotes = Quotes::default();
            line.as_bytes().split(|byte| quotes.end_directive(*byte)).for_each(|directive| directives.note(directive));
            if quotes.open {
                // A quote that is never closed quotes nothing: a `no-store` may stand behind it.
                line.as_bytes().split(|byte| *byte == b',').for_each(|directive| directives.note(directive));
            }
        }
        directives
    }

    fn note(&mut self, directive: &[u8]) {
        let (name, value) = match directive.iter().position(|byte| *byte == b'=') {
            Some(at) => (&directive[..at], &directive[at + 1..]),
            None => (directive, &b""[..]),
        };
        let name = name.trim_ascii();
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        if is("no-store") {
            self.no_store = true;
        } else if is("no-cache") {
            self.no_cache = true;
        } else if is("private") {
            self.private = true;
        } else if is("must-revalidate") || is("proxy-revalidate") {
            self.must_revalidate = true;
        } else if is("max-age") {
            self.max_age = shorter(self.max_age, value);
        } else if is("s-maxage") {
            self.s_maxage = shorter(self.s_maxage, value);
        }
    }
}

/// Where the bytes of a line stand, from left to right.
#[derive(Default)]
struct Quotes {
    open: bool,
    escaped: bool,
}

impl Quotes {
    /// Whether this is the next comma that is not quoted.
    fn end_directive(&mut self, byte: u8) -> bool {
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

/// RFC 9111 §4.2.1: a directive that is given twice, or is not a number, makes the response stale rather than fresh.
fn shorter(known: Option<Duration>, value: &[u8]) -> Option<Duration> {
    let digits = value.trim_ascii();
    let digits = digits.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(digits);
    let value = Duration::from_secs(seconds(digits).unwrap_or(0).into());
    Some(known.map_or(value, |known| known.min(value)))
}

/// RFC 9111 §1.2.2: a number too large to hold is the largest one.
pub(super) fn seconds(digits: &[u8]) -> Option<u32> {
    let number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    let digits = number.then(|| std::str::from_utf8(digits).ok())??;
    Some(digits.parse().unwrap_or(FOREVER).min(FOREVER))
}

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
