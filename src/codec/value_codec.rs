//! The encoding of one type of values.

use super::Codec;
use crate::error::BoxError;
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::{any, sync::Arc};

/// Encodes the values of one type, and decodes them. [`Codec`] does so for serde types. Implement it for other types,
/// for another format, or to compress or encrypt what another codec writes:
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::{BoxError, Codec, StampedeGuard, ValueCodec};
///
/// /// What the other codec writes, with a mask over each byte. Not secret: it shows where a cipher goes.
/// struct Masked<C>(C, u8);
///
/// impl<V, C: ValueCodec<V>> ValueCodec<V> for Masked<C> {
///     fn id(&self) -> u64 {
///         self.0.id().rotate_left(1) ^ u64::from(self.1) // another mask is another encoding
///     }
///
///     fn encode(&self, value: &V) -> Result<bytes::Bytes, BoxError> {
///         Ok(self.0.encode(value)?.iter().map(|byte| byte ^ self.1).collect())
///     }
///
///     fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
///         self.0.decode(&bytes.iter().map(|byte| byte ^ self.1).collect::<Vec<_>>())
///     }
/// }
///
/// let guard = StampedeGuard::in_memory();
/// let names = guard.cache_with::<String>("name", Masked(Codec::default(), 0x5a));
/// assert_eq!(names.fetch(42, async || Ok::<_, std::io::Error>("Ann".to_owned())).await?, "Ann");
/// # guard.drain().await;
/// assert_eq!(names.get(42).await?.as_deref(), Some("Ann"));
/// # Ok(()) }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
///
/// `tests/ecosystem/codecs.rs` of the repository has codecs for prost messages, MessagePack, lz4 and encryption, to copy.
///
/// A value that does not encode reaches its caller and is not stored: see [`Codec`]. Bytes that do not decode are a miss.
/// A panic of `encode` is a panic of the fetch, one of `decode` a panic of the caller.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot encode `{V}`",
    label = "is no `ValueCodec<{V}>`",
    note = "a `Codec` encodes types that implement `Serialize` and `DeserializeOwned`: derive serde's `Serialize` and \
            `Deserialize` for `{V}`",
    note = "for a type without serde implement `ValueCodec<{V}>` for a type of your own, and pass it to \
            `StampedeGuard::cache_with`"
)]
pub trait ValueCodec<V>: Send + Sync + 'static {
    /// Returns a number that tells apart encodings: entries with another number are a miss. Change it whenever bytes of
    /// one version may not decode, or decode as another value, in the other. Processes with different numbers have
    /// entries of their own, as with [`schema_version`](crate::StampedeGuard::schema_version).
    fn id(&self) -> u64;

    /// Encodes the value. What is returned must decode again.
    ///
    /// # Errors
    ///
    /// The value cannot be encoded.
    fn encode(&self, value: &V) -> Result<Bytes, BoxError>;

    /// Decodes what [`encode`](Self::encode) has returned. The bytes come from the store. They have the checksum of
    /// their fill, which does not prove their author.
    ///
    /// # Errors
    ///
    /// The bytes are not the encoding of a value.
    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError>;

    /// Returns what a [`Codec`] is for `V`, so that no call looks it up.
    #[doc(hidden)]
    fn of_type(&self, _has_fingerprint: bool) -> Option<Arc<dyn ValueCodec<V>>> {
        None
    }

    /// Reports whether these bytes are the encoding of a value that is `None`.
    #[doc(hidden)]
    fn is_none(&self, _encoded: &[u8]) -> bool {
        false
    }

    /// Returns the name of the codec, and what a developer can do about values that do not encode.
    #[doc(hidden)]
    fn describe(&self) -> (String, &'static str) {
        (any::type_name::<Self>().to_owned(), "let `ValueCodec::encode` succeed for each value")
    }
}

impl<V: Serialize + DeserializeOwned + 'static> ValueCodec<V> for Codec {
    fn id(&self) -> u64 {
        ValueCodec::<V>::id(&Self::of_type::<V>(*self, true))
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        Self::of_type::<V>(*self, true).encode(value)
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
        Self::of_type::<V>(*self, true).decode(bytes)
    }

    fn of_type(&self, has_fingerprint: bool) -> Option<Arc<dyn ValueCodec<V>>> {
        Some(Arc::new(Self::of_type::<V>(*self, has_fingerprint)))
    }
}
