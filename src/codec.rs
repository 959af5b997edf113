//! Encodes typed values as payload bytes, and decodes them.

#[cfg(any(feature = "bincode", feature = "postcard"))]
mod skipped_fields;
pub(crate) mod value_codec;

use crate::{error::BoxError, fingerprint, layout::fnv1a, sync::mutex::Mutex, telemetry};
use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned};
use std::{any, cell::RefCell, collections::BTreeMap, time::Duration};

thread_local! {
    /// The types that this thread has met.
    static KNOWN_IDS: RefCell<Vec<(Encoded, u64)>> = const { RefCell::new(Vec::new()) };
}

/// A type with its codec, and whether it has a fingerprint.
type Encoded = (any::TypeId, Codec, bool);

/// The encoding of typed values. An entry of another codec under the same key is a miss.
///
/// **A value that does not encode and decode again is not cached.** Its caller gets it from the origin, and no request
/// fails for that. Each other request for the key then **makes its own call of the origin** without waiting, as after
/// [`private`](crate::FetchOutcome::private). An event of level `ERROR` names each such type once, and
/// [`Stats::codec_failures`](crate::Stats::codec_failures) counts the values. Use `Json`, or change the serde
/// attributes of the type.
///
/// The default is `Bincode` if the feature `bincode` is on (the default), otherwise `Postcard`, otherwise `Json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Compact and fast, but not self-describing. Values of types with `#[serde(untagged)]`, `tag` or `flatten` do not
    /// decode, and values that leave out a field by `skip_serializing_if` are refused: neither is cached.
    ///
    /// **A type must serialize what it deserializes.** A field with `skip_serializing` but without `skip_deserializing`, an
    /// element of a tuple struct with `skip_serializing_if`, or hand-written code may shift the bytes, so that they decode as
    /// another value without an error. Use `Json` for such types.
    #[cfg(feature = "bincode")]
    #[default]
    Bincode,
    /// Like `Bincode`, with the same limits, and still maintained.
    #[cfg(feature = "postcard")]
    #[cfg_attr(not(feature = "bincode"), default)]
    Postcard,
    /// Self-describing: works for any serde type and is legible in Redis, but larger and slower.
    #[cfg(feature = "json")]
    #[cfg_attr(not(any(feature = "bincode", feature = "postcard")), default)]
    Json,
}

impl Codec {
    /// Returns a number that identifies the codec and the type: by the structure of the type if `has_fingerprint`, and by
    /// its name otherwise. It is compared before decoding, because bytes of one type may decode as another without an
    /// error.
    ///
    /// PERF: a type is walked once in a process. Each thread remembers its types, the last one first, because a hit must
    /// not write to memory that threads share.
    pub(crate) fn id_of<T: DeserializeOwned + 'static>(self, has_fingerprint: bool) -> u64 {
        let key = (any::TypeId::of::<T>(), self, has_fingerprint);
        let known = KNOWN_IDS.try_with(|known| {
            let mut known = known.borrow_mut();
            let at = known.iter().position(|(of, _)| *of == key)?;
            known.swap(0, at);
            Some(known[0].1)
        });
        known.ok().flatten().unwrap_or_else(|| self.new_id::<T>(key))
    }

    /// Returns the number for a type that this thread does not know yet.
    #[cold]
    fn new_id<T: DeserializeOwned>(self, key: Encoded) -> u64 {
        static IDS: Mutex<BTreeMap<Encoded, u64>> = Mutex::new(BTreeMap::new());
        let known = IDS.lock().get(&key).copied();
        let id = known.unwrap_or_else(|| {
            // A panic of `T::deserialize`, which does not expect invented values, must not end the process.
            let id = if key.2 && cfg!(panic = "unwind") {
                fnv1a(&[self.name(), &fingerprint::of::<T>(self.is_human_readable()).to_string()])
            } else {
                telemetry::no_fingerprint(any::type_name::<T>());
                fnv1a(&[self.name(), any::type_name::<T>()])
            };
            IDS.lock().insert(key, id);
            id
        });
        let _ = KNOWN_IDS.try_with(|known| known.borrow_mut().push((key, id)));
        id
    }

    const fn is_human_readable(self) -> bool {
        match self {
            #[cfg(feature = "json")]
            Self::Json => true,
            #[cfg(any(feature = "bincode", feature = "postcard"))]
            _ => false,
        }
    }

    /// Returns what a developer can do about a type whose values do not survive the codec.
    pub(crate) const fn way_out(self) -> &'static str {
        match self.is_human_readable() {
            true => "let the type deserialize what it serializes; keys of maps must be strings or numbers",
            false => {
                "use `Codec::Json` (feature `json`), or remove `skip_serializing_if`, `flatten`, `tag` and `untagged` \
                 from the type"
            }
        }
    }

    const fn name(self) -> &'static str {
        match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => "bincode-2",
            #[cfg(feature = "postcard")]
            Self::Postcard => "postcard-1",
            #[cfg(feature = "json")]
            Self::Json => "json",
        }
    }

    /// Encodes a value, and checks that it decodes. Otherwise the cache would never hit, without any sign of it.
    pub(crate) fn encode<T: Serialize + DeserializeOwned>(self, value: &T) -> Result<Bytes, BoxError> {
        let bytes = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => bincode::serde::encode_to_vec(value, bincode::config::standard())?,
            #[cfg(feature = "postcard")]
            Self::Postcard => postcard::to_stdvec(value)?,
            #[cfg(feature = "json")]
            Self::Json => serde_json::to_vec(value)?,
        };
        #[cfg(any(feature = "bincode", feature = "postcard"))]
        if !self.is_human_readable() {
            skipped_fields::refuse(value)?;
        }
        self.decode::<T>(&bytes)?;
        Ok(bytes.into())
    }

    pub(crate) fn decode<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, BoxError> {
        let (value, trailing) = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => from_bincode(bytes).map(|(value, read)| (value, bytes.len() - read))?,
            #[cfg(feature = "postcard")]
            Self::Postcard => postcard::take_from_bytes(bytes).map(|(value, rest)| (value, rest.len()))?,
            #[cfg(feature = "json")]
            Self::Json => (serde_json::from_slice(bytes)?, 0),
        };
        match trailing {
            0 => Ok(value),
            _ => Err(format!("{trailing} trailing bytes: another type was encoded").into()),
        }
    }
}

/// Serializes a time as seconds.
pub(crate) fn serialize_seconds<S: Serializer>(time: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(time.as_secs_f64())
}

/// Decodes under a limit, which bounds what a hostile length prefix can make the decoder allocate. The limit counts
/// memory, not input, and one byte of input may become a `u128`, so every value of up to 16 MiB decodes. The check in
/// `encode` shows whether a larger one does.
#[cfg(feature = "bincode")]
fn from_bincode<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), bincode::error::DecodeError> {
    let config = bincode::config::standard();
    match bytes.len() {
        0..=SMALL_PAYLOAD => {
            bincode::serde::decode_from_slice(bytes, config.with_limit::<{ size_of::<u128>() * SMALL_PAYLOAD }>())
        }
        _ => bincode::serde::decode_from_slice(bytes, config.with_limit::<MAX_ALLOCATION>()),
    }
}

/// Maximum length in bytes of a payload that may allocate at most 1 MiB.
#[cfg(feature = "bincode")]
const SMALL_PAYLOAD: usize = 64 << 10;

/// Maximum memory in bytes that a larger payload may allocate.
#[cfg(feature = "bincode")]
const MAX_ALLOCATION: usize = 256 << 20;

#[cfg(all(test, feature = "bincode"))]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Skips {
        #[serde(default, skip_serializing_if = "is_zero")]
        a: u64,
        v: Vec<u8>,
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
    const fn is_zero(number: &u64) -> bool {
        *number == 0
    }

    /// Seen to fail: the bytes `3 2 7 9` decode as `a: 3, v: [7, 9]`.
    #[test]
    fn encode_refuses_a_value_that_leaves_out_a_field() {
        let values = |a| vec![Some((1_u8, Skips { a, v: vec![2, 7, 9] }))];
        let whole = Codec::Bincode.encode(&values(1)).expect("survives");
        assert_eq!(Codec::Bincode.decode::<Vec<Option<(u8, Skips)>>>(&whole).expect("decodes"), values(1));
        let error = Codec::Bincode.encode(&values(0)).expect_err("would decode as another value");
        assert_eq!(error.to_string(), "`skip_serializing_if` leaves out the field `a`");
        #[cfg(feature = "postcard")]
        Codec::Postcard.encode(&values(0)).expect_err("would decode as another value");
        #[cfg(feature = "json")]
        Codec::Json.encode(&values(0)).expect("JSON has the names of the fields");
    }

    /// Seen to fail for the last two lengths when the limit was the number of bytes of the largest payload.
    #[test]
    fn decode_accepts_values_larger_than_their_encoding() {
        for length in [SMALL_PAYLOAD - 3, SMALL_PAYLOAD, 3 << 20] {
            let small = vec![7_u64; length];
            let bytes = Codec::Bincode.encode(&small).expect("survives");
            assert!(bytes.len() <= length + 5, "each takes a byte");
        }
        let smallest = vec![0_u128; SMALL_PAYLOAD - 3];
        assert_eq!(Codec::Bincode.encode(&smallest).expect("survives").len(), SMALL_PAYLOAD);
    }
}
