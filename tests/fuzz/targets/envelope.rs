//! Entries as a store outside of the process returns them.

use bytes::Bytes;
use stampede_guard::{
    fuzzing::with_checksum,
    store::{CacheKey, Entry, EnvelopeError, Timestamp},
};

pub(super) fn holds(input: &[u8]) {
    let at = CacheKey::new("sg", 0, "key");
    let as_it_is = Bytes::copy_from_slice(input);
    if let Ok(entry) = Entry::from_envelope(&at, &as_it_is, 0) {
        reads(&at, &as_it_is, &entry);
    }
    // With the right hash, layout and checksum, which random input does not hit.
    let mut bytes = input.to_vec();
    let Some(hash) = bytes.get_mut(HASH) else { return };
    hash.copy_from_slice(at.hash().as_bytes());
    let Some(layout) = bytes.get_mut(LAYOUT) else { return };
    layout.copy_from_slice(&at.layout().to_le_bytes());
    let Some(after_payload) = bytes.get_mut(AFTER_PAYLOAD) else { return };
    after_payload[1..].fill(0); // a validator of up to 255 bytes, and no tags
    let (length, bytes) = (bytes.len(), with_checksum(&bytes));
    let entry = match Entry::from_envelope(&at, &bytes, 0) {
        Ok(entry) => entry,
        Err(EnvelopeError::Corrupt) => return assert!(length < HEAD, "refused for no reason"),
        Err(_) => {
            let refused = !b"vps".contains(&bytes[0]) || validator_len(&bytes) > bytes.len() - HEAD;
            return assert!(refused || has_unknown_audience(&bytes), "refused for no reason");
        }
    };
    reads(&at, &bytes, &entry);
    belongs_to_its_cache_key_alone(&at, &bytes, length);
    has_an_age_at_any_time(&entry);
}

/// The decoded entry equals the bytes, and encodes to the same bytes again.
fn reads(at: &CacheKey, bytes: &Bytes, entry: &Entry) {
    let (payload, validator) = bytes[HEAD..].split_at(bytes.len() - HEAD - validator_len(bytes));
    assert_eq!((&entry.payload().bytes()[..], &entry.payload().validator()[..]), (payload, validator));
    assert_eq!(entry.meta().id.as_bytes(), &bytes[1..17]);
    let again = entry.to_envelope(at, 0);
    let begun = i64::from_le_bytes(bytes[41..49].try_into().expect("eight bytes"));
    let cost = u64::from_le_bytes(bytes[57..65].try_into().expect("eight bytes"));
    // Times beyond the range of the clock are clamped, and an expiry by request ends the freshness at its microsecond.
    let has_expired = bytes[EXPIRED..HEAD].iter().any(|byte| *byte != 0);
    if !has_expired && i128::from(begun) + i128::from(cost) <= i128::from(i64::MAX) {
        let written = |bytes: &[u8]| [&bytes[..STAMP.start], &bytes[STAMP.end..LATER.start]].concat();
        assert_eq!((written(&again), &again[HEAD..]), (written(bytes), &bytes[HEAD..]));
    }
    let read = Entry::from_envelope(at, &again, 0).expect("what was written is read");
    assert!(has_expired || read.meta() == entry.meta(), "{:?} for {:?}", read.meta(), entry.meta());
    assert_eq!(read.payload().bytes(), entry.payload().bytes());
    assert_eq!(read.payload().validator(), entry.payload().validator());
    for offset in [i64::MIN, -1, 1, i64::MAX] {
        let elsewhere = Entry::from_envelope(at, bytes, offset).expect("clocks do not matter to what it is");
        let _ = elsewhere.to_envelope(at, offset);
    }
}

/// Groups are numbers of 32 bits.
fn has_unknown_audience(bytes: &[u8]) -> bool {
    let number = u64::from_le_bytes(bytes[AUDIENCE].try_into().expect("eight bytes"));
    bytes[0] != b'v' && number > u64::from(u32::MAX)
}

fn validator_len(bytes: &[u8]) -> usize {
    usize::from(bytes[AFTER_PAYLOAD.start])
}

fn belongs_to_its_cache_key_alone(at: &CacheKey, bytes: &Bytes, length: usize) {
    for bit in HASH.start * 8..HASH.end * 8 {
        let mut other = bytes[..length].to_vec();
        other[bit / 8] ^= 1 << (bit % 8);
        let refused = Entry::from_envelope(at, &with_checksum(&other), 0).err();
        assert_eq!(refused, Some(EnvelopeError::OtherKey), "bit {bit} of the cache key does not count");
    }
    for other in [CacheKey::new("sg", 0, "kez"), CacheKey::new("sg2", 0, "key")] {
        assert!(Entry::from_envelope(&other, bytes, 0).is_err(), "{other:?} gets the entry of another key");
    }
    for cut in (0..HEAD).chain([bytes.len() - 1]) {
        assert!(Entry::from_envelope(at, &bytes.slice(..cut), 0).is_err(), "{cut} bytes are an entry");
    }
}

fn has_an_age_at_any_time(entry: &Entry) {
    let answered = entry.meta().response_time.as_micros();
    for micros in [i64::MIN, answered.saturating_sub(1), answered, answered.saturating_add(1), 0, i64::MAX] {
        let now = Timestamp::from_micros(micros);
        assert_eq!(entry.is_retained(now), entry.age(now) < entry.meta().lifetimes.retention());
    }
    assert!(entry.is_retained(Timestamp::from_micros(answered)), "it is kept when it is new");
}

pub(crate) const HEAD: usize = 161;
const HASH: std::ops::Range<usize> = 17..33;
const LAYOUT: std::ops::Range<usize> = 33..41;
/// The stamp of the lease, which an entry in a process does not have.
const STAMP: std::ops::Range<usize> = 49..57;
/// When a value has expired by request.
const EXPIRED: usize = 153;
const AUDIENCE: std::ops::Range<usize> = 97..105;
/// What a later version writes, and the checksums of it.
const LATER: std::ops::Range<usize> = 105..161;
/// The length of the validator, and the number of tags.
const AFTER_PAYLOAD: std::ops::Range<usize> = 129..137;
