//! The encoding of an entry in a store outside the process.
//!
//! ```text
//! 0        kind: 'v' value, 'p' hit-for-pass marker, 's' do-not-store marker
//! 1..17    id
//! 17..33   key hash: a reply that belongs to another request is a miss
//! 33..41   layout: an entry of another layout may have the same name
//! 41..49   start of the fetch, on the clock of the store, in microseconds
//! 49..57   stamp of the lease under which the entry was fetched; 0 without a lease, and for a put
//! 57..65   cost in microseconds
//! 65..73   freshness lifetime, in milliseconds; then stale-while-revalidate, stale-if-error, and `retain_for`
//! 97..105  codec and type of a value; audience of a marker: 0 everyone, otherwise the group, of 32 bits
//! 105..113 `Date` of the response, in microseconds; 0 if it is not known
//! 113..121 epoch of the tags; then their number at the time of the lease
//! 129..133 length of the validator
//! 133..137 number of tags; an entry with tags is a miss
//! 137..145 checksum (XXH3) of all bytes after the head
//! 145..153 checksum of all bytes before this one
//! 153..161 when the value has expired by request, on the clock of the store, in microseconds; 0 if it has not
//! 161..    payload, then the validator, then the tags
//! ```
//!
//! Numbers are little-endian. The head is complete: what is 0 in this version has its place, so that a later version has
//! the same format. See `docs/decisions/0080-checksum-of-entries.md`.
//!
//! **The first 41 bytes are the same in every format**, because scripts and readers of all versions compare them. The
//! layout includes the [`FORMAT`], so an entry of another format is one of another layout, whatever follows. The time of
//! expiry has no checksum, because a script writes it.

use super::{
    entry::{Audience, Entry, Kind, Lifetimes, Meta, Payload},
    token::Token,
};
use crate::{
    clock::Timestamp,
    key::{CacheKey, KeyHash},
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use std::{error, fmt, ops::Range, time::Duration};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// The number of this envelope format. It is part of the layout of an entry.
pub const FORMAT: u32 = 4;

/// The place of the key hash.
const HASH: Range<usize> = 17..33;
/// The place of the layout.
const LAYOUT: Range<usize> = 33..41;
/// Length of what the checksum of the head covers.
const COVERED: usize = 145;
const CHECKSUM: usize = 8;
const HEAD: usize = 161;
/// Length of the `Date`, and of the epoch and number of the tags.
const DATE_AND_TAGS: usize = 3 * size_of::<u64>();

/// The reason why bytes from a store are not the entry of a cache key. To the reader of the entry, each is a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnvelopeError {
    /// The bytes have changed since they were encoded, or never were an entry.
    Corrupt,
    /// The bytes are an entry of another cache key, for example because a reply belongs to another request.
    OtherKey,
    /// The bytes are an entry of this cache key in another [layout](CacheKey::layout).
    OtherLayout,
    /// The bytes use values that this format does not define.
    Unknown,
}

impl fmt::Display for EnvelopeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Corrupt => "the checksum of the entry is wrong",
            Self::OtherKey => "the entry belongs to another cache key",
            Self::OtherLayout => "the entry has another layout",
            Self::Unknown => "the entry has values that are not defined",
        })
    }
}

impl error::Error for EnvelopeError {}

impl Entry {
    /// Encodes the entry for storing it under this cache key. `offset` leads from the clock of this process to the
    /// clock of the store, in microseconds.
    #[must_use]
    pub fn to_envelope(&self, key: &CacheKey, offset: i64) -> Bytes {
        let length = self.encoded_len();
        let mut out = BytesMut::with_capacity(length);
        self.encode_into(key.layout(), key.hash(), offset, length, &mut out);
        out.freeze()
    }

    /// Encodes the entry for the cache key with this layout and hash, and writes the first `length` bytes. PERF: into a
    /// buffer of any kind, so that a large payload is not copied on the way to it.
    pub(crate) fn encode_into(&self, layout: u64, hash: KeyHash, offset: i64, length: usize, out: &mut impl BufMut) {
        let (meta, payload, mut encoded) = (self.meta(), self.payload(), [0; HEAD]);
        let mut head = &mut encoded[..];
        head.put_slice(&self.encoded_id());
        head.put_slice(hash.as_bytes());
        head.put_u64_le(layout);
        head.put_i64_le(meta.response_time.before(meta.cost).as_micros().saturating_add(offset));
        head.put_u64_le(meta.stamp);
        head.put_u64_le(saturated(meta.cost.as_micros()));
        let Lifetimes { fresh_for, stale_while_revalidate, stale_if_error, retain_for } = meta.lifetimes;
        for lifetime in [fresh_for, stale_while_revalidate, stale_if_error, retain_for] {
            head.put_u64_le(saturated(lifetime.as_millis()));
        }
        head.put_u64_le(match (meta.kind, meta.audience) {
            (Kind::Value, _) => meta.codec,
            (_, Audience::Everyone) => 0,
            (_, Audience::Group(number)) => number.into(),
        });
        head.put_bytes(0, DATE_AND_TAGS);
        // With a longer one the entry would be longer than any server permits.
        head.put_u32_le(payload.validator().len().try_into().unwrap_or(u32::MAX));
        seal(&mut encoded, checksum_of(payload));
        out.put(encoded.chain(&payload.bytes()[..]).chain(&payload.validator()[..]).take(length));
    }

    /// Returns the first bytes of the envelope: kind and id.
    pub(crate) fn encoded_id(&self) -> [u8; 17] {
        let mut start = [self.meta().kind as u8; 17];
        start[1..].copy_from_slice(self.meta().id.as_bytes());
        start
    }

    /// Returns the length of the envelope.
    pub(crate) fn encoded_len(&self) -> usize {
        HEAD + self.payload().size()
    }

    /// Returns the length of the beginning of the envelope, up to this many bytes of the payload.
    pub(crate) fn encoded_up_to(payload_bytes: usize) -> usize {
        HEAD + payload_bytes
    }

    /// Decodes what [`to_envelope`](Self::to_envelope) wrote; the payload is a slice of `bytes`.
    ///
    /// # Errors
    ///
    /// [`EnvelopeError`] if the bytes are anything else or belong to another cache key. Treat them as a miss.
    pub fn from_envelope(key: &CacheKey, bytes: &Bytes, offset: i64) -> Result<Self, EnvelopeError> {
        let is_of_key = bytes.get(HASH) == Some(key.hash().as_bytes());
        if is_of_key && layout_of(bytes) != Some(key.layout()) {
            return Err(EnvelopeError::OtherLayout);
        }
        let (head, rest) = bytes.split_at_checked(HEAD).ok_or(EnvelopeError::Corrupt)?;
        let checksum = |at: usize| (&head[at..]).get_u64_le();
        if xxh3_64(&head[..COVERED]) != checksum(COVERED) || xxh3_64(rest) != checksum(COVERED - CHECKSUM) {
            return Err(EnvelopeError::Corrupt);
        }
        if !is_of_key {
            return Err(EnvelopeError::OtherKey);
        }
        let kinds = [Kind::Value, Kind::HitForPass, Kind::DoNotStore];
        let kind = kinds.into_iter().find(|kind| *kind as u8 == head[0]).ok_or(EnvelopeError::Unknown)?;
        let (mut id, mut head) = ([0; 16], &head[1..]);
        head.copy_to_slice(&mut id);
        head.advance(LAYOUT.end - HASH.start);
        let begun = Timestamp::from_micros(head.get_i64_le().saturating_sub(offset));
        let stamp = head.get_u64_le();
        let cost = Duration::from_micros(head.get_u64_le());
        let mut lifetime = || Duration::from_millis(head.get_u64_le());
        let lifetimes = Lifetimes {
            fresh_for: lifetime(),
            stale_while_revalidate: lifetime(),
            stale_if_error: lifetime(),
            retain_for: lifetime(),
        };
        let (codec, audience) = match (kind, head.get_u64_le()) {
            (Kind::Value, codec) => (codec, Audience::Everyone),
            (_, 0) => (0, Audience::Everyone),
            (_, number) => (0, Audience::Group(number.try_into().map_err(|_| EnvelopeError::Unknown)?)),
        };
        head.advance(DATE_AND_TAGS);
        let end = bytes.len().checked_sub(head.get_u32_le() as usize).filter(|end| *end >= HEAD);
        let (Some(end), 0) = (end, head.get_u32_le()) else { return Err(EnvelopeError::Unknown) };
        let (id, response_time) = (Token::from_bytes(id), begun.after(cost));
        let meta = Meta { kind, id, stamp, response_time, cost, lifetimes, codec, audience };
        let entry = Self::new(meta, Payload::from(bytes.slice(HEAD..end)).with_validator(bytes.slice(end..)));
        head.advance(2 * CHECKSUM);
        let expired_at = head.get_i64_le();
        Ok(if expired_at == 0 {
            entry
        } else {
            // The offset is an estimate, and the entry is stale already.
            entry.expired(Timestamp::from_micros(expired_at.saturating_sub(offset)).min(Timestamp::now()))
        })
    }
}

/// Returns the layout of the entry in an envelope.
pub(crate) fn layout_of(envelope: &[u8]) -> Option<u64> {
    envelope.get(LAYOUT)?.try_into().ok().map(u64::from_le_bytes)
}

/// Returns the envelope with these bytes in place of its own and the right checksums, for the parsers of the tests.
#[cfg(any(test, feature = "_fuzz"))]
pub(crate) fn with_checksum(envelope: &[u8]) -> Bytes {
    let mut envelope = envelope.to_vec();
    _ = envelope.split_at_mut_checked(HEAD).map(|(head, rest)| seal(head, xxh3_64(rest)));
    envelope.into()
}

/// Returns the checksum of what follows the head.
fn checksum_of(payload: &Payload) -> u64 {
    if payload.validator().is_empty() {
        return xxh3_64(payload.bytes()); // PERF: without a state of 576 bytes
    }
    let mut checksum = Xxh3::new();
    checksum.update(payload.bytes());
    checksum.update(payload.validator());
    checksum.digest()
}

/// Writes both checksums into the head of an envelope: of what follows it, and its own.
fn seal(head: &mut [u8], of_the_rest: u64) {
    head[COVERED - CHECKSUM..COVERED].copy_from_slice(&of_the_rest.to_le_bytes());
    let checksum = xxh3_64(&head[..COVERED]);
    head[COVERED..COVERED + CHECKSUM].copy_from_slice(&checksum.to_le_bytes());
}

fn saturated(n: u128) -> u64 {
    u64::try_from(n).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::token::Inbox;
    use proptest::prelude::*;

    fn at(key: &str) -> CacheKey {
        CacheKey::new("sg", 0, key)
    }

    /// Kinds with the codec of a value, or the audience of a marker.
    fn described() -> impl Strategy<Value = (Kind, u64, Audience)> {
        let audience = prop_oneof![Just(Audience::Everyone), (1..=u32::MAX).prop_map(Audience::Group)];
        prop_oneof![
            any::<u64>().prop_map(|codec| (Kind::Value, codec, Audience::Everyone)),
            (prop_oneof![Just(Kind::HitForPass), Just(Kind::DoNotStore)], audience)
                .prop_map(|(kind, audience)| (kind, 0, audience)),
        ]
    }

    proptest! {
        #[test]
        fn envelope_decodes_to_the_entry_that_was_encoded(
            (kind, codec, audience) in described(), key in ".*", payload: Vec<u8>, validator: Vec<u8>,
            response_time in -1_i64 << 50..1 << 50, offset in -1_i64 << 50..1 << 50, cost in 0_u64..1 << 40,
            fresh in 0_u64..1 << 50, revalidate in 0_u64..1 << 50, error in 0_u64..1 << 50,
            retain_for in 0_u64..1 << 50, stamp: u64,
        ) {
            let lifetimes = Lifetimes {
                fresh_for: Duration::from_millis(fresh),
                stale_while_revalidate: Duration::from_millis(revalidate),
                stale_if_error: Duration::from_millis(error),
                retain_for: Duration::from_millis(retain_for),
            };
            let (id, response_time) = (Token::unique(Inbox::unique()), Timestamp::from_micros(response_time));
            let cost = Duration::from_micros(cost);
            let meta = Meta { kind, id, stamp, response_time, cost, lifetimes, codec, audience };
            let entry = Entry::new(meta, Payload::from(Bytes::from(payload)).with_validator(validator.into()));
            let bytes = entry.to_envelope(&at(&key), offset);
            prop_assert_eq!(&bytes[1..17], id.as_bytes());
            let read = Entry::from_envelope(&at(&key), &bytes, offset).expect("reads");
            prop_assert_eq!(read.meta(), entry.meta());
            prop_assert_eq!(read.payload().bytes(), entry.payload().bytes());
            prop_assert_eq!(read.payload().validator(), entry.payload().validator());
            let elsewhere = Entry::from_envelope(&at(&format!("{key}x")), &bytes, offset);
            prop_assert_eq!(elsewhere.err(), Some(EnvelopeError::OtherKey));
            let other = Entry::from_envelope(&at(&key).in_layout(16), &bytes, offset);
            prop_assert_eq!(other.err(), Some(EnvelopeError::OtherLayout));
        }

        #[test]
        fn envelope_of_garbage_is_a_miss(bytes: Vec<u8>, cut in 0_usize..HEAD) {
            let bytes = Bytes::from(bytes);
            prop_assert!(Entry::from_envelope(&at("k"), &bytes, 0).is_err());
            let lifetimes = Lifetimes::default();
            let (id, response_time) = (Token::unique(Inbox::unique()), Timestamp::from_micros(0));
            let (kind, cost, audience) = (Kind::Value, Duration::ZERO, Audience::Everyone);
            let meta = Meta { kind, id, stamp: 0, response_time, cost, lifetimes, codec: 0, audience };
            let whole = Entry::new(meta, Bytes::new()).to_envelope(&at("k"), 0);
            prop_assert!(Entry::from_envelope(&at("k"), &whole.slice(..cut), 0).is_err());
        }

        /// Only the time of expiry has no checksum. Seen to fail for the bits of times, cost, lifetimes and payload if the
        /// checksums are not compared.
        #[test]
        fn envelope_with_a_flipped_bit_is_corrupt(payload: Vec<u8>, validator: Vec<u8>, bit: prop::sample::Index) {
            let meta = Meta::new(Kind::Value, Token::unique(Inbox::unique()), Timestamp::from_micros(0));
            let payload = Payload::from(Bytes::from(payload)).with_validator(validator.into());
            let mut bytes = Entry::new(meta, payload).to_envelope(&at("k"), 0).to_vec();
            let bit = bit.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let expected = match bit / 8 {
                at if LAYOUT.contains(&at) => Some(EnvelopeError::OtherLayout),
                at if (COVERED + CHECKSUM..HEAD).contains(&at) => None,
                _ => Some(EnvelopeError::Corrupt),
            };
            prop_assert_eq!(Entry::from_envelope(&at("k"), &bytes.into(), 0).err(), expected);
        }

        /// Whatever the next format is, its entries are neither read nor taken for corrupt ones.
        #[test]
        fn envelope_of_the_next_format_is_of_another_layout(rest: Vec<u8>, id: [u8; 16], layout in 1_u64..) {
            let start = [&b"v"[..], &id, at("k").hash().as_bytes(), &layout.to_le_bytes()].concat();
            let bytes = Bytes::from([start, rest].concat());
            let refused = Entry::from_envelope(&at("k"), &bytes, 0).err();
            prop_assert_eq!(refused, Some(EnvelopeError::OtherLayout));
        }
    }

    /// Bytes that processes of an earlier version have stored.
    #[test]
    fn envelope_keeps_its_bytes() {
        let at = at("k");
        let head = |kind, number: u64, validator: u64| {
            let mut bytes = vec![kind];
            bytes.extend(b"abcdefghijklmnop");
            bytes.extend(at.hash().as_bytes());
            let (begun, stamp, cost) = (1_000_000, 1_700_000_000_123_456, 5_000);
            for number in [at.layout(), begun, stamp, cost, 10_000, 2_000, 3_000, 4_000, number] {
                bytes.extend(number.to_le_bytes());
            }
            let (date_and_tags, tag_count, checksums_and_expiry) = ([0; 24], [0; 4], [0; 24]);
            bytes.extend(date_and_tags);
            bytes.extend((validator as u32).to_le_bytes());
            bytes.extend(tag_count);
            bytes.extend(checksums_and_expiry);
            bytes
        };
        for (kind, number) in [(b'v', 7), (b'v', u64::MAX), (b'p', 0), (b'p', 1), (b's', 0)] {
            let bytes = with_checksum(&[&head(kind, number, 0), &b"payload"[..]].concat());
            let entry = Entry::from_envelope(&at, &bytes, 0).expect("reads");
            assert_eq!(entry.meta().id.as_bytes(), b"abcdefghijklmnop");
            assert_eq!(entry.meta().response_time, Timestamp::from_micros(1_005_000));
            assert_eq!(entry.meta().lifetimes.retain_for, Duration::from_secs(4));
            for length in [bytes.len(), Entry::encoded_up_to(3)] {
                let mut again = BytesMut::new();
                entry.encode_into(at.layout(), at.hash(), 0, length, &mut again);
                assert_eq!(again, bytes[..length], "{} {number}", char::from(kind));
            }
        }
        let read = |validator| {
            Entry::from_envelope(&at, &with_checksum(&[&head(b'v', 7, validator), &b"payload\"v1\""[..]].concat()), 0)
        };
        let validated = read(4).expect("reads");
        assert_eq!(
            (&validated.payload().bytes()[..], &validated.payload().validator()[..]),
            (&b"payload"[..], &b"\"v1\""[..])
        );
        assert_eq!(read(12).err(), Some(EnvelopeError::Unknown), "a validator that is longer than the rest");
    }

    #[test]
    fn envelope_with_extreme_numbers_neither_panics_nor_wraps() {
        let at = at("k");
        let mut bytes = vec![0xff; HEAD];
        bytes[LAYOUT].copy_from_slice(&at.layout().to_le_bytes());
        bytes[0] = b'v';
        bytes[129..137].fill(0); // neither validator nor tags
        bytes[HASH].copy_from_slice(at.hash().as_bytes());
        for offset in [i64::MIN, 0, i64::MAX] {
            let entry = Entry::from_envelope(&at, &with_checksum(&bytes), offset).expect("reads");
            let _ = (entry.is_retained(Timestamp::now()), entry.to_envelope(&at, offset));
        }
    }
}
