//! A stored entry: its metadata, its payload, and a slot for the decoded payload.

use super::token::Token;
use crate::clock::Timestamp;
use bytes::Bytes;
use std::{
    any::Any,
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

/// A value that callers of one process share without encoding it.
pub type SharedValue = Arc<dyn Any + Send + Sync>;

/// A stored entry: what a store keeps under one [`CacheKey`](crate::store::CacheKey). Cheap to clone: clones share the
/// metadata and the payload with its decoded form.
#[derive(Clone, Debug)]
pub struct Entry(Arc<Content>);

#[derive(Debug)]
struct Content {
    meta: Meta,
    payload: Payload,
    has_expired: bool,
}

/// An encoded value that remembers its decoded form, so that a store within the process is also a cache of decoded
/// values. A clone has the decoded form if the value was decoded before.
#[derive(Clone)]
pub struct Payload {
    bytes: Bytes,
    /// What the origin compares to tell whether the value has changed. Empty if there is none.
    validator: Bytes,
    decoded: OnceLock<SharedValue>,
}

/// The metadata of an [`Entry`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meta {
    /// The kind of the entry.
    pub kind: Kind,
    /// The token of its fill, which distinguishes it from the entries before and after.
    pub id: Token,
    /// The [stamp](crate::store::Lease::stamp) of the lease under which it was fetched. 0 without a lease, and for a put.
    pub stamp: u64,
    /// The response time: when the fetch had answered. The age of the entry counts from here.
    pub response_time: Timestamp,
    /// How long the fetch took.
    pub cost: Duration,
    /// How long the entry may be served, and how long a store retains it.
    pub lifetimes: Lifetimes,
    /// Codec and type of the payload: another type under the same key is a miss. 0 for a marker.
    pub codec: u64,
    /// The callers that a marker applies to. [`Audience::Everyone`] for a value.
    pub audience: Audience,
}

/// The kind of an [`Entry`], with its byte in an envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// The entry holds a value.
    Value = b'v',
    /// Hit-for-pass marker: the response may not be shared. Each request makes its own call without waiting. The marker
    /// may apply to some callers only ([`Meta::audience`]).
    HitForPass = b'p',
    /// Do-not-store marker: the response may not be stored, but concurrent requests of one process may share it.
    DoNotStore = b's',
}

/// The callers that a marker applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Audience {
    /// All callers.
    #[default]
    Everyone,
    /// One group of callers, for example the requests with credentials. Groups are numbered from 1; in Redis, 0 means
    /// [`Everyone`](Self::Everyone).
    Group(u32),
}

/// The lifetimes of an entry: how long each use of it is allowed. All windows begin at the end of the freshness
/// lifetime. They overlap: the longest of them decides how long a store [retains](Self::retention) the entry. Default:
/// zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lifetimes {
    /// Freshness lifetime: how long after the response time the entry is served without a refresh.
    pub fresh_for: Duration,
    /// The window in which the entry is served while a refresh runs in the background (RFC 5861 §3).
    pub stale_while_revalidate: Duration,
    /// The window in which the entry is served if the fetch for a newer one failed (RFC 5861 §4).
    pub stale_if_error: Duration,
    /// The window in which the entry is kept for validation: it is passed to the next fetch, which can ask the origin
    /// whether it has changed (RFC 9111 §4.3). It is not served without that fetch.
    pub retain_for: Duration,
}

impl Meta {
    /// Creates metadata for an entry of a fetch that answered at `response_time`. The other fields are zero, and the
    /// audience is everyone; set them as needed.
    #[must_use]
    pub fn new(kind: Kind, id: Token, response_time: Timestamp) -> Self {
        let (cost, lifetimes, audience) = (Duration::ZERO, Lifetimes::default(), Audience::Everyone);
        Self { kind, id, stamp: 0, response_time, cost, lifetimes, codec: 0, audience }
    }
}

impl Lifetimes {
    /// Creates lifetimes with this freshness lifetime and without windows after it.
    #[must_use]
    pub const fn fresh_for(fresh_for: Duration) -> Self {
        let none = Duration::ZERO;
        Self { fresh_for, stale_while_revalidate: none, stale_if_error: none, retain_for: none }
    }

    /// Returns how long a store retains the entry, counted from the response time: the freshness lifetime plus the
    /// longest window after it. At least one second, so that waiters can still read the entry they waited for.
    #[must_use]
    pub fn retention(&self) -> Duration {
        let window = self.stale_while_revalidate.max(self.stale_if_error).max(self.retain_for);
        let useful = self.fresh_for.saturating_add(window);
        useful.max(Duration::from_secs(1))
    }

    /// Returns the lifetime of an index that leads to an entry with these lifetimes, which was fetched in this time. The
    /// next fetch begins when the entry has become stale. If it ended after the index, its result would be lost.
    pub(crate) fn of_index(&self, took: Duration) -> Duration {
        self.retention().saturating_add(took.saturating_mul(2)).saturating_add(INDEX_MARGIN)
    }
}

impl Entry {
    /// Creates an entry with this payload.
    #[must_use]
    pub fn new(meta: Meta, payload: impl Into<Payload>) -> Self {
        Self(Arc::new(Content { meta, payload: payload.into(), has_expired: false }))
    }

    /// Returns the entry as it is once it has expired by request at this time: it is stale from then on, unless it was
    /// before.
    #[must_use]
    pub(crate) fn expired(&self, at: Timestamp) -> Self {
        let mut meta = *self.meta();
        meta.lifetimes.fresh_for = meta.lifetimes.fresh_for.min(self.age(at));
        Self(Arc::new(Content { meta, payload: self.payload().clone(), has_expired: true }))
    }

    /// Reports whether the entry has expired by request.
    pub(crate) fn has_expired(&self) -> bool {
        self.0.has_expired
    }

    /// Returns the metadata.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// Returns the value.
    #[must_use]
    pub fn payload(&self) -> &Payload {
        &self.0.payload
    }

    /// Returns the time since the response time.
    #[must_use]
    pub fn age(&self, now: Timestamp) -> Duration {
        now.since(self.0.meta.response_time)
    }

    /// Reports whether a store still retains the entry.
    #[must_use]
    pub fn is_retained(&self, now: Timestamp) -> bool {
        self.age(now) < self.0.meta.lifetimes.retention()
    }
}

impl Payload {
    /// Adds the decoded form.
    pub(crate) fn with_decoded(self, value: SharedValue) -> Self {
        let _ = self.decoded.set(value);
        self
    }

    /// Adds a validator. An empty one is none.
    #[must_use]
    pub fn with_validator(self, validator: Bytes) -> Self {
        Self { validator, ..self }
    }

    /// Returns the encoded value.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Returns the validator, which is empty if there is none.
    #[must_use]
    pub fn validator(&self) -> &Bytes {
        &self.validator
    }

    /// Returns the number of bytes of the value and its validator.
    pub(crate) fn size(&self) -> usize {
        self.bytes.len() + self.validator.len()
    }

    /// Returns the decoded value. Decodes once, and shares the result while the payload lives. If another type with the
    /// same bytes was first, decodes each time. `None` if the bytes do not decode.
    pub(crate) fn decoded<V: Any + Send + Sync>(&self, decode: impl Fn(&Bytes) -> Option<V>) -> Option<Arc<V>> {
        let decoded = self.decode_once(&decode)?.clone();
        decoded.downcast().ok().or_else(|| decode(&self.bytes).map(Arc::new))
    }

    /// Returns the decoded value as [`decoded`](Self::decoded) does, by reference.
    pub(crate) fn decoded_ref<V: Any + Send + Sync>(&self, decode: impl FnOnce(&Bytes) -> Option<V>) -> Option<&V> {
        self.decode_once(decode)?.downcast_ref()
    }

    fn decode_once<V: Any + Send + Sync>(&self, decode: impl FnOnce(&Bytes) -> Option<V>) -> Option<&SharedValue> {
        if let Some(value) = self.decoded.get() {
            return Some(value);
        }
        let value: SharedValue = Arc::new(decode(&self.bytes)?);
        Some(self.decoded.get_or_init(|| value))
    }
}

impl From<Bytes> for Payload {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, validator: Bytes::new(), decoded: OnceLock::new() }
    }
}

/// Prints only the length: the payload is user data.
impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.bytes.len())
    }
}

/// Part of an index's lifetime for fetches that take longer than the last one.
const INDEX_MARGIN: Duration = Duration::from_secs(1);
