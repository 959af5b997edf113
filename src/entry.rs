//! A stored entry: what is known about it, its payload, and a slot for what the payload decodes to.

mod envelope;

use crate::{clock::Timestamp, key::Address, lease::Token};
use bytes::Bytes;
use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

pub use envelope::FORMAT;

/// A value that callers of one process share without encoding it.
pub type Live = Arc<dyn Any + Send + Sync>;

/// What a store keeps under one [`Address`](crate::store::Address). Cheap to clone.
#[derive(Clone, Debug)]
pub struct Entry {
    meta: Meta,
    payload: Payload,
}

/// An encoded value, which remembers what it decodes to: a store that keeps entries in the process is a cache of
/// decoded values as well. Cheap to clone.
#[derive(Clone)]
pub struct Payload {
    bytes: Bytes,
    live: Arc<OnceLock<Live>>,
}

/// What is known about an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// What the entry says.
    pub kind: Kind,
    /// The token of its fill, which tells it from the entries before and after.
    pub id: Token,
    /// When the fetch had answered: its age counts from here.
    pub answered: Timestamp,
    /// How long the fetch took.
    pub cost: Duration,
    /// For how long it is served as it is, and for how long it is kept.
    pub lifetimes: Lifetimes,
    /// Codec and type of the payload: another type under the same key is a miss. Of a pass marker: the class of callers that
    /// it turns away, 0 for everybody.
    pub codec: u64,
}

/// What an [`Entry`] says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// This is the value.
    Value,
    /// Pass marker: the answer may not be shared with anybody. Every request makes its own call, nobody waits. It may be for
    /// one class of callers only ([`Meta::codec`]).
    Pass,
    /// Pass marker: the answer may not be stored, but those who ask a process at the same time may share it.
    PassStore,
}

/// The ages that end a use of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Fresh: served as it is.
    pub fresh_for: Duration,
    /// After that: served as it is while it is refreshed behind.
    pub stale_while_revalidate: Duration,
    /// After freshness: served when the fetch for a newer one failed.
    pub stale_if_error: Duration,
    /// After freshness: kept, so that the origin can be asked whether it has changed.
    pub kept: Duration,
}

impl Lifetimes {
    /// For how long a store keeps the entry, counted from the moment that its fetch had answered: the lifetime and the
    /// longest window after it, but at least a second, for those who waited for it and are on their way to read it.
    #[must_use]
    pub fn retention(&self) -> Duration {
        let window = self.stale_while_revalidate.max(self.stale_if_error).max(self.kept);
        let useful = self.fresh_for.saturating_add(window);
        useful.max(Duration::from_secs(1))
    }
}

impl Entry {
    /// An entry of that payload.
    #[must_use]
    pub fn new(meta: Meta, payload: impl Into<Payload>) -> Self {
        Self { meta, payload: payload.into() }
    }

    /// What is known about it.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The value.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.payload
    }

    /// How old it is.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.meta.answered)
    }

    /// Whether a store keeps it.
    #[must_use]
    pub fn is_retained(&self, now: Timestamp) -> bool {
        self.age(now) < self.meta.lifetimes.retention()
    }

    /// How many bytes it takes in this process, under that address.
    pub(crate) fn weight(&self, at: &Address) -> u64 {
        (BOOKKEEPING + at.primary().len() + at.variant().map_or(0, <[u8]>::len) + self.payload.bytes.len()) as u64
    }
}

impl Payload {
    /// With what it decodes to.
    pub(crate) fn with_live(self, live: Live) -> Self {
        let _ = self.live.set(live);
        self
    }

    /// The encoded value.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Decodes once, and shares that for as long as the payload lives. `None` if it does not decode, or was decoded as
    /// another type.
    pub(crate) fn live<V: Any + Send + Sync>(&self, decode: impl FnOnce(&Bytes) -> Option<V>) -> Option<Arc<V>> {
        self.decoded(decode)?.clone().downcast().ok()
    }

    /// As [`live`](Self::live), for a look at it.
    #[cfg(feature = "http")]
    pub(crate) fn look<V: Any + Send + Sync>(&self, decode: impl FnOnce(&Bytes) -> Option<V>) -> Option<&V> {
        self.decoded(decode)?.downcast_ref()
    }

    fn decoded<V: Any + Send + Sync>(&self, decode: impl FnOnce(&Bytes) -> Option<V>) -> Option<&Live> {
        if let Some(live) = self.live.get() {
            return Some(live);
        }
        let live: Live = Arc::new(decode(&self.bytes)?);
        Some(self.live.get_or_init(|| live))
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, live: Arc::default() }
    }
}

/// By length only: it is the users' data.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes.len())
    }
}

/// How many entries a cache of that many bytes may have to hold, for what has to be allocated at first.
pub(crate) fn expected_within(capacity: u64) -> usize {
    usize::try_from(capacity / 1024).unwrap_or(usize::MAX).clamp(64, 1 << 16)
}

const BOOKKEEPING: usize = 256;
