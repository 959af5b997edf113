//! `Cache-Control` and its targeted variants, parsed once into the directives that this cache uses.

pub(crate) mod cache_control;
mod targeted;

pub(super) use cache_control::{Directives, seconds};
use http::{HeaderMap, HeaderName, header};

/// The field that the directives of a response come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// A targeted field: `Cache-Control`, `Expires` and `Pragma` are ignored (RFC 9213 §2.2).
    Targeted,
    CacheControl,
    Silence,
}

impl Directives {
    /// Returns the directives of a response for this cache, and their source. That is the first targeted field that is
    /// a dictionary with members, otherwise `Cache-Control`, otherwise `Pragma`. RFC 9111 §5.4 gives `Pragma` no
    /// meaning in a response, but origins that send `no-cache` there mean it.
    pub(super) fn for_cache(headers: &HeaderMap, targets: &[HeaderName]) -> (Self, Source) {
        if let Some(directives) = targets.iter().find_map(|field| targeted::directives(headers, field)) {
            return (directives, Source::Targeted);
        }
        match headers.contains_key(header::CACHE_CONTROL) {
            true => (Self::of(headers), Source::CacheControl),
            false => (Self { no_cache: pragma(headers), ..Self::default() }, Source::Silence),
        }
    }
}

/// Reports whether there is a `Pragma: no-cache` and no `Cache-Control` (RFC 9111 §5.4).
pub(super) fn pragma(headers: &HeaderMap) -> bool {
    let no_cache = |member: &[u8]| member.trim_ascii().eq_ignore_ascii_case(b"no-cache");
    let mut lines = headers.get_all(header::PRAGMA).iter();
    !headers.contains_key(header::CACHE_CONTROL)
        && lines.any(|line| line.as_bytes().split(|byte| *byte == b',').any(no_cache))
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;
    use std::time::Duration;

    const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");
    const OURS: HeaderName = HeaderName::from_static("ours-cache-control");

    fn directives_of(fields: &[(&'static str, &str)]) -> (Directives, Source) {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
        Directives::for_cache(&fields.collect(), &[OURS, CDN])
    }

    fn max_age(seconds: u64) -> Directives {
        Directives { max_age: Some(Duration::from_secs(seconds)), ..Directives::default() }
    }

    #[test]
    fn first_targeted_field_with_members_is_used() {
        let general = ("cache-control", "max-age=1");
        assert_eq!(directives_of(&[]), (Directives::default(), Source::Silence));
        assert_eq!(directives_of(&[general]), (max_age(1), Source::CacheControl));
        assert_eq!(directives_of(&[general, ("cdn-cache-control", "max-age=2")]), (max_age(2), Source::Targeted));
        let both = [general, ("cdn-cache-control", "max-age=2"), ("ours-cache-control", "max-age=3;x=y")];
        assert_eq!(directives_of(&both), (max_age(3), Source::Targeted));
        let lines = [("cdn-cache-control", "max-age=2"), ("cdn-cache-control", "max-age=4")];
        assert_eq!(directives_of(&lines), (max_age(4), Source::Targeted));
        assert_eq!(directives_of(&[general, ("cdn-cache-control", "unknown")]).1, Source::Targeted);
    }

    #[test]
    fn invalid_targeted_field_is_ignored() {
        for garbage in ["", "  ", "max-age=", "max-age=60,", "Max-Age=60", "max-age=60 no-store", "max-age=\"60", "é"]
        {
            let fields = [("cdn-cache-control", garbage), ("cache-control", "max-age=1")];
            assert_eq!(directives_of(&fields), (max_age(1), Source::CacheControl), "{garbage}");
        }
    }

    #[test]
    fn targeted_max_age_of_a_wrong_type_is_stale() {
        for value in ["max-age=\"60\"", "max-age=1.5", "max-age=-1", "max-age", "max-age=(60)", "max-age=x"] {
            assert_eq!(directives_of(&[("cdn-cache-control", value)]), (max_age(0), Source::Targeted), "{value}");
        }
        assert_eq!(directives_of(&[("cdn-cache-control", "max-age=999999999999")]).0, max_age(1 << 31));
        assert!(directives_of(&[("cdn-cache-control", "private=\"x\"")]).0.private);
        assert!(!directives_of(&[("cdn-cache-control", "private=?0")]).0.private);
    }

    proptest! {
        #[test]
        fn targeted_field_parser_never_panics(value in "[ -~]{0,60}", tokens in "([a-z-]{1,9}(=[0-9]{0,20})?[,; ]{0,2}){0,6}") {
            let _ = (directives_of(&[("cdn-cache-control", &value)]), directives_of(&[("cdn-cache-control", &tokens)]));
        }
    }
}
