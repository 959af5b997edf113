//! Entries as a store outside of the process returns them.

use bytes::Bytes;
use stampede_guard::store::{Address, Entry, Timestamp};

pub(super) fn holds(input: &[u8]) {
    let at = Address::new("sg", 0, "key");
    let as_it_is = Bytes::copy_from_slice(input);
    if let Some(entry) = Entry::from_envelope(&at, &as_it_is, 0) {
        reads(&at, &as_it_is, &entry);
    }
    // With the hash that nobody guesses.
    let mut bytes = input.to_vec();
    let Some(hash) = bytes.get_mut(HASH) else { return };
    hash.copy_from_slice(at.hash().as_bytes());
    let bytes = Bytes::from(bytes);
    let Some(entry) = Entry::from_envelope(&at, &bytes, 0) else {
        assert!(bytes.len() < HEAD || !b"vps".contains(&bytes[0]) || bytes[HEAD - 1] != 0, "refused for no reason");
        return;
    };
    reads(&at, &bytes, &entry);
    belongs_to_its_address_alone(&at, &bytes);
    has_an_age_at_any_time(&entry);
}

/// What is read is what is there, and written again it is the same.
fn reads(at: &Address, bytes: &Bytes, entry: &Entry) {
    assert_eq!(entry.payload().bytes(), &bytes[HEAD..]);
    assert_eq!(entry.meta().id.as_bytes(), &bytes[1..17]);
    let again = entry.to_envelope(at, 0);
    let begun = i64::from_le_bytes(bytes[33..41].try_into().expect("eight bytes"));
    let cost = u64::from_le_bytes(bytes[41..49].try_into().expect("eight bytes"));
    // Moments beyond what a clock can say are cut off.
    if i128::from(begun) + i128::from(cost) <= i128::from(i64::MAX) {
        assert_eq!(&again, bytes);
    }
    let read = Entry::from_envelope(at, &again, 0).expect("what was written is read");
    assert_eq!((read.meta(), read.payload().bytes()), (entry.meta(), entry.payload().bytes()));
    for offset in [i64::MIN, -1, 1, i64::MAX] {
        let elsewhere = Entry::from_envelope(at, bytes, offset).expect("clocks do not matter to what it is");
        let _ = elsewhere.to_envelope(at, offset);
    }
}

fn belongs_to_its_address_alone(at: &Address, bytes: &Bytes) {
    for bit in HASH.start * 8..HASH.end * 8 {
        let mut other = bytes.to_vec();
        other[bit / 8] ^= 1 << (bit % 8);
        assert!(Entry::from_envelope(at, &other.into(), 0).is_none(), "bit {bit} of the address does not count");
    }
    for other in [Address::new("sg", 0, "kez"), Address::new("sg2", 0, "key")] {
        assert!(Entry::from_envelope(&other, bytes, 0).is_none(), "{other:?} gets another one's entry");
    }
    for cut in 0..HEAD {
        assert!(Entry::from_envelope(at, &bytes.slice(..cut), 0).is_none(), "{cut} bytes are an entry");
    }
}

fn has_an_age_at_any_time(entry: &Entry) {
    let answered = entry.meta().answered.as_micros();
    for micros in [i64::MIN, answered.saturating_sub(1), answered, answered.saturating_add(1), 0, i64::MAX] {
        let now = Timestamp::from_micros(micros);
        assert_eq!(entry.is_retained(now), entry.age(now) < entry.meta().lifetimes.retention());
    }
    assert!(entry.is_retained(Timestamp::from_micros(answered)), "it is kept when it is new");
}

const HEAD: usize = 90;
const HASH: std::ops::Range<usize> = 17..33;
