//! A cache key that borrows its parts, for a lookup that writes nothing.

use super::{CacheKey, Key, KeyHash};
use quick_cache::Equivalent;
use std::{
    fmt,
    hash::{Hash, Hasher},
};

/// A borrowed [`CacheKey`]. Copies of it write to no memory that threads share, such as a reference count.
///
/// It finds its cache key in tables that look up by `Equivalent`, such as those of `quick_cache` and `hashbrown`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CacheKeyRef<'a> {
    namespace: &'a str,
    layout: u64,
    primary: &'a [u8],
    qualifier: &'static str,
    variant: Option<&'a [u8]>,
}

impl<'a> CacheKeyRef<'a> {
    pub(crate) fn new(namespace: &'a str, layout: u64, key: &'a Key) -> Self {
        Self { namespace, layout, primary: &key.primary, qualifier: key.qualifier, variant: key.variant.as_deref() }
    }

    /// Returns the cache key of another variant of the resource.
    pub(crate) fn to_variant(self, variant: &'a [u8]) -> Self {
        Self { variant: Some(variant), ..self }
    }

    /// Returns the hash of namespace and key. See [`CacheKey::hash`].
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        let qualifier = (!self.qualifier.is_empty()).then_some(Some(self.qualifier.as_bytes()));
        let parts = [Some(self.namespace.as_bytes()), Some(self.primary), self.variant];
        let mut text = Vec::with_capacity(64);
        for part in parts.into_iter().chain(qualifier) {
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
    fn equivalent(&self, key: &CacheKey) -> bool {
        *self == CacheKeyRef::from(key)
    }
}

/// Leaves out the layout and the qualifier, so that a change of a resource can be recorded for all of them at once.
/// PERF: also the namespace, because in one table nearly all cache keys share it. The comparison checks the rest.
impl Hash for CacheKeyRef<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.primary.hash(state);
        self.variant.hash(state);
    }
}

/// Shows the lengths only, as [`Key`] does.
impl fmt::Debug for CacheKeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.primary.len() + self.variant.map_or(0, <[u8]>::len);
        write!(f, "CacheKeyRef({}, {bytes} bytes)", self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::QUALIFIERS;
    use std::{collections::hash_map::RandomState, hash::BuildHasher};

    /// Seen to fail with a comparison that left out the layout, and with a hash of the owned key that included the
    /// qualifier.
    #[test]
    fn cache_key_ref_finds_its_own_cache_key_only() {
        let qualified = Key { qualifier: QUALIFIERS[0], ..Key::from("k") };
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
