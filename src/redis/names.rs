//! The names of entries and leases in Redis.

use crate::{key::CacheKey, store::envelope::FORMAT};

/// The number of failure domains in a cluster.
#[cfg(feature = "cluster")]
pub(super) const DOMAINS: usize = 64;

/// Returns the failure domain in a cluster: one of 64 ranges of 256 slots. A node usually owns ranges of slots, so the
/// failure of a node shows in some of these ranges.
#[cfg(feature = "cluster")]
pub(super) fn range_of_slots(key: &CacheKey) -> u16 {
    let slot = slot(key);
    crc16::State::<crc16::XMODEM>::calculate(slot.trim_matches(['{', '}']).as_bytes()) % 16_384 / 256
}

/// Returns the hash tag of the resource, with capacity for the rest of the name. All keys of a resource share it, and
/// so one slot.
fn slot(key: &CacheKey) -> String {
    let mut name = String::with_capacity(key.namespace().len() + ROOM);
    name.extend(["{", key.namespace(), ":"]);
    key.name_resource(&mut name);
    name.push('}');
    name
}

fn name_variant(key: &CacheKey, name: &mut String) {
    if key.variant().is_some() {
        name.push('.');
        name.push_str(&format!("{:?}", key.hash()));
    }
}

pub(crate) fn lease_name(key: &CacheKey) -> String {
    let mut name = slot(key);
    name.push_str(":l");
    name_variant(key, &mut name);
    name
}

/// Returns the name of the entry. PERF: written without `format!`, because each hit makes one, and formatting would
/// cost as much as sending it.
pub(super) fn entry_name(key: &CacheKey) -> String {
    let mut name = slot(key);
    name_version(FORMAT, key.schema_version(), &mut name);
    name_variant(key, &mut name);
    name
}

fn name_version(format: u32, schema: u32, name: &mut String) {
    for (prefix, number) in [(":v", format), (".", schema)] {
        name.push_str(prefix);
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => name.push(char::from(b'0' + digit)),
            _ => name.push_str(&number.to_string()),
        }
    }
}

/// Returns the names of the entry in this and in the adjacent formats and schema versions. Old and new processes of a
/// rolling deploy use them.
pub(crate) fn entry_names(key: &CacheKey) -> Vec<String> {
    let (slot, mut variant) = (slot(key), String::new());
    name_variant(key, &mut variant);
    let formats = [FORMAT, FORMAT - 1, FORMAT + 1];
    let name = |format: u32, schema: u32| {
        let mut name = slot.clone();
        name_version(format, schema, &mut name);
        name + &variant
    };
    formats.into_iter().flat_map(|format| key.adjacent_schemas().map(|schema| name(format, schema))).collect()
}

/// Capacity for the rest of a name: braces, a resource of up to 65 bytes, versions of one digit, and a variant.
const ROOM: usize = 112;
