//! Encodes typed values as payload bytes, and decodes them.

mod losses;
mod raw;
pub(crate) mod serde_codec;
pub(crate) mod value_codec;

use crate::error::BoxError;
use bytes::Bytes;
use serde::{Serialize, Serializer, de::DeserializeOwned};
use std::time::Duration;

/// The encoding of typed values. An entry of another codec under the same key is a miss.
///
/// Any serde type can be stored. What a codec does with a value is decided by its type, so that all processes decide alike:
/// - `Vec<u8>`, `Bytes` and `String` are stored as they are, whatever the codec.
/// - `Bincode` and `Postcard` encode a type as JSON if its `Deserialize` asks for values of any kind, which they cannot
///   read back: a type with `#[serde(untagged)]`, `tag` or `flatten`, or `serde_json::Value`, also deep inside. This needs
///   the feature `json` (on by default) and the [fingerprint](crate::StampedeGuard::fingerprint) of the type.
///
/// **A value that does not encode and decode again is not cached.** Its caller gets it from the origin, and no request
/// fails for that. Each other request for the key then **makes its own call of the origin** without waiting, as after
/// [`private`](crate::FetchOutcome::private). An event of level `ERROR` names each such type once, and
/// [`Stats::codec_failures`](crate::Stats::codec_failures) counts the values. Use `Json`, or change the serde
/// attributes of the type. Each value is checked for what its codec would lose, except for fields that serde does not
/// serialize (`skip`; in JSON also `skip_serializing` with `default`): they have their defaults after a hit. The first value of a type in a process and
/// then one in 64 is decoded before it is stored; any other that does not decode is a miss.
///
/// The default is `Bincode` if the feature `bincode` is on (the default), otherwise `Postcard`, otherwise `Json`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Compact and fast, but not self-describing. A value that leaves out a field by `skip_serializing_if` is refused, and
    /// not cached.
    ///
    /// **A type must serialize what it deserializes.** A field with `skip_serializing` but without `skip_deserializing`, an
    /// element of a tuple struct with `skip_serializing_if`, an enum with `skip` on a variant that others follow (serde
    /// counts it when it serializes only), or hand-written code may shift the bytes, so that they decode as another value
    /// without an error. Use `Json` for such types.
    ///
    /// The depth of values is not limited, so whoever can write to Redis can exhaust the stack by an entry of a type that
    /// contains itself. `Json` ends at a depth of 128.
    #[cfg(feature = "bincode")]
    #[default]
    Bincode,
    /// Like `Bincode`, with the same limits, and still maintained.
    #[cfg(feature = "postcard")]
    #[cfg_attr(not(feature = "bincode"), default)]
    Postcard,
    /// Self-describing: works for any serde type and is legible in Redis, but larger and slower. JSON has no NaN and no
    /// infinity, and `Some` of an empty value would be `null`, as `None` is: a value with one of these is refused, and not
    /// cached.
    #[cfg(feature = "json")]
    #[cfg_attr(not(any(feature = "bincode", feature = "postcard")), default)]
    Json,
}

impl Codec {
    const fn is_human_readable(self) -> bool {
        match self {
            #[cfg(feature = "json")]
            Self::Json => true,
            #[cfg(any(feature = "bincode", feature = "postcard"))]
            _ => false,
        }
    }

    /// Encodes a value, and refuses one whose bytes may decode as another value.
    pub(crate) fn serialize<T: Serialize>(self, value: &T) -> Result<Bytes, BoxError> {
        let bytes = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => bincode::serde::encode_to_vec(value, bincode::config::standard())?,
            #[cfg(feature = "postcard")]
            Self::Postcard => postcard::to_stdvec(value)?,
            #[cfg(feature = "json")]
            Self::Json => serde_json::to_vec(value)?,
        };
        losses::refuse(value, self.is_human_readable())?;
        Ok(bytes.into())
    }

    pub(crate) fn deserialize<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, BoxError> {
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
        let whole = Codec::Bincode.serialize(&values(1)).expect("encodes");
        assert_eq!(Codec::Bincode.deserialize::<Vec<Option<(u8, Skips)>>>(&whole).expect("decodes"), values(1));
        let error = Codec::Bincode.serialize(&values(0)).expect_err("would decode as another value");
        assert_eq!(error.to_string(), "`skip_serializing_if` leaves out the field `a`");
        #[cfg(feature = "postcard")]
        Codec::Postcard.serialize(&values(0)).expect_err("would decode as another value");
        #[cfg(feature = "json")]
        Codec::Json.serialize(&values(0)).expect("JSON has the names of the fields");
    }

    /// Seen to fail for the last two lengths when the limit was the number of bytes of the largest payload.
    #[test]
    fn decode_accepts_values_larger_than_their_encoding() {
        for length in [SMALL_PAYLOAD - 3, SMALL_PAYLOAD, 3 << 20] {
            let small = vec![7_u64; length];
            let bytes = Codec::Bincode.serialize(&small).expect("encodes");
            assert!(bytes.len() <= length + 5, "each takes a byte");
            assert_eq!(Codec::Bincode.deserialize::<Vec<u64>>(&bytes).expect("decodes"), small);
        }
        let smallest = vec![0_u128; SMALL_PAYLOAD - 3];
        let bytes = Codec::Bincode.serialize(&smallest).expect("encodes");
        assert_eq!(Codec::Bincode.deserialize::<Vec<u128>>(&bytes).expect("decodes"), smallest);
        assert_eq!(bytes.len(), SMALL_PAYLOAD);
    }
}
