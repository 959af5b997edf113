//! The bytes of an entry in a store outside of the process.
//!
//! ```text
//! 0        kind: 'v' value, 'p' pass, 's' pass the store
//! 1..17    id, where a script can compare it
//! 17..33   key hash: an answer that belongs to another request is a miss
//! 33..41   begun, on the clock of the store, in microseconds
//! 41..49   cost in microseconds
//! 49..57   fresh for, in milliseconds; then stale-while-revalidate, stale-if-error, and kept
//! 81..89   codec and type
//! 89       number of tags; 0 in this format
//! 90..     payload
//! ```
//!
//! Numbers are little-endian. The format's number is part of the key's name, not of the envelope: old and new code of
//! a rolling deploy do not overwrite each other.

use super::{Entry, Kind, Lifetimes, Meta};
use crate::{
    clock::Timestamp,
    key::{Address, KeyHash},
    lease::Token,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::time::Duration;

/// The number of this envelope format; part of an entry's name in the store.
pub const FORMAT: u32 = 2;

const HEAD: usize = 90;

impl Entry {
    /// The entry as bytes, to be stored under that address. `offset` leads from the clock of this process to the clock
    /// of the store, in microseconds.
    #[must_use]
    pub fn to_envelope(&self, at: &Address, offset: i64) -> Bytes {
        let meta = self.meta();
        let mut out = BytesMut::with_capacity(HEAD + self.payload().bytes().len());
        out.put_u8(match meta.kind {
            Kind::Value => b'v',
            Kind::Pass => b'p',
            Kind::PassStore => b's',
        });
        out.put_slice(meta.id.as_bytes());
        out.put_slice(at.hash().as_bytes());
        out.put_i64_le(meta.answered.before(meta.cost).as_micros().saturating_add(offset));
        out.put_u64_le(saturated(meta.cost.as_micros()));
        let Lifetimes { fresh_for, stale_while_revalidate, stale_if_error, kept } = meta.lifetimes;
        for lifetime in [fresh_for, stale_while_revalidate, stale_if_error, kept] {
            out.put_u64_le(saturated(lifetime.as_millis()));
        }
        out.put_u64_le(meta.codec);
        out.put_u8(0);
        out.put_slice(self.payload().bytes());
        out.freeze()
    }

    /// Reads what [`to_envelope`](Self::to_envelope) wrote; the payload is a slice of `bytes`. `None` if it is
    /// anything else, or belongs to another address: whoever reads it treats that as a miss.
    #[must_use]
    pub fn from_envelope(at: &Address, bytes: &Bytes, offset: i64) -> Option<Self> {
        let mut head = bytes.get(..HEAD)?;
        let kind = match head.get_u8() {
            b'v' => Kind::Value,
            b'p' => Kind::Pass,
            b's' => Kind::PassStore,
            _ => return None,
        };
        let id = Token::from_bytes(take(&mut head));
        if KeyHash::from_bytes(take(&mut head)) != at.hash() {
            return None;
        }
        let begun = Timestamp::from_micros(head.get_i64_le().saturating_sub(offset));
        let cost = Duration::from_micros(head.get_u64_le());
        let mut lifetime = || Duration::from_millis(head.get_u64_le());
        let lifetimes = Lifetimes {
            fresh_for: lifetime(),
            stale_while_revalidate: lifetime(),
            stale_if_error: lifetime(),
            kept: lifetime(),
        };
        let codec = head.get_u64_le();
        if head.get_u8() != 0 {
            return None;
        }
        let meta = Meta { kind, id, answered: begun.after(cost), cost, lifetimes, codec };
        Some(Self::new(meta, bytes.slice(HEAD..)))
    }
}

fn take(head: &mut &[u8]) -> [u8; 16] {
    let mut bytes = [0; 16];
    head.copy_to_slice(&mut bytes);
    bytes
}

fn saturated(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::Inbox;
    use proptest::prelude::*;

    fn at(key: &str) -> Address {
        Address::new("sg", 0, key)
    }

    fn kind() -> impl Strategy<Value = Kind> {
        prop_oneof![Just(Kind::Value), Just(Kind::Pass), Just(Kind::PassStore)]
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            kind in kind(), key in ".*", payload: Vec<u8>, codec: u64,
            answered in -1_i64 << 50..1 << 50, offset in -1_i64 << 50..1 << 50, cost in 0_u64..1 << 40,
            fresh in 0_u64..1 << 50, revalidate in 0_u64..1 << 50, error in 0_u64..1 << 50,
            kept in 0_u64..1 << 50,
        ) {
            let lifetimes = Lifetimes {
                fresh_for: Duration::from_millis(fresh),
                stale_while_revalidate: Duration::from_millis(revalidate),
                stale_if_error: Duration::from_millis(error),
                kept: Duration::from_millis(kept),
            };
            let (id, answered) = (Token::unique(Inbox::unique()), Timestamp::from_micros(answered));
            let meta = Meta { kind, id, answered, cost: Duration::from_micros(cost), lifetimes, codec };
            let entry = Entry::new(meta, Bytes::from(payload));
            let bytes = entry.to_envelope(&at(&key), offset);
            prop_assert_eq!(&bytes[1..17], id.as_bytes());
            let read = Entry::from_envelope(&at(&key), &bytes, offset).expect("reads");
            prop_assert_eq!(read.meta(), entry.meta());
            prop_assert_eq!(read.payload().bytes(), entry.payload().bytes());
            prop_assert!(Entry::from_envelope(&at(&format!("{key}x")), &bytes, offset).is_none(), "another key's");
        }

        #[test]
        fn garbage_is_a_miss(bytes: Vec<u8>, cut in 0_usize..HEAD) {
            let bytes = Bytes::from(bytes);
            prop_assert!(Entry::from_envelope(&at("k"), &bytes, 0).is_none());
            let lifetimes = Lifetimes::default();
            let (id, answered) = (Token::unique(Inbox::unique()), Timestamp::from_micros(0));
            let meta = Meta { kind: Kind::Value, id, answered, cost: Duration::ZERO, lifetimes, codec: 0 };
            let whole = Entry::new(meta, Bytes::new()).to_envelope(&at("k"), 0);
            prop_assert!(Entry::from_envelope(&at("k"), &whole.slice(..cut), 0).is_none());
        }
    }

    #[test]
    fn extreme_numbers_neither_panic_nor_wrap() {
        let at = at("k");
        let mut bytes = vec![0xff; HEAD];
        (bytes[0], bytes[HEAD - 1]) = (b'v', 0);
        bytes[17..33].copy_from_slice(at.hash().as_bytes());
        for offset in [i64::MIN, 0, i64::MAX] {
            let entry = Entry::from_envelope(&at, &Bytes::from(bytes.clone()), offset).expect("reads");
            let _ = (entry.is_retained(Timestamp::now()), entry.to_envelope(&at, offset));
        }
    }
}
