//! Doors to what takes in bytes from outside, for `tests/fuzz` and `fuzz/`. Not for users: all of this may change or go
//! with any release.

use crate::{
    codec::Codec,
    guard::StampedeGuard,
    key::{Address, Key},
    store::redis::{entry_names, lease_name},
};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

pub use crate::http::fuzzing::{
    age, decode_head, directives, encode_head, http_key, may_answer, may_store, range, selected, selecting,
};

/// A value as a payload.
pub fn encode<T: Serialize + DeserializeOwned>(codec: Codec, value: &T) -> Option<Bytes> {
    codec.encode(value).ok()
}

/// A payload as a value.
#[must_use]
pub fn decode<T: DeserializeOwned>(codec: Codec, payload: &[u8]) -> Option<T> {
    codec.decode(payload).ok()
}

/// Where the guard looks for that key.
#[must_use]
pub fn address(guard: &StampedeGuard, key: Key) -> Address {
    guard.place(key).at
}

/// Every name that the address has in Redis, the lease's first.
#[must_use]
pub fn redis_names(at: &Address) -> Vec<String> {
    let mut names = vec![lease_name(at)];
    names.extend(entry_names(at));
    names
}
