//! The layout of entries: what a reader must agree on to decode them.
//!
//! The layout is a hash of the format of envelopes, of the encoding, which includes the structure of a type, and of the
//! user's schema version. Everything else that decides how the bytes of an entry are read must be part of [`layout`]. The
//! name of an entry tells [`LAYOUTS`] layouts apart. That number is small, so that an invalidation can drop the entries of
//! all layouts, also of layouts that its process does not know.

use crate::store::envelope::FORMAT;

/// The number of layouts that the names of entries tell apart, at most ten: a name has one digit.
pub(crate) const LAYOUTS: u64 = 8;

/// Returns the layout of entries in this encoding and schema version. Successive versions have different last digits.
pub(crate) const fn layout(encoding: u64, schema_version: u32) -> u64 {
    step(step(encoding, FORMAT as u64), schema_version as u64)
}

/// Returns the FNV-1a hash, which is the same in every build, unlike the hashers of the standard library.
pub(crate) const fn fnv1a(parts: &[&str]) -> u64 {
    let (mut hash, mut part) = (0xcbf2_9ce4_8422_2325, 0);
    while part < parts.len() {
        let (bytes, mut at) = (parts[part].as_bytes(), 0);
        while at < bytes.len() {
            hash = step(hash, bytes[at] as u64);
            at += 1;
        }
        hash = step(hash, 0);
        part += 1;
    }
    hash
}

const fn step(hash: u64, part: u64) -> u64 {
    (hash ^ part).wrapping_mul(0x0100_0000_01b3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn layouts_of_a_rolling_deploy_have_different_names() {
        for encoding in ["a codec and a type", "another one"] {
            let layouts: HashSet<_> = (7..15).map(|version| layout(fnv1a(&[encoding]), version)).collect();
            let digits: HashSet<_> = layouts.iter().map(|layout| layout % LAYOUTS).collect();
            assert_eq!((layouts.len(), digits.len()), (8, 8), "eight successive versions");
        }
    }
}
