//! The names of entries and leases in Redis.

use crate::{key::CacheKey, layout::LAYOUTS, store::token::Token, versions::Shard};
use std::fmt::Write;

/// Returns the number of failure domains of a server or cluster, and the one of each cache key. In a cluster it is one of
/// 64 ranges of 256 slots: a node usually owns ranges of slots, so the failure of a node shows in some of them.
pub(super) fn failure_domains(is_cluster: bool) -> (usize, fn(&CacheKey) -> u16) {
    #[cfg(feature = "cluster")]
    if is_cluster {
        return (64, |key| slot_of(&slot(key)) / 256);
    }
    let _ = is_cluster;
    (1, |_| 0)
}

/// Returns the slot of a name, which begins with its hash tag.
#[cfg(feature = "cluster")]
pub(super) fn slot_of(name: &str) -> u16 {
    crc16::State::<crc16::XMODEM>::calculate(hash_tag(name.as_bytes())) % SLOTS
}

/// Returns the [shard](Shard) of a name, the one of its cache key.
pub(super) fn shard_of(name: &[u8]) -> Shard {
    Shard::of_resource(hash_tag(name))
}

/// Returns the hash tag that a name begins with.
fn hash_tag(name: &[u8]) -> &[u8] {
    let rest = name.strip_prefix(b"{").unwrap_or_default();
    rest.iter().position(|byte| *byte == b'}').map_or(name, |end| &rest[..end])
}

/// Returns the hash tag of the resource, with capacity for the rest of the name. All keys of a resource share it, and
/// so one slot.
fn slot(key: &CacheKey) -> String {
    let mut name = String::with_capacity(key.namespace().len() + ROOM);
    name.push('{');
    key.write_resource(&mut name);
    name.push('}');
    name
}

/// Appends the qualifier and the variant, the parts of a key that are not in the hash tag.
fn name_rest(key: &CacheKey, name: &mut String) {
    if !key.qualifier().is_empty() {
        name.extend([".", key.qualifier()]);
    }
    if key.variant().is_some() {
        _ = write!(name, ".{:?}", key.hash());
    }
}

pub(crate) fn lease_name(key: &CacheKey) -> String {
    let mut name = slot(key);
    name.push_str(":l");
    name_rest(key, &mut name);
    name
}

/// Returns the name of the entry. PERF: written without `format!`, because each hit makes one, and formatting would
/// cost as much as sending it.
pub(super) fn entry_name(key: &CacheKey) -> String {
    let mut name = slot(key);
    name.extend([CURRENT, DIGITS[(key.layout() % LAYOUTS) as usize]]);
    name_rest(key, &mut name);
    name
}

/// Returns the names of the entry and of the lease. PERF: two thirds of the cost of making them one by one.
pub(super) fn entry_and_lease_names(key: &CacheKey) -> (String, String) {
    let (mut entry, mut rest) = (slot(key), String::new());
    name_rest(key, &mut rest);
    let mut lease = String::with_capacity(entry.capacity());
    lease.extend([&*entry, ":l", &*rest]);
    entry.extend([CURRENT, DIGITS[(key.layout() % LAYOUTS) as usize], &*rest]);
    (entry, lease)
}

/// Returns the name under which the entry of write number `number` waits for the script of its fill.
pub(super) fn staging_name(key: &CacheKey, id: Token, number: usize) -> String {
    let mut name = slot(key);
    _ = write!(name, ":s:{}.{number}", id.as_bytes().escape_ascii());
    name
}

/// Returns the names of the entry in all layouts, in this format and in the one before. Old and new processes of a
/// rolling deploy use them.
pub(crate) fn entry_names(key: &CacheKey) -> Vec<String> {
    let (slot, mut rest) = (slot(key), String::new());
    name_rest(key, &mut rest);
    let layouts = |format: &'static str| DIGITS.map(|digit| [&slot, format, digit, &rest].concat());
    [CURRENT, PREVIOUS].into_iter().flat_map(layouts).collect()
}

/// Number of slots of a cluster.
#[cfg(feature = "cluster")]
const SLOTS: u16 = 16_384;
/// The formats in names, [`FORMAT`] and the one before.
const CURRENT: &str = ":v3.";
const PREVIOUS: &str = ":v2.";
/// The layouts in names.
const DIGITS: [&str; LAYOUTS as usize] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f"];
/// Capacity for the rest of a name: braces, a resource of up to 65 bytes, format and layout, and a variant.
const ROOM: usize = 112;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{key::Key, store::envelope::FORMAT};

    #[test]
    fn names_of_a_key_name_format_layout_and_qualifier() {
        assert_eq!([CURRENT, PREVIOUS], [format!(":v{FORMAT}."), format!(":v{}.", FORMAT - 1)]);
        let key = |layout| CacheKey::new("sg", layout, "k");
        assert_eq!(entry_name(&key(0x7b)), "{sg:rk}:v3.b");
        assert_eq!(lease_name(&key(0x7b)), "{sg:rk}:l");
        let names = entry_names(&key(0));
        assert!((0..LAYOUTS).all(|layout| names.contains(&entry_name(&key(layout)))));
        assert!(names.contains(&"{sg:rk}:v2.f".to_owned()) && names.len() == 32, "{names:?}");
        let variant = CacheKey::new("sg", 0, Key::from("k").variant("de"));
        assert_eq!(entry_name(&variant), format!("{{sg:rk}}:v3.0.{:?}", variant.hash()));
    }

    /// Readers of one name share the decoded entry if their layouts are equal too.
    ///
    /// Seen to fail without the variant in the name.
    #[test]
    fn names_of_different_keys_differ() {
        let long = "x".repeat(65);
        let primaries = ["k", "k:l", "k.0", "", "}{", "a b", "ab", &long, &long[1..]];
        let variants = [None, Some(""), Some("l"), Some("k")];
        let mut names = std::collections::HashSet::new();
        for (primary, variant) in primaries.iter().flat_map(|primary| variants.map(|variant| (*primary, variant))) {
            for namespace in ["n", "n.a", "n:k"] {
                let key = variant.map_or(Key::from(primary), |variant| Key::from(primary).variant(variant));
                assert!(
                    names.insert(entry_name(&CacheKey::new(namespace, 7, key))),
                    "{namespace} {primary} {variant:?}"
                );
            }
        }
    }

    /// Seen to fail with a hash of the whole name.
    #[test]
    fn names_of_a_key_are_in_its_shard() {
        for primary in ["k", "a:b/c", "", "}{", "a b", "caf\u{e9}", &"x".repeat(65)] {
            for key in [Key::from(primary), Key::from(primary).variant("de")] {
                let key = CacheKey::new("n.a", 7, key);
                let names = entry_names(&key).into_iter().chain([lease_name(&key)]);
                assert!(names.into_iter().all(|name| shard_of(name.as_bytes()) == Shard::from(&key)), "{key:?}");
            }
        }
    }

    #[cfg(feature = "http")]
    #[test]
    fn names_of_a_url_share_one_hash_tag() {
        let key = CacheKey::new("sg", 0, Key::qualified("a.test/x", crate::key::Qualifier::Any));
        let leases: Vec<_> = key.invalidated().iter().map(lease_name).collect();
        assert_eq!(
            leases,
            ["get-http", "get-https", "head-http", "head-https"].map(|rest| format!("{{sg:ra.test/x}}:l.{rest}"))
        );
        assert_eq!(entry_name(&key.invalidated()[1]), "{sg:ra.test/x}:v3.0.get-https");
    }
}
