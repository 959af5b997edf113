//! The two forms of a typed answer: an owned value, and a value that callers share.

use crate::{
    codec::Codec,
    store::entry::{Payload, SharedValue},
};
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// The form in which a caller gets a value of type `T`.
pub(crate) trait Answer<T>: Sized + Send {
    fn new(value: T) -> Self;
    fn decode(codec: Codec, payload: &Payload) -> Option<Self>;
    /// Attaches the value to its payload, if callers share it.
    fn attached_to(&self, payload: Payload) -> Payload;
    /// Returns the value for waiters that share it without its bytes. `None` if each caller needs a value of its own.
    fn to_shared(&self) -> Option<SharedValue>;
    /// Returns the value that [`to_shared`](Self::to_shared) of another caller has shared.
    fn of_shared(value: &SharedValue) -> Option<Self>;
}

impl<T: DeserializeOwned + Send + 'static> Answer<T> for T {
    fn new(value: T) -> Self {
        value
    }

    fn decode(codec: Codec, payload: &Payload) -> Option<Self> {
        codec.decode(payload.bytes()).ok()
    }

    fn attached_to(&self, payload: Payload) -> Payload {
        payload
    }

    fn to_shared(&self) -> Option<SharedValue> {
        None
    }

    fn of_shared(_: &SharedValue) -> Option<Self> {
        None
    }
}

impl<T: DeserializeOwned + Send + Sync + 'static> Answer<T> for Arc<T> {
    fn new(value: T) -> Self {
        Self::new(value)
    }

    fn decode(codec: Codec, payload: &Payload) -> Option<Self> {
        payload.decoded(|bytes| codec.decode(bytes).ok())
    }

    fn attached_to(&self, payload: Payload) -> Payload {
        payload.with_decoded(self.clone())
    }

    fn to_shared(&self) -> Option<SharedValue> {
        Some(self.clone())
    }

    fn of_shared(value: &SharedValue) -> Option<Self> {
        value.clone().downcast().ok()
    }
}
