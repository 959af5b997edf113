//! What is asked for ([`Key`]) and where it lives in a store ([`Address`]).

use bytes::Bytes;
use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

/// Names one resource of the origin, and optionally one variant of it.
///
/// Any bytes will do, of any length: stores hash what is long or unusual. Keys are compared byte by byte.
///
/// ```
/// use stampede_guard::Key;
///
/// let user = Key::from(format!("user:{}", 42));
/// assert_eq!(user, Key::from("user:42"));
/// assert_ne!(user, Key::from("user:42").variant("en"));
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Key {
    primary: Bytes,
    variant: Option<Bytes>,
}

impl Key {
    /// A key of these bytes.
    #[must_use]
    pub fn new(primary: impl Into<Bytes>) -> Self {
        Self { primary: primary.into(), variant: None }
    }

    /// The same resource in another representation, with an entry and a lease of its own: invalidating the resource does
    /// not reach it. Variants share the Redis Cluster slot of their resource, so that both can be written in one step.
    #[must_use]
    pub fn variant(mut self, variant: impl Into<Bytes>) -> Self {
        self.variant = Some(variant.into());
        self
    }
}

#[cfg(feature = "http")]
impl Key {
    /// The bytes of the resource.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.primary
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self::new(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self::new(Bytes::copy_from_slice(bytes))
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl From<Bytes> for Key {
    fn from(bytes: Bytes) -> Self {
        Self::new(bytes)
    }
}

impl From<u64> for Key {
    fn from(number: u64) -> Self {
        Self::new(number.to_string())
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

/// By length only: keys come from URLs and may hold what must not be logged.
impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({} bytes)", self.primary.len() + self.variant.as_ref().map_or(0, Bytes::len))
    }
}

/// A [`Key`] in its namespace and schema: what a [`Store`](crate::store::Store) is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    namespace: Arc<str>,
    schema: u32,
    key: Key,
}

impl Address {
    /// The address of a key. The namespace is taken as it is: it should be of `[A-Za-z0-9_.-]` only, as
    /// [`StampedeGuard::namespace`](crate::StampedeGuard::namespace) makes it.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, schema: u32, key: impl Into<Key>) -> Self {
        Self { namespace: namespace.into(), schema, key: key.into() }
    }

    /// The namespace, of `[A-Za-z0-9_.-]` only.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The user's schema number: entries of two schemas live side by side, their lease is shared.
    #[must_use]
    pub fn schema(&self) -> u32 {
        self.schema
    }

    /// The resource.
    #[must_use]
    pub fn primary(&self) -> &[u8] {
        &self.key.primary
    }

    /// The variant of the resource, if it has several.
    #[must_use]
    pub fn variant(&self) -> Option<&[u8]> {
        self.key.variant.as_deref()
    }

    #[cfg(any(feature = "http", feature = "testing"))]
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Namespace and key without the schema, as the leases see them: who leads `of` leads every schema of it.
    pub(crate) fn same_resource(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.key == other.key
    }

    /// Whether the other address is this one, or a variant of the resource that this one is.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let variants = self.key.variant.is_none() && self.schema == other.schema && self.namespace == other.namespace;
        self == other || (variants && self.key.primary == other.key.primary)
    }

    /// The schemas of which an invalidation drops the entries too: those of a rolling deploy.
    pub(crate) fn neighbours(&self) -> [u32; 3] {
        [self.schema, self.schema.wrapping_sub(1), self.schema.wrapping_add(1)]
    }

    /// The resource as a whole.
    pub(crate) fn to_primary(&self) -> Self {
        Self { key: Key::new(self.key.primary.clone()), ..self.clone() }
    }

    /// The same resource in another variant.
    pub(crate) fn to_variant(&self, variant: Bytes) -> Self {
        Self { key: self.key.clone().variant(variant), ..self.clone() }
    }

    pub(crate) fn in_schema(&self, schema: u32) -> Self {
        Self { schema, ..self.clone() }
    }

    /// 128 bits of the BLAKE3 hash over namespace and key, each part with its length, so that `a:b` + `c` is not
    /// `a` + `b:c`. Stored with every entry and sent with every wake; the schema is left out because leases are shared
    /// between schemas.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        let parts = [Some(self.namespace.as_bytes()), Some(self.primary()), self.variant()];
        let mut text = Vec::with_capacity(64);
        for part in parts {
            text.extend_from_slice(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            text.extend_from_slice(part.unwrap_or_default());
        }
        KeyHash::of(&text)
    }

    /// The name of the resource within its namespace, for stores with printable names: `r` and the key itself where
    /// that is short and plain, else `h` and its hash. A `}` in a key cannot choose a Redis Cluster slot, and a raw
    /// key cannot pose as a hashed one.
    pub(crate) fn resource_name(&self) -> String {
        let mut name = String::new();
        self.name_resource(&mut name);
        name
    }

    /// Appends the [name of the resource](Self::resource_name).
    pub(crate) fn name_resource(&self, name: &mut String) {
        let plain = |b: &u8| b.is_ascii_alphanumeric() || b"_.:/-".contains(b);
        match std::str::from_utf8(self.primary()) {
            Ok(text) if text.len() <= MAX_RAW && text.as_bytes().iter().all(plain) => name.extend(["r", text]),
            _ => name.push_str(&format!("h{:?}", KeyHash::of(self.primary()))),
        }
    }
}

/// A namespace as it may be part of the names in a store: up to 64 characters of `[A-Za-z0-9_.-]`, others replaced by `_`.
pub(crate) fn namespace(name: &str, default: &str) -> Arc<str> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    if name.is_empty() { default.into() } else { name.into() }
}

/// By the key alone: addresses of one table nearly always share the rest, and the comparison sees to it.
impl Hash for Address {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// Identifies a resource in envelopes, wake-ups and logs. See [`Address::hash`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyHash([u8; 16]);

impl KeyHash {
    /// The hash as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A hash that was read somewhere.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// In one go: an incremental hasher costs more than the hash of a short key.
    pub(crate) fn of(text: &[u8]) -> Self {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&blake3::hash(text).as_bytes()[..16]);
        Self(bytes)
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Longer keys are named by their hash.
const MAX_RAW: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(namespace: &str, key: impl Into<Key>) -> Address {
        Address::new(namespace, 0, key)
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(address("a:b", "c").hash(), address("a", "b:c").hash());
        let variant = address("a", Key::from("k").variant(""));
        assert_ne!(address("a", "k").hash(), variant.hash());
        assert_ne!(variant.hash(), address("a", Key::from("").variant("k")).hash());
    }

    #[test]
    fn names_are_raw_when_plain_and_hashed_when_not() {
        assert_eq!(address("a", "user:42").resource_name(), "ruser:42");
        for odd in ["}", "a b", "caf\u{e9}", "a\n", "a\0", &"x".repeat(65)] {
            let name = address("a", odd).resource_name();
            assert!(name.starts_with('h') && name.len() == 33, "{name}");
        }
        assert_eq!(address("a", vec![0xff_u8]).resource_name().len(), 33);
    }

    #[test]
    fn hashes_are_shown_with_all_their_zeros() {
        let hash = KeyHash::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0xab, 0xcd, 0xef, 0, 0xf0]);
        assert_eq!(format!("{hash:?}"), "000102030405060708090aabcdef00f0");
    }

    #[test]
    fn debug_shows_no_key() {
        assert_eq!(format!("{:?}", Key::from("secret").variant("en")), "Key(8 bytes)");
    }
}
