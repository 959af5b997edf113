//! How the values of one serde type are encoded.

use super::{Codec, raw, value_codec::ValueCodec};
use crate::{error::BoxError, fingerprint, layout::fnv1a, sync::mutex::Mutex, telemetry};
use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};
use std::{
    any,
    borrow::Borrow,
    cell::RefCell,
    collections::BTreeMap,
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

/// What a [`Codec`] is for one type. Decided once in a process, by the type and never by a value, so that all processes
/// decide alike.
///
/// PERF: a handle of one word, because each hit copies it.
#[derive(Clone, Copy)]
pub(crate) struct SerdeCodec(&'static Decision);

struct Decision {
    codec: Codec,
    id: u64,
    /// Whether a value may be `None`.
    is_optional: bool,
    /// Number of values that were encoded.
    encoded: AtomicU32,
}

/// A type with its codec, and whether it has a fingerprint.
type Encoded = (any::TypeId, Codec, bool);

thread_local! {
    /// The types that this thread has met.
    static KNOWN: RefCell<Vec<(Encoded, SerdeCodec)>> = const { RefCell::new(Vec::new()) };
}

impl Codec {
    /// Returns what this codec is for a type.
    ///
    /// PERF: a type is walked once in a process. Each thread remembers its types, the last one first, because a hit must
    /// not write to memory that threads share.
    pub(crate) fn of_type<T: DeserializeOwned + 'static>(self, has_fingerprint: bool) -> SerdeCodec {
        let key = (any::TypeId::of::<T>(), self, has_fingerprint);
        let known = KNOWN.try_with(|known| {
            let mut known = known.borrow_mut();
            let at = known.iter().position(|(of, _)| *of == key)?;
            known.swap(0, at);
            Some(known[0].1)
        });
        known.ok().flatten().unwrap_or_else(|| self.of_new_type::<T>(key))
    }

    /// Returns what this codec is for a type that this thread does not know yet.
    #[cold]
    fn of_new_type<T: DeserializeOwned + 'static>(self, key: Encoded) -> SerdeCodec {
        static DECISIONS: Mutex<BTreeMap<Encoded, SerdeCodec>> = Mutex::new(BTreeMap::new());
        let known = DECISIONS.lock().get(&key).copied();
        let decision = known.unwrap_or_else(|| {
            let decision = SerdeCodec(Box::leak(Box::new(self.decide::<T>(key.2))));
            *DECISIONS.lock().entry(key).or_insert(decision)
        });
        let _ = KNOWN.try_with(|known| known.borrow_mut().push((key, decision)));
        decision
    }

    /// Decides how the values of a type are encoded. The number tells apart encodings: by the structure of the type if
    /// `has_fingerprint`, and by its name otherwise. It is compared before decoding, because bytes of one type may decode
    /// as another without an error.
    fn decide<T: DeserializeOwned + 'static>(self, has_fingerprint: bool) -> Decision {
        let name = format!("{self:?}");
        let (id, is_optional) = if let Some(encoding) = raw::encoding_of::<T>() {
            (fnv1a(&[encoding]), false)
        } else if has_fingerprint && cfg!(panic = "unwind") {
            let walk = fingerprint::walk::<T>(self.is_human_readable());
            #[cfg(feature = "json")]
            if walk.reads_any && self != Self::Json {
                return Self::Json.decide::<T>(true);
            }
            (fnv1a(&[&name, &walk.fingerprint().to_string()]), walk.is_optional())
        } else {
            // A panic of `T::deserialize`, which does not expect invented values, must not end the process.
            telemetry::no_fingerprint(any::type_name::<T>());
            (fnv1a(&[&name, any::type_name::<T>()]), false)
        };
        Decision { codec: self, id, is_optional, encoded: AtomicU32::new(0) }
    }
}

impl<V: Serialize + DeserializeOwned + 'static> ValueCodec<V> for SerdeCodec {
    fn id(&self) -> u64 {
        self.0.id
    }

    /// Encodes a value. The first value of each type and one in 64 must decode: otherwise the cache would never hit,
    /// without any sign of it. After a value that does not, the next one must.
    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        if let Some(bytes) = raw::encode(value) {
            return Ok(bytes);
        }
        let bytes = self.0.codec.serialize(value)?;
        if self.0.encoded.load(Relaxed).is_multiple_of(VALUES_PER_TRIAL) || bytes.len() > MAX_UNTRIED {
            self.0.codec.deserialize::<V>(&bytes)?;
        }
        self.0.encoded.fetch_add(1, Relaxed);
        Ok(bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Result<V, BoxError> {
        match raw::decode(bytes)? {
            Some(value) => Ok(value),
            None => self.0.codec.deserialize(bytes),
        }
    }

    fn is_none(&self, encoded: &[u8]) -> bool {
        let none: &[u8] = if self.0.codec.is_human_readable() { b"null" } else { &[0] };
        self.0.is_optional && encoded == none
    }

    fn describe(&self) -> (String, &'static str) {
        let way_out = match self.0.codec.is_human_readable() {
            true => "JSON has no NaN, infinity, `Some(())` or composite keys; a type must read what it writes",
            false => {
                "remove `skip_serializing(_if)`, `flatten`, `tag`, `untagged`, and `skip` of variants from the type, or use \
                 `Cache::codec(Codec::Json)` (feature `json`), where a field that is not serialized has its `default`"
            }
        };
        (format!("{:?}", self.0.codec), way_out)
    }
}

impl<V: Serialize + DeserializeOwned + 'static> Borrow<dyn ValueCodec<V>> for SerdeCodec {
    fn borrow(&self) -> &(dyn ValueCodec<V> + 'static) {
        self
    }
}

/// Number of values of a type of which one is decoded before it is stored.
const VALUES_PER_TRIAL: u32 = 64;
/// Maximum length in bytes of a payload that decodes within the limits of every codec, so that it may be stored untried.
const MAX_UNTRIED: usize = 16 << 20;
