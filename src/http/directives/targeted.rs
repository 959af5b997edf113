//! Targeted cache control fields (RFC 9213).

use super::cache_control::{Directives, FLAGS, SPANS, seconds};
use http::{HeaderMap, HeaderName};
use sfv::{
    BareItemFromInput, KeyRef, Parser,
    visitor::{DictionaryVisitor, EntryVisitor, Ignored, InnerListVisitor, ItemVisitor},
};
use std::{convert::Infallible, time::Duration};

/// Parses a targeted field. `None` if it is empty or not a dictionary: it is then ignored (RFC 9213 §2.1).
pub(super) fn directives(headers: &HeaderMap, field: &HeaderName) -> Option<Directives> {
    let lines: Vec<&[u8]> = headers.get_all(field).iter().map(http::HeaderValue::as_bytes).collect();
    let visitor = FieldVisitor { directives: Directives::default(), members: 0 };
    let read = Parser::new(&lines.join(&b", "[..])).parse_dictionary_with_visitor(visitor).ok()?;
    (read.members > 0).then_some(read.directives)
}

struct FieldVisitor {
    directives: Directives,
    members: usize,
}

impl<'de> DictionaryVisitor<'de> for FieldVisitor {
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
    /// Records the member. The last of several members with one name counts (RFC 9651 §4.2.2). A value of a wrong type
    /// makes the response stale rather than fresh. A flag that is `?0` is not set.
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
