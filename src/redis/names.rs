//! The names of entries and leases in Redis.

use crate::{key::CacheKey, layout::LAYOUTS, store::token::Token, sync::mutex::Mutex, telemetry, versions::Shard};
use std::{
    collections::BTreeMap,
    fmt::Write,
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

/// Which of its first two names each layout uses on one server.
///
/// The first name, number 0, ends with the last digit of the layout. If an entry of another layout has it, for example of
/// another version of the type in a rolling deploy, the layout uses the second one, number 1, and neither version overwrites
/// the entries of the other. A process that has never met the other version learns the name from an entry of its own
/// version. Once further versions have taken the first two names of a key, misses of this process look at all names.
#[derive(Default)]
pub(super) struct NamesInUse {
    /// Each place has the complement of the layout at this place that uses its second name. A layout whose place is taken
    /// by another layout begins with its first name again.
    second: [AtomicU64; 32],
    /// Whether the first two names of a key were taken.
    pub(super) looks_at_all: AtomicBool,
    /// How often each layout has met entries of another layout.
    met: Mutex<BTreeMap<u64, u64>>,
}

impl NamesInUse {
    fn place(&self, layout: u64) -> &AtomicU64 {
        &self.second[(layout >> 8) as usize % self.second.len()]
    }

    /// Returns the number of the name that the layout uses: 0 or 1.
    pub(super) fn number(&self, layout: u64) -> u64 {
        u64::from(self.place(layout).load(Relaxed) == !layout)
    }

    /// Returns the numbers of the names that a miss looks at, the one in use first.
    pub(super) fn looked_at(&self, layout: u64) -> Vec<u64> {
        let (number, end) = (self.number(layout), if self.looks_at_all.load(Relaxed) { LAYOUTS } else { 2 });
        [number, 1 - number].into_iter().chain(2..end).collect()
    }

    /// Makes the layout of the key use the second name, or the first one, because its entry is, or is to be, there. Counts
    /// that as a [meeting](Self::meet).
    pub(super) fn choose(&self, key: &CacheKey, number: u64) {
        self.place(key.layout()).store(if number == 1 { !key.layout() } else { 0 }, Relaxed);
        self.meet(key);
    }

    /// Returns the name that the entry has now.
    pub(super) fn entry(&self, key: &CacheKey) -> String {
        entry_name(key, self.number(key.layout()))
    }

    /// Counts an entry of another layout under the name that the layout of the key uses. Reports the first one.
    pub(super) fn meet(&self, key: &CacheKey) {
        if *self.met.lock().entry(key.layout()).and_modify(|times| *times += 1).or_insert(1) == 1 {
            telemetry::other_layout(key);
        }
    }

    /// Returns the number of entries of other layouts that were met.
    pub(super) fn met(&self) -> u64 {
        self.met.lock().values().sum()
    }
}

/// Returns the slot of a name in a cluster: the hash of its first hash tag, if that is not empty.
#[cfg(feature = "cluster")]
pub(super) fn slot_of(name: &[u8]) -> u16 {
    let tag = name.iter().position(|byte| *byte == b'{').map(|start| hash_tag(&name[start..]));
    crc16::State::<crc16::XMODEM>::calculate(tag.filter(|tag| !tag.is_empty()).unwrap_or(name)) % SLOTS
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
    name.push_str(LEASE);
    name_rest(key, &mut name);
    name
}

/// Returns the name of the entry with this number among those of its layout. PERF: written without `format!`, because each
/// hit makes one, and formatting would cost as much as sending it.
pub(super) fn entry_name(key: &CacheKey, number: u64) -> String {
    let mut name = slot(key);
    name.push_str(ENTRY);
    name.push(digit(key.layout(), number));
    name_rest(key, &mut name);
    name
}

/// Returns the digit of the name of a layout with this number. No two of the eight numbers have the same. A lease of the
/// application's own may have any number.
fn digit(layout: u64, number: u64) -> char {
    let further = if number == 0 { 0 } else { 1 + (layout >> 4).wrapping_add(number - 1) % (LAYOUTS - 1) };
    (b'0' + ((layout % LAYOUTS + further) % LAYOUTS) as u8) as char
}

/// Returns the name under which the entry of write number `number` waits for the script of its fill.
pub(super) fn staging_name(key: &CacheKey, id: Token, number: usize) -> String {
    let mut name = slot(key);
    _ = write!(name, ":s:{}.{number}", id.as_bytes().escape_ascii());
    name
}

/// Returns the names of the entry in all layouts.
pub(crate) fn entry_names(key: &CacheKey) -> Vec<String> {
    let (slot, mut rest) = (slot(key), String::new());
    name_rest(key, &mut rest);
    (0..LAYOUTS).map(|digit| format!("{slot}{ENTRY}{digit}{rest}")).collect()
}

/// Number of slots of a cluster.
#[cfg(feature = "cluster")]
pub(super) const SLOTS: u16 = 16_384;
/// What the names of leases and entries have after the slot. They are the same in all versions of this crate, so that an
/// invalidation of any version drops the entries of all, and a lease of any version is known to all.
const LEASE: &str = ":l";
const ENTRY: &str = ":v3.";
/// Capacity for the rest of a name: braces, a resource of up to 65 bytes, a layout, and a variant.
const ROOM: usize = 112;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use std::collections::HashSet;

    /// Names that processes of all versions use.
    #[test]
    fn names_of_a_key_name_layout_and_variant() {
        let key = |layout| CacheKey::new("sg", layout, "k");
        let (at, names) = (key(0x7b), ["{sg:rk}:v3.3", "{sg:rk}:l", "{sg:rk}:v3.4"]);
        assert_eq!([entry_name(&at, 0), lease_name(&at), entry_name(&at, 1)], names);
        let names = entry_names(&key(0));
        assert!((0..LAYOUTS).all(|layout| names.contains(&entry_name(&key(layout), 0))) && names.len() == 8);
        let variant = CacheKey::new("sg", 0, Key::from("k").variant("de"));
        assert_eq!(entry_name(&variant, 0), format!("{{sg:rk}}:v3.0.{:?}", variant.hash()));
    }

    #[test]
    fn names_in_use_are_those_of_one_layout() {
        for layout in [0, 1, 0x7b, 0xff7b, u64::MAX - 1] {
            let (names, [key, neighbour]) =
                (NamesInUse::default(), [0, 1 << 20].map(|bit| CacheKey::new("sg", layout ^ bit, "k")));
            let all: HashSet<_> = (0..LAYOUTS).map(|number| entry_name(&key, number)).collect();
            assert_eq!(all, entry_names(&key).into_iter().collect());
            assert!(all.contains(&entry_name(&key, u64::MAX)));
            for number in [0, 1, 1, 0] {
                names.choose(&key, number);
                assert_eq!(names.entry(&key), entry_name(&key, number), "{layout}");
                assert_eq!(names.entry(&neighbour), entry_name(&neighbour, 0));
            }
        }
    }

    /// Readers of one name share the decoded entry if their layouts are equal too.
    ///
    /// Seen to fail without the variant in the name.
    #[test]
    fn names_of_different_keys_differ() {
        let long = "x".repeat(65);
        let primaries = ["k", "k:l", "k.0", "", "}{", "a b", "ab", &long, &long[1..]];
        let variants = [None, Some(""), Some("l"), Some("k")];
        let mut names = HashSet::new();
        for (primary, variant) in primaries.iter().flat_map(|primary| variants.map(|variant| (*primary, variant))) {
            for namespace in ["n", "n.a", "n:k"] {
                let key = variant.map_or(Key::from(primary), |variant| Key::from(primary).variant(variant));
                assert!(
                    names.insert(entry_name(&CacheKey::new(namespace, 7, key), 0)),
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
        assert_eq!(leases, ["get-http", "get-https"].map(|rest| format!("{{sg:ra.test/x}}:l.{rest}")));
        assert_eq!(entry_name(&key.invalidated()[1], 0), "{sg:ra.test/x}:v3.0.get-https");
    }
}
