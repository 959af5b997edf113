//! Typed values to payload bytes and back.

use crate::error::BoxError;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::any::type_name;

/// How typed values are encoded. Another codec under the same key is a miss.
///
/// The default is `Bincode` where the feature `bincode` is on (it is by default), else `Postcard`, else `Json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Codec {
    /// Compact and fast, not self-describing: types with `#[serde(untagged)]`, `tag`, `flatten` or
    /// `skip_serializing_if` do not decode, and are refused with [`ErrorKind::Codec`](crate::ErrorKind::Codec) when
    /// they are stored for the first time.
    #[cfg(feature = "bincode")]
    Bincode,
    /// Like `Bincode`, and maintained.
    #[cfg(feature = "postcard")]
    Postcard,
    /// Self-describing: any serde type, legible in Redis, larger and slower.
    #[cfg(feature = "json")]
    Json,
}

impl Codec {
    /// Identifies codec and type. Bytes of one type may decode as another without complaint, so that is compared first.
    pub(crate) fn id<T>(self) -> u64 {
        let name = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => "bincode-2",
            #[cfg(feature = "postcard")]
            Self::Postcard => "postcard-1",
            #[cfg(feature = "json")]
            Self::Json => "json",
        };
        fnv1a(&[name, type_name::<T>()])
    }

    /// Encodes, and decodes again: a type that does not survive that would be a cache that never hits and says
    /// nothing.
    pub(crate) fn encode<T: Serialize + DeserializeOwned>(self, value: &T) -> Result<Bytes, BoxError> {
        let bytes = match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => bincode::serde::encode_to_vec(value, bincode::config::standard())?,
            #[cfg(feature = "postcard")]
            Self::Postcard => postcard::to_stdvec(value)?,
            #[cfg(feature = "json")]
            Self::Json => serde_json::to_vec(value)?,
        };
        if bytes.len() <= MAX_PAYLOAD {
            self.decode::<T>(&bytes)?;
        }
        Ok(bytes.into())
    }

    pub(crate) fn decode<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, BoxError> {
        match self {
            #[cfg(feature = "bincode")]
            Self::Bincode => {
                let (value, read) = from_bincode(bytes)?;
                whole(value, bytes.len() - read)
            }
            #[cfg(feature = "postcard")]
            Self::Postcard => {
                let (value, rest) = postcard::take_from_bytes(bytes)?;
                whole(value, rest.len())
            }
            #[cfg(feature = "json")]
            Self::Json => Ok(serde_json::from_slice(bytes)?),
        }
    }
}

impl Default for Codec {
    #[allow(unreachable_code, reason = "the first codec that is compiled in")]
    fn default() -> Self {
        #[cfg(feature = "bincode")]
        return Self::Bincode;
        #[cfg(feature = "postcard")]
        return Self::Postcard;
        #[cfg(feature = "json")]
        return Self::Json;
    }
}

/// Trailing bytes mean that something else was encoded.
#[cfg(any(feature = "bincode", feature = "postcard"))]
fn whole<T>(value: T, trailing: usize) -> Result<T, BoxError> {
    match trailing {
        0 => Ok(value),
        _ => Err(format!("{trailing} bytes too many").into()),
    }
}

/// The limit bounds what a hostile length prefix can make the decoder allocate. It counts memory and not input, and a
/// byte of input may be an `u128`: what was encoded always decodes.
#[cfg(feature = "bincode")]
fn from_bincode<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, usize), bincode::error::DecodeError> {
    let config = bincode::config::standard();
    match bytes.len() {
        0..=SMALL_PAYLOAD => {
            bincode::serde::decode_from_slice(bytes, config.with_limit::<{ size_of::<u128>() * SMALL_PAYLOAD }>())
        }
        _ => bincode::serde::decode_from_slice(bytes, config.with_limit::<{ size_of::<u128>() * MAX_PAYLOAD }>()),
    }
}

/// Up to here a payload can claim no more than a mebibyte.
#[cfg(feature = "bincode")]
const SMALL_PAYLOAD: usize = 64 << 10;

/// The largest payload that can be asked for.
const MAX_PAYLOAD: usize = 16 << 20;

/// The same in every build, unlike the hashers of the standard library.
fn fnv1a(parts: &[&str]) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    parts.iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| step(part.bytes().fold(hash, step), 0))
}

#[cfg(all(test, feature = "bincode"))]
mod tests {
    use super::*;

    /// With a limit of as many bytes as a payload may have, the last two were errors.
    #[test]
    fn what_takes_more_room_decoded_than_encoded_decodes() {
        for length in [SMALL_PAYLOAD - 3, SMALL_PAYLOAD, 3 << 20] {
            let small = vec![7_u64; length];
            let bytes = Codec::Bincode.encode(&small).expect("survives");
            assert!(bytes.len() <= length + 5, "each takes a byte");
        }
        let smallest = vec![0_u128; SMALL_PAYLOAD - 3];
        assert_eq!(Codec::Bincode.encode(&smallest).expect("survives").len(), SMALL_PAYLOAD);
    }
}
