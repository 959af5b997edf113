//! What is requested ([`Key`]), and where it is in a store ([`CacheKey`]).

pub(crate) mod to_key;

use bytes::Bytes;
use quick_cache::Equivalent;
use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};
pub use to_key::Key;
pub(crate) use to_key::Qualifier;
use to_key::{KeyText, MAX_READABLE, ToKey, hash128};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The full cache key: a [`Key`] in its namespace and layout, as a [`Store`](crate::store::Store) uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheKey {
    namespace: Arc<str>,
    layout: u64,
    key: Key,
}

impl CacheKey {
    /// Creates the full cache key. A guard makes the [`layout`](Self::layout). The namespace is used unchanged: it
    /// should consist of `[A-Za-z0-9_.-]`, as [`StampedeGuard::namespace`](crate::StampedeGuard::namespace) ensures.
    #[must_use]
    pub fn new(namespace: impl Into<Arc<str>>, layout: u64, key: impl ToKey) -> Self {
        Self::of(namespace.into(), layout, Key::new(key))
    }

    pub(crate) fn of(namespace: Arc<str>, layout: u64, key: Key) -> Self {
        Self { namespace, layout, key }
    }

    /// Returns the namespace, which consists of `[A-Za-z0-9_.-]`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the layout of the entry: a hash of what a reader must agree on to decode it, such as the codec and the
    /// schema version. An entry of another layout is a miss. All layouts of a key share one lease.
    #[must_use]
    pub fn layout(&self) -> u64 {
        self.layout
    }

    /// Returns the resource.
    #[must_use]
    pub fn primary(&self) -> &Bytes {
        &self.key.primary
    }

    /// Returns what tells apart resources with the same [`primary`](Self::primary), which share a slot of a Redis
    /// Cluster and are invalidated together: method and scheme of an HTTP request, for example `get-https`. Empty for
    /// other keys.
    #[must_use]
    pub fn qualifier(&self) -> &str {
        self.key.qualifier.as_str()
    }

    /// Returns the variant of the resource. `None` for the resource itself.
    #[must_use]
    pub fn variant(&self) -> Option<&[u8]> {
        self.key.variant.as_deref()
    }

    #[cfg(feature = "testing")]
    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    /// Reports whether namespace and key are equal, whatever the layout. Leases do not depend on it: the leader of one
    /// layout leads all.
    pub(crate) fn same_resource(&self, other: &Self) -> bool {
        self.namespace == other.namespace && self.key == other.key
    }

    /// Reports whether the other cache key names the same resource as this one, or a variant of it, whatever the layout.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        let Key { primary, qualifier, variant } = &self.key;
        let is_same =
            self.namespace == other.namespace && *qualifier == other.key.qualifier && *primary == other.key.primary;
        is_same && (variant.is_none() || *variant == other.key.variant)
    }

    /// Returns the cache keys that an invalidation of this one drops: itself, or each one that [`Qualifier::Any`]
    /// stands for.
    pub(crate) fn invalidated(&self) -> Vec<Self> {
        let qualified = |qualifier| self.with_key(Key { qualifier, ..self.key.clone() });
        match self.key.qualifier {
            Qualifier::Any => Qualifier::OF_URL.map(qualified).to_vec(),
            _ => vec![self.clone()],
        }
    }

    /// Returns the cache key whose invalidation drops this one, whatever the layout. That of a URL has
    /// [`Qualifier::Any`].
    pub(crate) fn to_invalidated(&self) -> Self {
        let qualifier = if self.key.qualifier == Qualifier::None { Qualifier::None } else { Qualifier::Any };
        Self { layout: 0, ..self.with_key(Key { qualifier, ..self.key.clone() }) }
    }

    /// Returns the cache key of the resource, without its variant.
    pub(crate) fn to_primary(&self) -> Self {
        self.with_key(Key { variant: None, ..self.key.clone() })
    }

    /// Returns the cache key of another variant of the resource.
    pub(crate) fn to_variant(&self, variant: Bytes) -> Self {
        self.with_key(self.key.clone().variant(variant))
    }

    fn with_key(&self, key: Key) -> Self {
        Self::of(self.namespace.clone(), self.layout, key)
    }

    /// Returns the cache key in another layout.
    pub(crate) fn in_layout(&self, layout: u64) -> Self {
        Self { layout, ..self.clone() }
    }

    /// Returns the cache key of what all layouts share: the lease.
    pub(crate) fn without_layout(&self) -> Self {
        self.in_layout(0)
    }

    /// Returns 128 bits of the BLAKE3 hash of namespace and key. Each part follows its length, so that `a:b` + `c`
    /// differs from `a` + `b:c`. The hash is stored with every entry and sent with every wake-up message. It leaves out
    /// the layout, because layouts share leases.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        CacheKeyRef::from(self).hash()
    }

    /// Returns the name of the resource within its namespace, for stores with printable names. The name is `r` and the
    /// key itself if that is short and plain, otherwise `h` and its hash. So a `}` in a key cannot choose a Redis
    /// Cluster slot, and a raw key cannot imitate a hashed one.
    #[cfg(any(feature = "lock", test))]
    pub(crate) fn resource_name(&self) -> String {
        let mut name = String::new();
        self.name_resource(&mut name);
        name
    }

    /// Appends the name of the resource with its namespace. All its variants, layouts and qualifiers share the name: the
    /// hash tag of their names in Redis, and what chooses their [shard](crate::versions::Shard).
    pub(crate) fn write_resource(&self, name: &mut String) {
        name.extend([self.namespace(), ":"]);
        self.name_resource(name);
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

/// Returns a namespace that is safe in the names of a store: at most 64 characters of `[A-Za-z0-9_.-]`, with others
/// replaced by `_`.
pub(crate) fn namespace(name: &str, default: &str) -> Arc<str> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    let name: String = name.chars().take(64).map(plain).collect();
    if name.is_empty() { default.into() } else { name.into() }
}

/// As the borrowed form does, so that either finds the other in a table.
impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Hash::hash(&CacheKeyRef::from(self), state);
    }
}

/// A borrowed [`CacheKey`]. Copies of it write to no memory that threads share, such as a reference count.
///
/// It finds its cache key in tables that look up by `Equivalent`, such as the tables of `quick_cache` and `hashbrown`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheKeyRef<'a> {
    namespace: &'a str,
    layout: u64,
    primary: &'a [u8],
    qualifier: Qualifier,
    variant: Option<&'a [u8]>,
}

impl<'a> CacheKeyRef<'a> {
    pub(crate) fn new(namespace: &'a str, layout: u64, key: &'a Key) -> Self {
        Self { namespace, layout, primary: &key.primary, qualifier: key.qualifier, variant: key.variant.as_deref() }
    }

    #[inline]
    pub(crate) fn of_text(namespace: &'a str, layout: u64, text: &'a KeyText) -> Self {
        let (primary, qualifier, variant) = text.parts();
        Self { namespace, layout, primary, qualifier, variant }
    }

    /// Returns the cache key of another variant of the resource.
    pub(crate) fn to_variant(self, variant: &'a [u8]) -> Self {
        Self { variant: Some(variant), ..self }
    }

    /// Returns the namespace.
    pub(crate) fn namespace(self) -> &'a str {
        self.namespace
    }

    /// Returns a hash of the resource, whatever the layout and the variant. PERF: a sixth of the instructions of the
    /// hasher of std.
    pub(crate) fn resource_hash(self, seed: u64) -> u64 {
        let seed = xxh3_64_with_seed(self.namespace.as_bytes(), seed ^ self.qualifier as u64);
        xxh3_64_with_seed(self.primary, seed)
    }

    /// Returns the resource as text for people: method and URL of HTTP requests, otherwise the key. A space takes the
    /// place of a control character, U+FFFD that of bytes that are not UTF-8, and `..` that of the end of a text that is
    /// longer than 256 bytes.
    pub(crate) fn to_readable(self) -> String {
        let mut text = match self.qualifier.as_str().split_once('-') {
            Some((method, scheme)) => format!("{} {scheme}://", method.to_ascii_uppercase()),
            None => String::new(),
        };
        let start = &self.primary[..self.primary.len().min(MAX_READABLE + 1)];
        for char in String::from_utf8_lossy(start).chars() {
            if text.len() + char.len_utf8() > MAX_READABLE {
                text.push_str("..");
                break;
            }
            text.push(if char.is_control() { ' ' } else { char });
        }
        text
    }

    /// Returns the hash of namespace and key. See [`CacheKey::hash`].
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        let qualifier = Some(self.qualifier.as_str().as_bytes());
        let parts = [Some(self.namespace.as_bytes()), Some(self.primary), self.variant, qualifier];
        let count = if self.qualifier == Qualifier::None { 3 } else { 4 };
        let mut text = Vec::with_capacity(96);
        for part in &parts[..count] {
            text.extend_from_slice(&part.map_or(u64::MAX, |part| part.len() as u64).to_le_bytes());
            text.extend_from_slice(part.unwrap_or_default());
        }
        KeyHash::of(&text)
    }
}

impl<'a> From<&'a CacheKey> for CacheKeyRef<'a> {
    fn from(key: &'a CacheKey) -> Self {
        Self::new(&key.namespace, key.layout, &key.key)
    }
}

impl Equivalent<CacheKey> for CacheKeyRef<'_> {
    /// PERF: the cache keys of one guard share the text of their namespace, which is then not read.
    fn equivalent(&self, key: &CacheKey) -> bool {
        let other = CacheKeyRef::from(key);
        let same = std::ptr::eq(self.namespace, other.namespace) || self.namespace == other.namespace;
        same && *self == CacheKeyRef { namespace: self.namespace, ..other }
    }
}

/// Leaves out the layout and the qualifier, so that a change of a resource can be recorded for all of them at once.
/// PERF: also the namespace, because in one table nearly all cache keys share it, and the lengths, because few keys have a
/// variant. The comparison checks the rest.
impl Hash for CacheKeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(self.primary);
        state.write(self.variant.unwrap_or_default());
    }
}

/// Shows the lengths only, as [`Key`] does.
impl fmt::Debug for CacheKeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.primary.len() + self.variant.map_or(0, <[u8]>::len);
        write!(f, "CacheKeyRef({}, {bytes} bytes)", self.namespace)
    }
}

/// The hash that identifies a resource in envelopes, wake-up messages and logs. See [`CacheKey::hash`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyHash([u8; 16]);

impl KeyHash {
    /// Returns the hash as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Creates a hash from bytes that were stored or received.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Hashes in one call. PERF: an incremental hasher costs more than the hash of a short key.
    pub(crate) fn of(text: &[u8]) -> Self {
        Self(hash128(text))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

/// Maximum length in bytes of a key that is used in names unhashed.
const MAX_RAW: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasher, RandomState};

    fn cache_key(namespace: &str, key: impl ToKey) -> CacheKey {
        CacheKey::new(namespace, 0, key)
    }

    #[test]
    fn key_hash_separates_its_parts() {
        assert_ne!(cache_key("a:b", "c").hash(), cache_key("a", "b:c").hash());
        let variant = cache_key("a", Key::from("k").variant(""));
        assert_ne!(cache_key("a", "k").hash(), variant.hash());
        assert_ne!(variant.hash(), cache_key("a", Key::from("").variant("k")).hash());
        let hashes: Vec<_> = cache_key("a", Key { qualifier: Qualifier::Any, ..Key::from("k") })
            .invalidated()
            .iter()
            .chain([&cache_key("a", "k"), &cache_key("a", Key::from("k").variant("get-http"))])
            .map(CacheKey::hash)
            .collect();
        for (i, hash) in hashes.iter().enumerate() {
            assert!(!hashes[..i].contains(hash), "{i}");
        }
    }

    #[test]
    fn resource_name_is_raw_if_plain_and_hashed_otherwise() {
        assert_eq!(cache_key("a", "user:42").resource_name(), "ruser:42");
        for odd in ["}", "a b", "caf\u{e9}", "a\n", "a\0", &"x".repeat(65)] {
            let name = cache_key("a", odd).resource_name();
            assert!(name.starts_with('h') && name.len() == 33, "{name}");
        }
        assert_eq!(cache_key("a", vec![0xff_u8]).resource_name().len(), 33);
    }

    #[test]
    fn key_hash_is_shown_with_leading_zeros() {
        let hash = KeyHash::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0xab, 0xcd, 0xef, 0, 0xf0]);
        assert_eq!(format!("{hash:?}"), "000102030405060708090aabcdef00f0");
    }

    #[test]
    fn readable_key_is_a_short_text_whatever_its_bytes() {
        let readable = |key: &Key| CacheKeyRef::new("n", 0, key).to_readable();
        let page = Key { qualifier: Qualifier::GetHttps, ..Key::from("shop.example/tea?a=b\0\nde") };
        assert_eq!(readable(&page), "GET https://shop.example/tea?a=b  de");
        assert_eq!(readable(&Key::from("caf\u{e9}\u{1b}[31m").variant("v")), "caf\u{e9} [31m");
        assert_eq!(readable(&Key::new(vec![b'a', 0xff, b'b'])), "a\u{fffd}b");
        assert_eq!(readable(&Key::from("x".repeat(256))), "x".repeat(256));
        for long in ["x".repeat(257), "\u{1f375}".repeat(65)] {
            assert_eq!(readable(&Key::from(long)).len(), 258);
        }
        assert_eq!(readable(&Key::new(vec![0xff_u8; 10_000])).len(), 255 + 2);
    }

    #[test]
    fn key_debug_shows_only_its_length() {
        assert_eq!(format!("{:?}", Key::from("secret").variant("en")), "Key(8 bytes)");
    }

    /// Seen to fail with a comparison that left out the layout, and with a hash of the owned key that included the
    /// qualifier.
    #[test]
    fn cache_key_ref_finds_its_own_cache_key_only() {
        let qualified = Key { qualifier: Qualifier::GetHttp, ..Key::from("k") };
        let keys =
            [Key::from("k"), Key::from("l"), Key::from("k").variant("v"), Key::from("").variant("kv"), qualified];
        let of_key = |key: &Key| [("a", 0), ("a", 1), ("b", 0)].map(|(name, layout)| CacheKey::new(name, layout, key));
        let (owned, hasher) = (keys.iter().flat_map(of_key).collect::<Vec<_>>(), RandomState::new());
        for (i, key) in owned.iter().enumerate() {
            let borrowed = CacheKeyRef::from(key);
            assert_eq!(hasher.hash_one(borrowed), hasher.hash_one(key), "{key:?}");
            for (j, other) in owned.iter().enumerate() {
                assert_eq!(borrowed.equivalent(other), i == j, "{borrowed:?} {other:?}");
            }
        }
    }

    #[test]
    fn cache_key_ref_of_a_variant_finds_the_variant() {
        let key = CacheKey::new("n", 3, "k");
        let variant = key.to_variant("v".into());
        assert!(CacheKeyRef::from(&key).to_variant(b"v").equivalent(&variant));
        assert_eq!(format!("{:?}", CacheKeyRef::from(&variant)), "CacheKeyRef(n, 2 bytes)");
    }
}
