//! `Vary`: which request fields select a response, and what a request says in them (RFC 9111 §4.1).

use super::{directives::Quotes, rules::Rules};
use http::{HeaderMap, HeaderName, HeaderValue, header};

/// The fields of a `Vary`, sorted, each once. None are there for a response that every request selects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selecting(Vec<HeaderName>);

impl Selecting {
    /// `None` if no request selects it: a `*` anywhere in the list, a name that is none, or more than anybody needs.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let members = headers.get_all(header::VARY).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
        let named = members.map(<[u8]>::trim_ascii).filter(|member| !member.is_empty());
        Self::sorted(named.map(field).collect::<Option<Vec<_>>>()?)
    }

    fn sorted(mut fields: Vec<HeaderName>) -> Option<Self> {
        fields.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
        fields.dedup();
        (fields.len() <= MOST).then_some(Self(fields))
    }

    /// Whether every request selects it.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Less those of the other one.
    pub(super) fn without(mut self, other: &Self) -> Self {
        self.0.retain(|field| !other.0.contains(field));
        self
    }

    /// Writes what a request says in these fields, the same for all requests that select the same response. A field that
    /// is absent differs from an empty one, and each has its length before it, so that none runs into the next.
    pub(super) fn values(&self, request: &HeaderMap, rules: &Rules, to: &mut Vec<u8>) {
        for field in &self.0 {
            let mut lines = request.get_all(field).iter().peekable();
            if lines.peek().is_none() {
                to.push(ABSENT);
                continue;
            }
            to.push(PRESENT);
            let length = to.len()..to.len() + size_of::<u64>();
            to.extend_from_slice(&[0; size_of::<u64>()]);
            let members = lines.flat_map(members);
            match rules.normalized.contains(field) {
                true => join(folded(members), to),
                false => join(members, to),
            }
            let written = (to.len() - length.end) as u64;
            to[length].copy_from_slice(&written.to_be_bytes());
        }
    }

    /// For the store.
    pub(super) fn encode(&self) -> Vec<u8> {
        let names: Vec<_> = self.0.iter().map(HeaderName::as_str).collect();
        names.join(",").into_bytes()
    }

    /// `None` for what [`Self::encode`] has not made.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() {
            return Some(Self::default());
        }
        let names = bytes.split(|byte| *byte == b',').take(MOST + 1);
        let decoded = Self::sorted(names.map(field).collect::<Option<Vec<_>>>()?)?;
        (decoded.encode() == bytes).then_some(decoded)
    }
}

/// `*` is a valid name for `HeaderName`, as it is a token.
fn field(name: &[u8]) -> Option<HeaderName> {
    HeaderName::from_bytes(name).ok().filter(|name| name != "*")
}

/// RFC 9111 §4.1 allows to take white space around commas away; a comma in quotes separates nothing.
fn members(line: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let mut quotes = Quotes::default();
    line.as_bytes().split(move |byte| quotes.end_member(*byte)).map(<[u8]>::trim_ascii)
}

fn folded<'a>(members: impl Iterator<Item = &'a [u8]>) -> Vec<Vec<u8>> {
    let named = members.filter(|member| !member.is_empty());
    let mut members: Vec<_> = named.map(<[u8]>::to_ascii_lowercase).collect();
    members.sort_unstable();
    members.dedup();
    members
}

/// Separated by commas.
fn join(members: impl IntoIterator<Item: AsRef<[u8]>>, to: &mut Vec<u8>) {
    for (i, member) in members.into_iter().enumerate() {
        if i > 0 {
            to.push(b',');
        }
        to.extend_from_slice(member.as_ref());
    }
}

const ABSENT: u8 = 0;
const PRESENT: u8 = 1;
/// More fields than this are no selection but a mistake.
const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let fields = fields
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).expect("a value")));
        fields.collect()
    }

    fn selecting(lines: &[&str]) -> Option<Selecting> {
        let fields: Vec<_> = lines.iter().map(|line| ("vary", *line)).collect();
        Selecting::of(&headers(&fields))
    }

    fn values(vary: &str, request: &[(&'static str, &str)]) -> Vec<u8> {
        by(&Rules::default(), vary, &headers(request))
    }

    fn by(rules: &Rules, vary: &str, request: &HeaderMap) -> Vec<u8> {
        let mut values = Vec::new();
        selecting(&[vary]).expect("fields").values(request, rules, &mut values);
        values
    }

    #[test]
    fn the_fields_of_all_lines_select() {
        let fields = selecting(&["Origin, ACCEPT", "accept,, Cookie "]).expect("fields");
        assert_eq!(fields.encode(), b"accept,cookie,origin");
        assert!(selecting(&[]).expect("fields").is_empty() && selecting(&[" , "]).expect("fields").is_empty());
    }

    /// RFC 9111 §4.1.
    #[test]
    fn a_star_anywhere_selects_nothing() {
        for lines in [&["*"][..], &["accept, *"], &["*,accept"], &["accept", " * "], &["a b"], &["\"accept\""]] {
            assert_eq!(selecting(lines), None, "{lines:?}");
        }
        let many: Vec<_> = (0..=MOST).map(|n| format!("x-{n}")).collect();
        assert_eq!(selecting(&[&many.join(",")]), None);
    }

    #[test]
    fn absent_differs_from_empty_and_fields_do_not_run_together() {
        let both = "x-a, x-b";
        assert_ne!(values(both, &[]), values(both, &[("x-a", "")]));
        assert_ne!(values(both, &[("x-a", "1")]), values(both, &[("x-b", "1")]));
        assert_ne!(values(both, &[("x-a", "12"), ("x-b", "3")]), values(both, &[("x-a", "1"), ("x-b", "23")]));
        assert_eq!(values("x-a", &[("x-a", "1"), ("x-c", "2")]), values("x-a", &[("x-a", "1")]));
    }

    #[test]
    fn lines_are_one_list_and_white_space_around_commas_is_nothing() {
        let one = values("x-a", &[("x-a", "b,a")]);
        assert_eq!(values("x-a", &[("x-a", "b"), ("x-a", "a")]), one);
        assert_eq!(values("x-a", &[("x-a", " b ,\ta ")]), one);
        for other in ["a,b", "B,a", "b, ,a", "b a", "b;a"] {
            assert_ne!(values("x-a", &[("x-a", other)]), one, "{other}");
        }
        assert_ne!(values("x-a", &[("x-a", r#""b , a""#)]), values("x-a", &[("x-a", r#""b,a""#)]));
    }

    #[test]
    fn a_normalized_field_is_a_set() {
        let rules = Rules::default().normalize([header::ACCEPT_ENCODING]);
        let of = |value: &str| {
            let request = headers(&[("accept-encoding", value), ("accept", value)]);
            (by(&rules, "accept-encoding", &request), by(&rules, "accept", &request))
        };
        let (folded, raw) = of("gzip, br");
        for other in ["br,gzip", "GZIP,Br", "gzip,, br, gzip"] {
            assert_eq!(of(other).0, folded, "{other}");
            assert_ne!(of(other).1, raw, "{other}");
        }
        assert_ne!(of("gzip").0, folded);
    }

    #[test]
    fn garbage_does_not_decode() {
        for garbage in [&b"A"[..], b"*", b"b,a", b"a,a", b"a,", b",", b"a b", b"\xff", &b"a,".repeat(1 << 20)] {
            assert_eq!(Selecting::decode(garbage), None);
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_decodes(names in vec("[a-z0-9-]{1,8}", 0..40), garbage in vec(any::<u8>(), 0..40)) {
            if let Some(fields) = selecting(&[&names.join(",")]) {
                prop_assert_eq!(Selecting::decode(&fields.encode()), Some(fields));
            }
            let _ = Selecting::decode(&garbage);
        }

        /// Without commas and white space at the ends, two values are the same only if they are.
        #[test]
        fn values_tell_all_requests_apart(
            a in vec(proptest::option::of("[!-+--~]{0,6}"), 3), b in vec(proptest::option::of("[!-+--~]{0,6}"), 3),
        ) {
            let request = |values: &[Option<String>]| {
                let named = ["x-a", "x-b", "x-c"].into_iter().zip(values);
                let fields: Vec<_> = named.filter_map(|(name, value)| Some((name, value.as_deref()?))).collect();
                self::values("x-a, x-b, x-c", &fields)
            };
            prop_assert_eq!(request(&a) == request(&b), a == b);
        }
    }
}
