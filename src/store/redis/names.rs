//! What entries and leases are called in Redis.

use super::{Address, FORMAT};

/// 64 ranges of 256 slots each. Nodes have ranges of slots as a rule, so when one fails, so do some of these.
#[cfg(feature = "cluster")]
pub(super) fn range_of_slots(at: &Address) -> u16 {
    let slot = slot(at);
    crc16::State::<crc16::XMODEM>::calculate(slot.trim_matches(['{', '}']).as_bytes()) % 16_384 / 256
}

/// All keys of a resource have its name as hash tag, hence one slot. With room for what follows.
fn slot(at: &Address) -> String {
    let mut name = String::with_capacity(at.namespace().len() + ROOM);
    name.extend(["{", at.namespace(), ":"]);
    at.name_resource(&mut name);
    name.push('}');
    name
}

fn name_variant(at: &Address, name: &mut String) {
    if at.variant().is_some() {
        name.push('.');
        name.push_str(&format!("{:?}", at.hash()));
    }
}

pub(crate) fn lease_name(at: &Address) -> String {
    let mut name = slot(at);
    name.push_str(":l");
    name_variant(at, &mut name);
    name
}

/// Each hit makes one: formatting it would cost as much as sending it.
pub(super) fn entry_name(at: &Address) -> String {
    let mut name = slot(at);
    name_version(FORMAT, at.schema(), &mut name);
    name_variant(at, &mut name);
    name
}

fn name_version(format: u32, schema: u32, name: &mut String) {
    for (mark, number) in [(":v", format), (".", schema)] {
        name.push_str(mark);
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => name.push(char::from(b'0' + digit)),
            _ => name.push_str(&number.to_string()),
        }
    }
}

/// The entry and its neighbours of other formats and schemas, which old and new processes of a rolling deploy use.
pub(crate) fn entry_names(at: &Address) -> Vec<String> {
    let (slot, mut variant) = (slot(at), String::new());
    name_variant(at, &mut variant);
    let formats = [FORMAT, FORMAT - 1, FORMAT + 1];
    let name = |format: u32, schema: u32| {
        let mut name = slot.clone();
        name_version(format, schema, &mut name);
        name + &variant
    };
    formats.into_iter().flat_map(|format| at.neighbours().map(|schema| name(format, schema))).collect()
}

/// Braces, a resource of up to 65 bytes, versions of one digit, and a variant.
const ROOM: usize = 112;
