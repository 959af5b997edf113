//! Cache control for some caches only: RFC 9213.

use super::{Directives, FLAGS, SPANS, seconds};
use http::{HeaderMap, HeaderName};
use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor},
};
use std::{convert::Infallible, time::Duration};

/// What that field says. RFC 9213 §2.1: one that is empty, or no dictionary, is as if it were not there.
pub(super) fn directives(headers: &HeaderMap, field: &HeaderName) -> Option<Directives> {
    let lines: Vec<&[u8]> = headers.get_all(field).iter().map(http::HeaderValue::as_bytes).collect();
    let reading = Reading { directives: Directives::default(), members: 0 };
    let read = Parser::new(&lines.join(&b", "[..])).parse_dictionary_with_visitor(reading).ok()?;
    (read.members > 0).then_some(read.directives)
}

struct Reading {
    directives: Directives,
    members: usize,
}

impl<'de> DictionaryVisitor<'de> for Reading {
    type Out = Self;
    type Error = Infallible;

    fn entry(&mut self, key: &'de KeyRef) -> Result<impl EntryVisitor<'de>, Infallible> {
        self.members += 1;
        Ok(Member { directives: &mut self.directives, name: key.as_str() })
    }

    fn finish(self) -> Result<Self, Infallible> {
        Ok(self)
    }
}

struct Member<'a, 'de> {
    directives: &'a mut Directives,
    name: &'de str,
}

impl Member<'_, '_> {
    /// The last of several members of that name counts (RFC 9651 §4.2.2), and a value of another type makes the response
    /// stale rather than fresh. A flag that is `?0` is none.
    fn note(self, value: Option<&BareItemFromInput<'_>>) {
        if let Some((_, flag)) = FLAGS.iter().find(|(known, _)| *known == self.name) {
            *flag(self.directives) = !matches!(value, Some(BareItemFromInput::Boolean(false)));
        } else if let Some((_, span)) = SPANS.iter().find(|(known, _)| *known == self.name) {
            let number = match value {
                Some(BareItemFromInput::Integer(number)) => seconds(number.to_string().as_bytes()),
                _ => None,
            };
            *span(self.directives) = Some(Duration::from_secs(number.unwrap_or(0).into()));
        }
    }
}

impl<'de> EntryVisitor<'de> for Member<'_, '_> {
    type Error = Infallible;

    fn item(self) -> Result<impl ItemVisitor<'de>, Infallible> {
        Ok(|value: BareItemFromInput<'de>| {
            self.note(Some(&value));
            Ok::<_, Infallible>(Ignored)
        })
    }

    fn inner_list(self) -> Result<impl InnerListVisitor<'de>, Infallible> {
        self.note(None);
        Ok(Ignored)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Source, *};
    use http::HeaderValue;
    use proptest::prelude::*;

    const CDN: HeaderName = HeaderName::from_static("cdn-cache-control");
    const OURS: HeaderName = HeaderName::from_static("ours-cache-control");

    fn said(fields: &[(&'static str, &str)]) -> (Directives, Source) {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
        Directives::for_cache(&fields.collect(), &[OURS, CDN])
    }

    fn max_age(seconds: u64) -> Directives {
        Directives { max_age: Some(Duration::from_secs(seconds)), ..Directives::default() }
    }

    #[test]
    fn the_first_targeted_field_that_says_something_decides() {
        let general = ("cache-control", "max-age=1");
        assert_eq!(said(&[]), (Directives::default(), Source::Silence));
        assert_eq!(said(&[general]), (max_age(1), Source::CacheControl));
        assert_eq!(said(&[general, ("cdn-cache-control", "max-age=2")]), (max_age(2), Source::Targeted));
        let both = [general, ("cdn-cache-control", "max-age=2"), ("ours-cache-control", "max-age=3;x=y")];
        assert_eq!(said(&both), (max_age(3), Source::Targeted));
        let lines = [("cdn-cache-control", "max-age=2"), ("cdn-cache-control", "max-age=4")];
        assert_eq!(said(&lines), (max_age(4), Source::Targeted));
        assert_eq!(said(&[general, ("cdn-cache-control", "unknown")]).1, Source::Targeted);
    }

    #[test]
    fn a_targeted_field_that_is_no_dictionary_is_as_if_it_were_not_there() {
        for garbage in ["", "  ", "max-age=", "max-age=60,", "Max-Age=60", "max-age=60 no-store", "max-age=\"60", "é"]
        {
            let fields = [("cdn-cache-control", garbage), ("cache-control", "max-age=1")];
            assert_eq!(said(&fields), (max_age(1), Source::CacheControl), "{garbage}");
        }
    }

    #[test]
    fn a_targeted_number_of_another_type_is_stale() {
        for value in ["max-age=\"60\"", "max-age=1.5", "max-age=-1", "max-age", "max-age=(60)", "max-age=x"] {
            assert_eq!(said(&[("cdn-cache-control", value)]), (max_age(0), Source::Targeted), "{value}");
        }
        assert_eq!(said(&[("cdn-cache-control", "max-age=999999999999")]).0, max_age(1 << 31));
        assert!(said(&[("cdn-cache-control", "private=\"x\"")]).0.private);
        assert!(!said(&[("cdn-cache-control", "private=?0")]).0.private);
    }

    proptest! {
        #[test]
        fn targeted_fields_never_panic(value in "[ -~]{0,60}", tokens in "([a-z-]{1,9}(=[0-9]{0,20})?[,; ]{0,2}){0,6}") {
            let _ = (said(&[("cdn-cache-control", &value)]), said(&[("cdn-cache-control", &tokens)]));
        }
    }
}
