//! Entry points for `tests/fuzz` and `fuzz/` to the parsers of external bytes. Not a public API: all of it may change
//! or disappear with any release.

use crate::{
    codec::Codec,
    guard::StampedeGuard,
    key::{CacheKey, Key},
    redis::names::{entry_names, lease_name},
    store::envelope,
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

pub use crate::http::fuzzing::{
    age, decode_head, directives, encode_head, http_key, may_answer, may_store, range, selecting_fields,
    selecting_values,
};

/// Encodes a value.
pub fn encode<T: Serialize>(codec: Codec, value: &T) -> Option<Bytes> {
    codec.serialize(value).ok()
}

/// Decodes a value.
#[must_use]
pub fn decode<T: DeserializeOwned>(codec: Codec, payload: &[u8]) -> Option<T> {
    codec.deserialize(payload).ok()
}

/// Returns an envelope with this content and the right checksum.
#[must_use]
pub fn with_checksum(content: &[u8]) -> Bytes {
    envelope::with_checksum(content)
}

/// Returns the full cache key that the guard uses for `key`.
#[must_use]
pub fn address(guard: &StampedeGuard, key: Key) -> CacheKey {
    guard.resource_in(crate::telemetry::FrontEnd::Fetch, 0, key).key
}

/// Returns every name of the cache key in Redis, the lease first.
#[must_use]
pub fn redis_names(at: &CacheKey) -> Vec<String> {
    let mut names = vec![lease_name(at)];
    names.extend(entry_names(at));
    names
}
