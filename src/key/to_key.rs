//! The name of a resource ([`Key`]), what can be one ([`ToKey`]), and where it is written.

use crate::error::{Error, ErrorKind};
use bytes::Bytes;
use std::{
    borrow::Cow,
    fmt::{self, Write},
    num::NonZero,
    sync::Arc,
};

/// The name of one resource of the origin, and optionally of one variant of it.
///
/// Any bytes of any length are valid, and keys are compared byte by byte. Of a primary or a variant of 289 bytes or
/// more, the first 256 bytes and a hash of 128 bits take its place, because clients choose URLs: a table of 10,000 keys
/// of 64 KiB would take 625 MiB. Stores hash long or unusual keys.
///
/// ```
/// use stampede_guard::Key;
///
/// let user = Key::new(("user", 42));
/// assert_eq!(user, Key::new("user:42"));
/// assert_ne!(user, Key::new("user:42").variant("en"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    pub(super) primary: Bytes,
    pub(super) qualifier: Qualifier,
    pub(super) variant: Option<Bytes>,
}

/// The [qualifier](crate::key::CacheKey::qualifier) of a key.
///
/// PERF: not a string, because most keys have none. The comparison of two empty strings took a third of a hit in memory:
/// the `memcmp` of glibc for AVX-512 reads at the invalid address of the empty slice, which takes the processor 100 ns.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Qualifier {
    None,
    GetHttp,
    GetHttps,
    /// Stands for all qualifiers of a URL in an invalidation. Nothing is stored under it.
    Any,
}

impl Qualifier {
    /// The qualifiers of a URL: method and scheme of the requests whose responses are stored.
    pub(super) const OF_URL: [Self; 2] = [Self::GetHttp, Self::GetHttps];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::GetHttp => "get-http",
            Self::GetHttps => "get-https",
            Self::Any => "any",
        }
    }
}

impl Key {
    /// Creates a key: see [`ToKey`].
    #[must_use]
    pub fn new(key: impl ToKey) -> Self {
        KeyText::new("", &key).to_key()
    }

    /// Returns the key of a variant: another representation of the resource, with an entry and a lease of its own.
    /// Invalidating the resource does not invalidate it. Variants share the Redis Cluster slot of their resource, so
    /// that both can be written in one step.
    #[must_use]
    pub fn variant(mut self, variant: impl Into<Bytes>) -> Self {
        self.variant = Some(shortened(variant.into()));
        self
    }

    /// Creates a key with this qualifier.
    pub(crate) fn qualified(primary: impl Into<Bytes>, qualifier: Qualifier) -> Self {
        Self { primary: shortened(primary.into()), qualifier, variant: None }
    }

    /// Reports whether this key names the other one, whatever the qualifier of the other one.
    #[cfg(feature = "testing")]
    pub(crate) fn names(&self, other: &Self) -> bool {
        self.primary == other.primary && self.variant == other.variant
    }
}

/// Returns the text, or what takes the place of a long one: its beginning and its hash. A text of exactly that length
/// is replaced as well, so that no other text equals what takes the place of this one.
#[inline]
fn shortened(text: Bytes) -> Bytes {
    if text.len() < SHORTENED { text } else { beginning_and_hash(&text) }
}

fn beginning_and_hash(text: &[u8]) -> Bytes {
    [&text[..MAX_READABLE], format!("h{:032x}", u128::from_be_bytes(hash128(text))).as_bytes()].concat().into()
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

/// Shows the length only: keys come from URLs and may contain what must not be logged.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.primary.len() + self.variant.as_ref().map_or(0, Bytes::len))
    }
}

/// Returns 128 bits of the BLAKE3 hash.
pub(super) fn hash128(text: &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&blake3::hash(text).as_bytes()[..16]);
    bytes
}

/// A value that can be a key: a string, bytes, a number, a `Uuid` (feature `uuid`), a [`Key`], a tuple of up to six of them, or a type of your own.
///
/// The parts of a tuple are joined by `:`, and `:` and `%` in a part are escaped (`%3A`, `%25`), so that different tuples
/// are different keys. A string that is no part of a tuple is taken as it is. It may equal a tuple:
///
/// ```
/// use stampede_guard::{Key, KeyWriter, ToKey};
///
/// struct UserId { tenant: &'static str, number: i64 }
///
/// impl ToKey for UserId {
///     fn write(&self, key: &mut KeyWriter<'_>) {
///         (self.tenant, self.number).write(key);
///     }
/// }
///
/// assert_eq!(Key::new(UserId { tenant: "acme", number: 42 }), Key::new("acme:42"));
/// assert_eq!(Key::new(("a:b", "c")), Key::new("a%3Ab:c"));
/// assert_ne!(Key::new(("a:b", "c")), Key::new(("a", "b:c")));
/// ```
///
/// A tuple within a tuple is one part, and may equal a part that is a string. So is a [`Key`]; with a variant it counts as
/// a tuple of both. Outside of a tuple a `Key` keeps its variant. In a tuple or a [`Cache`](crate::Cache), a `Key` of a
/// long text differs from the text, because it has its hash already.
///
/// A key may have any length and any bytes: see [`Key`]. An empty one is refused by each request, with
/// [`ErrorKind::InvalidKey`], because it is nearly always an id that was not set.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be a key",
    label = "not a string, bytes, `bool`, `char`, an integer, a `Key`, nor a tuple of up to six of them",
    note = "implement `ToKey` for a type of your own: `fn write(&self, key: &mut KeyWriter<'_>) {{ self.0.write(key) }}`",
    note = "for a type of another crate pass what identifies it, for example `value.to_string()`"
)]
pub trait ToKey {
    /// Writes the key. Equal values must write the same bytes, in every version of the program.
    fn write(&self, key: &mut KeyWriter<'_>);
}

/// The place to which a [`ToKey`] writes. It escapes what is written to a part of a tuple.
///
/// It implements [`fmt::Write`], so that `write!` works, and does not fail.
///
/// ```
/// use stampede_guard::{Key, KeyWriter, ToKey};
///
/// struct Digest([u8; 2]);
///
/// impl ToKey for Digest {
///     fn write(&self, key: &mut KeyWriter<'_>) {
///         key.push(&self.0);
///     }
/// }
///
/// assert_eq!(Key::new(Digest(*b"a:")), Key::new("a:"));
/// assert_eq!(Key::new(("page", Digest(*b"a:"))), Key::new("page:a%3A"));
/// ```
pub struct KeyWriter<'a> {
    text: &'a mut KeyText,
    /// The number of tuples around what is written.
    depth: u32,
}

impl KeyWriter<'_> {
    /// Writes bytes.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        self.text.is_whole = false;
        match self.depth {
            0 => self.text.push(bytes),
            depth => bytes.iter().for_each(|byte| self.text.push_escaped(*byte, depth)),
        }
    }

    fn push_parts(&mut self, parts: &[&dyn ToKey]) {
        for (at, part) in parts.iter().enumerate() {
            if at > 0 {
                self.push(b":");
            }
            part.write(&mut KeyWriter { text: self.text, depth: self.depth + 1 });
        }
    }
}

impl Write for KeyWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Shows nothing of the key.
impl fmt::Debug for KeyWriter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyWriter").finish_non_exhaustive()
    }
}

impl ToKey for Key {
    fn write(&self, key: &mut KeyWriter<'_>) {
        match &self.variant {
            Some(variant) if key.depth > 0 => return key.push_parts(&[&self.primary, variant]),
            _ => {}
        }
        let is_whole = key.depth == 0 && key.text.bytes().is_empty();
        key.push(&self.primary);
        key.text.is_whole = is_whole;
        if key.depth == 0 {
            (key.text.qualifier, key.text.variant) = (self.qualifier, self.variant.clone());
        }
    }
}

macro_rules! pointers {
    ($($type:ty),+) => {
        $(impl<T: ToKey + ?Sized> ToKey for $type {
            fn write(&self, key: &mut KeyWriter<'_>) {
                (**self).write(key);
            }
        })+
    };
}

impl<T: ToKey + ToOwned + ?Sized> ToKey for Cow<'_, T> {
    fn write(&self, key: &mut KeyWriter<'_>) {
        (**self).write(key);
    }
}

impl<const N: usize> ToKey for [u8; N] {
    fn write(&self, key: &mut KeyWriter<'_>) {
        key.push(self);
    }
}

macro_rules! keys {
    ($write:expr; $($type:ty),+) => {
        $(impl ToKey for $type {
            #[inline]
            fn write(&self, key: &mut KeyWriter<'_>) {
                $write(self, key);
            }
        })+
    };
}

macro_rules! integers {
    ($($type:ty),+) => {
        keys!(|number: &Self, key: &mut KeyWriter<'_>| integer(*number, key); $($type),+);
        keys!(|number: &Self, key: &mut KeyWriter<'_>| integer(number.get(), key); $(NonZero<$type>),+);
    };
}

macro_rules! tuples {
    ($(($($part:ident)+))+) => {
        $(impl<$($part: ToKey),+> ToKey for ($($part,)+) {
            #[allow(non_snake_case, reason = "each part has the name of its type")]
            fn write(&self, key: &mut KeyWriter<'_>) {
                let ($($part,)+) = self;
                key.push_parts(&[$($part as &dyn ToKey),+]);
            }
        })+
    };
}

keys!(|bytes: &Self, key: &mut KeyWriter<'_>| key.push(bytes.as_ref()); str, String, [u8], Vec<u8>, Bytes);
keys!(display; bool, char);
#[cfg(feature = "uuid")]
keys!(|id: &Self, key: &mut KeyWriter<'_>| key.push(id.hyphenated().encode_lower(&mut [0; 36]).as_bytes()); uuid::Uuid);
integers!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);
pointers!(&T, Arc<T>, Box<T>);
tuples!((A)(A B)(A B C)(A B C D)(A B C D E)(A B C D E F));

fn display(value: &impl fmt::Display, key: &mut KeyWriter<'_>) {
    let _ = write!(key, "{value}"); // does not fail
}

/// Writes the digits. PERF: without a formatter, which takes more instructions than the rest of a key.
fn integer<N: Copy + fmt::Display>(number: N, key: &mut KeyWriter<'_>)
where
    u64: TryFrom<N>,
{
    let Ok(mut rest) = u64::try_from(number) else { return display(&number, key) };
    let (mut digits, mut start) = ([b'0'; MAX_DIGITS], MAX_DIGITS);
    loop {
        start -= 1;
        digits[start] += (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            return key.push(&digits[start..]);
        }
    }
}

/// A key on the stack. PERF: a hit in this process needs no more than its reference, and allocates no [`Key`].
pub(crate) struct KeyText {
    short: [u8; SHORT],
    /// Number of bytes in `short`.
    length: usize,
    /// The whole text, if `short` has no room for it.
    long: Vec<u8>,
    /// Whether the text is that of a `Key`, which is not shortened again.
    is_whole: bool,
    /// Whether the key, or the name before it, is empty.
    is_empty: bool,
    qualifier: Qualifier,
    variant: Option<Bytes>,
}

impl KeyText {
    /// Writes the key after this prefix.
    #[inline]
    pub(crate) fn new(prefix: &str, key: &(impl ToKey + ?Sized)) -> Self {
        let mut text = Self {
            short: [0; SHORT],
            length: 0,
            long: Vec::new(),
            is_whole: false,
            is_empty: false,
            qualifier: Qualifier::None,
            variant: None,
        };
        text.push(prefix.as_bytes());
        key.write(&mut KeyWriter { text: &mut text, depth: 0 });
        text.is_empty = text.bytes().len() == prefix.len() || prefix == NO_NAME;
        if text.bytes().len() >= SHORTENED && !text.is_whole {
            text.long = beginning_and_hash(text.bytes()).into();
        }
        text
    }

    /// Returns an error if the key is empty.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let empty = || Error::new(ErrorKind::InvalidKey, "the key, or the name of its cache, is empty");
        (!self.is_empty).then_some(()).ok_or_else(empty)
    }

    /// Returns the fields of its key.
    #[inline]
    pub(super) fn parts(&self) -> (&[u8], Qualifier, Option<&[u8]>) {
        (self.bytes(), self.qualifier, self.variant.as_deref())
    }

    pub(crate) fn to_key(&self) -> Key {
        let primary = Bytes::copy_from_slice(self.bytes());
        Key { primary, qualifier: self.qualifier, variant: self.variant.clone() }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        if self.long.is_empty() { &self.short[..self.length] } else { &self.long }
    }

    #[inline]
    fn push(&mut self, bytes: &[u8]) {
        let end = self.length + bytes.len();
        match self.short.get_mut(self.length..end) {
            Some(room) if self.long.is_empty() => {
                room.copy_from_slice(bytes);
                self.length = end;
            }
            _ => {
                if self.long.is_empty() {
                    self.long.extend_from_slice(&self.short[..self.length]);
                }
                self.long.extend_from_slice(bytes);
            }
        }
    }

    /// Writes a byte within this number of tuples. Each of them escapes what the inner ones have written.
    fn push_escaped(&mut self, byte: u8, depth: u32) {
        let digits = match byte {
            b':' if depth > 0 => b"3A",
            b'%' if depth > 0 => b"25",
            _ => return self.push(&[byte]),
        };
        self.push_escaped(b'%', depth - 1);
        self.push(digits);
    }
}

/// Returns the prefix of the keys of a cache. [`NO_NAME`] for an empty name.
#[cfg(feature = "_typed")]
pub(crate) fn prefix(name: &str) -> String {
    name.replace('%', "%25").replace(':', "%3A") + ":"
}

/// Maximum length in bytes of a key as text for people.
pub(super) const MAX_READABLE: usize = 256;
/// Length in bytes of what takes the place of a long key: the part that is readable, and the letter and digits of a
/// hash.
const SHORTENED: usize = MAX_READABLE + 33;
/// The prefix of a cache without a name.
const NO_NAME: &str = ":";
/// Number of digits of the largest `u64`.
const MAX_DIGITS: usize = 20;
/// Length in bytes of the keys that need no allocation.
const SHORT: usize = 96;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key: impl ToKey) -> String {
        String::from_utf8(KeyText::new("", &key).bytes().to_vec()).expect("ASCII")
    }

    #[test]
    fn key_of_each_type_is_its_text() {
        let (owned, bytes) = ("k".to_owned(), Bytes::from_static(b"k"));
        let texts =
            [text("k"), text(&owned), text(Cow::Borrowed("k")), text(b"k"), text(&b"k"[..]), text(bytes), text('k')];
        assert_eq!(texts, ["k"; 7]);
        assert_eq!(
            [text(Arc::<str>::from("k")), text(Box::<str>::from("k")), text(Arc::new("k".to_owned()))],
            ["k"; 3]
        );
        #[cfg(feature = "uuid")]
        assert_eq!(text((uuid::Uuid::from_u128(0xAB), 1)), "00000000-0000-0000-0000-0000000000ab:1");
        assert_eq!(
            [text(true), text(i64::MIN), text(u128::MAX)],
            ["true", "-9223372036854775808", "340282366920938463463374607431768211455"]
        );
        assert_eq!([text(0), text(10_u8), text(i64::MAX), text(u64::MAX)].map(|text| text.len()), [1, 2, 19, 20]);
        assert_eq!([text(907_u16), text(u64::MAX)], ["907", "18446744073709551615"]);
        assert_eq!([text(NonZero::<u32>::MIN), text(vec![b'a', b':'])], ["1", "a:"]);
        assert_eq!(text((1_u8, -2_i16, "c", 'd', false, 6_usize)), "1:-2:c:d:false:6");
    }

    /// Seen to fail (`a:b:c`, five times) without the escape of `:`.
    #[test]
    fn different_tuples_are_different_keys() {
        let texts = [
            text(("a", "b", "c")),
            text(("a:b", "c")),
            text(("a", "b:c")),
            text(("a%3Ab", "c")),
            text((("a", "b"), "c")),
            text((("a:b",), "c")),
            text((("a%3Ab",), "c")),
            text(("a", ("b", "c"))),
            text(("", "abc")),
            text(("abc", "")),
        ];
        let expected = [
            "a:b:c",
            "a%3Ab:c",
            "a:b%3Ac",
            "a%253Ab:c",
            "a%3Ab:c",
            "a%253Ab:c",
            "a%25253Ab:c",
            "a:b%3Ac",
            ":abc",
            "abc:",
        ];
        assert_eq!(texts, expected);
    }

    #[test]
    fn key_keeps_its_variant_and_is_not_shortened_again() {
        let variant = Key::new("k").variant("en");
        assert_eq!((Key::new(&variant), text((&variant, 1))), (variant, "k%3Aen:1".to_owned()));
        let long = Key::new("x".repeat(1000));
        assert_eq!(Key::new(&long), long);
        assert_ne!(Key::new(String::from_utf8_lossy(&long.primary)), long, "a string that imitates it");
        let part = Key::new((&long, 1));
        assert!(part.primary.len() == SHORTENED && part != Key::new((&long, 2)), "parts count to the end");
    }

    #[test]
    fn long_key_spills_and_is_found_by_its_owned_form() {
        for length in [0, 1, SHORT - 1, SHORT, SHORT + 1, SHORTENED - 1, SHORTENED, 10_000] {
            let (whole, mut halves) = ("x".repeat(length), KeyText::new("", ""));
            let (left, right) = whole.split_at(length / 3);
            halves.push(left.as_bytes());
            halves.push(right.as_bytes());
            assert_eq!(halves.bytes(), whole.as_bytes());
            let text = KeyText::new("", whole.as_str());
            let key = text.to_key();
            let parts = (&*key.primary, key.qualifier, key.variant.as_deref());
            assert!(text.parts() == parts && key.primary.len() <= SHORTENED);
        }
    }

    #[test]
    fn empty_key_or_name_is_refused() {
        for (prefix, key) in [("", ""), ("user:", ""), (":", "k")] {
            let error = KeyText::new(prefix, key).check().expect_err("empty");
            assert_eq!(error.kind(), ErrorKind::InvalidKey);
        }
        KeyText::new("user:", "k").check().expect("a name and a key");
        KeyText::new("", &("", "")).check().expect("a separator");
    }

    /// Seen to fail if a text with the length of a shortened one stays as it is: it equals the text that it imitates.
    #[test]
    fn long_key_is_kept_as_its_beginning_and_its_hash() {
        let long = |end: &str| ["x".repeat(100_000).as_str(), end].concat();
        for key in
            [|text: &str| Key::from(text), |text: &str| Key::from("k").variant(text.to_owned())] as [fn(&str) -> Key; 2]
        {
            let bytes = |key: &Key| [Some(&key.primary), key.variant.as_ref()].map(|part| part.map_or(0, Bytes::len));
            assert_eq!(bytes(&key(&long("a"))).into_iter().max(), Some(SHORTENED));
            assert!(key(&long("a")) == key(&long("a")) && key(&long("a")) != key(&long("b")));
            assert_eq!(bytes(&key(&"x".repeat(SHORTENED - 1))).into_iter().max(), Some(SHORTENED - 1));
            let shortened = shortened(long("a").into());
            assert_ne!(key(&long("a")), key(std::str::from_utf8(&shortened).expect("text")), "an imitation");
        }
    }
}
