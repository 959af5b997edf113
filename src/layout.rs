//! The layout of entries: what a reader must agree on to decode them.
//!
//! The layout is a hash of the encoding and of the user's schema version. Everything else that decides how the bytes of
//! an entry are read must be part of [`layout`]. The name of an entry tells [`LAYOUTS`] layouts apart. That number is
//! small, so that an invalidation can drop the entries of all layouts, also of layouts that its process does not know.

/// The number of layouts that the names of entries tell apart.
pub(crate) const LAYOUTS: u64 = 16;

/// Returns the layout of entries in this encoding and schema version.
pub(crate) const fn layout(encoding: u64, schema_version: u32) -> u64 {
    let [a, b, c, d] = schema_version.to_le_bytes();
    step(step(step(step(encoding, a), b), c), d)
}

/// Returns the FNV-1a hash, which is the same in every build, unlike the hashers of the standard library.
pub(crate) const fn fnv1a(parts: &[&str]) -> u64 {
    let (mut hash, mut part) = (0xcbf2_9ce4_8422_2325, 0);
    while part < parts.len() {
        let (bytes, mut at) = (parts[part].as_bytes(), 0);
        while at < bytes.len() {
            hash = step(hash, bytes[at]);
            at += 1;
        }
        hash = step(hash, 0);
        part += 1;
    }
    hash
}

const fn step(hash: u64, byte: u8) -> u64 {
    (hash ^ byte as u64).wrapping_mul(0x0100_0000_01b3)
}

#[cfg(all(test, feature = "bincode", feature = "json", feature = "postcard"))]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use std::collections::HashSet;

    #[test]
    fn layouts_of_a_rolling_deploy_have_different_names() {
        let encodings = [Codec::Bincode, Codec::Postcard, Codec::Json].map(Codec::encoding);
        let digits: HashSet<_> = encodings.map(|encoding| layout(encoding, 0) % LAYOUTS).into();
        assert_eq!(digits.len(), 3, "codecs");
        let digits: HashSet<_> = (7..23).map(|version| layout(encodings[0], version) % LAYOUTS).collect();
        assert_eq!(digits.len(), 16, "schema versions");
    }
}
