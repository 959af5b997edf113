//! Types whose values are bytes or text: stored as they are, whatever the codec.
//!
//! PERF: serde sees a sequence in a `Vec<u8>`, and visits each byte of it.

use crate::error::BoxError;
use bytes::Bytes;
use std::any::{Any, TypeId};

/// Returns the name of the encoding, if the type is one of these. Any bytes are bytes, but not any bytes are text.
pub(super) fn encoding_of<T: 'static>() -> Option<&'static str> {
    let of = TypeId::of::<T>();
    if of == TypeId::of::<String>() {
        return Some("text");
    }
    (of == TypeId::of::<Vec<u8>>() || of == TypeId::of::<Bytes>()).then_some("bytes")
}

/// Returns a copy of the value's bytes. A handle would keep the whole buffer that the value may be a small part of.
pub(super) fn encode<T: 'static>(value: &T) -> Option<Bytes> {
    let value: &dyn Any = value;
    let text = value.downcast_ref().map(String::as_bytes);
    let bytes = text
        .or_else(|| value.downcast_ref().map(Vec::<u8>::as_slice))
        .or_else(|| value.downcast_ref().map(Bytes::as_ref));
    bytes.map(Bytes::copy_from_slice)
}

/// Returns the value of these bytes. `None` for a value of another type.
pub(super) fn decode<T: 'static>(bytes: &[u8]) -> Result<Option<T>, BoxError> {
    let mut value: Option<T> = None;
    let place: &mut dyn Any = &mut value;
    if let Some(place) = place.downcast_mut() {
        *place = Some(str::from_utf8(bytes)?.to_owned());
    } else if let Some(place) = place.downcast_mut() {
        *place = Some(bytes.to_vec());
    } else if let Some(place) = place.downcast_mut() {
        *place = Some(Bytes::copy_from_slice(bytes));
    }
    Ok(value)
}
