//! The trait of a cache that knows leases.

use super::{
    entry::Entry,
    error::Answer,
    lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves},
    token::Token,
    tracking::{InvalidationFeed, TrackedReader},
    wake::Listener,
};
use crate::{
    key::{CacheKey, CacheKeyRef},
    versions::ReadTerms,
};
use futures_util::future::try_join_all;
use std::{sync::Arc, time::Duration};

/// A cache that grants leases. The [module](super) lists the promises of an implementation.
///
/// Cancellation: the guard applies its own timeout to every call, and drops the future when the timeout is over.
pub trait Store: Send + Sync + 'static {
    /// Returns the entry if the store can do so without waiting. For stores that live in this process. Default: `None`.
    fn peek(&self, key: CacheKeyRef<'_>) -> Option<Entry> {
        let _ = key;
        None
    }

    /// Returns the entry. An entry that cannot be read, or that belongs to another cache key, is `None`.
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>>;

    /// Returns the entry as [`get`](Self::get) does, and the number at which the read began. A caller joins a read that
    /// is in flight, if the terms allow it. Default: `get`, which no other caller shares.
    fn get_shared<'a>(&'a self, key: &'a CacheKey, terms: ReadTerms<'a>) -> Answer<'a, (Option<Entry>, u64)> {
        let begun = terms.now();
        Box::pin(async move { Ok((self.get(key).await?, begun)) })
    }

    /// Returns the entries of these cache keys, which belong to one resource, in their order. A store that can read
    /// them at one moment does so: an entry that was found through a redirect must match that redirect. Default: one
    /// [`get`](Self::get) for each, at the same time.
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, Vec<Option<Entry>>> {
        Box::pin(try_join_all(keys.iter().map(|key| self.get(key))))
    }

    /// Returns the entry unless the caller has already seen it; otherwise grants the lease, or names its holder.
    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply>;

    /// Stores all of `writes` or none, with their [extensions](Write::extensions), and ends the right to do so. An error means that nothing was stored, or that
    /// the outcome is unknown.
    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome>;

    /// Releases the lease of `token` without a fill: at once, or leaving a failure marker that blocks new leases for a
    /// time.
    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus>;

    /// Extends a lease to `span` from now.
    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus>;

    /// Drops the entries of these cache keys in all [layouts](CacheKey::layout), and their leases, except for what it
    /// `leaves`. Wakes the waiters and the holders of the leases. The cache keys differ only in their
    /// [qualifier](CacheKey::qualifier), and all this is done in one step. Returns the lease of a request for one. A request
    /// has one cache key, whose layout is that of the entry to fill.
    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>>;

    /// Reports whether the store has room for the entry at all. For stores that live in this process and are bounded by
    /// bytes. If not, the guard counts it ([`Stats::too_large`](crate::Stats::too_large)) and fills a do-not-store
    /// marker in its place. Default: `true`.
    fn can_keep(&self, key: &CacheKey, entry: &Entry) -> bool {
        let _ = (key, entry);
        true
    }

    /// Reports whether another object may hold the same entries, as two clients of one server do. Default: `true`.
    ///
    /// All shared stores are treated as one when a fetch asks for its own key, so that it does not wait for itself. Over
    /// a store that is not shared there is no near cache, and a lease is extended within the task of its fetch.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns the failure domain of the cache key, for stores whose parts fail independently, as the nodes of a
    /// cluster do. Each failure domain has a circuit breaker of its own. Default: 0 for all.
    fn failure_domain(&self, key: &CacheKey) -> u16 {
        let _ = key;
        0
    }

    /// Reports whether reads are sent over a connection of their own now, so that they may be answered while other
    /// operations are not, and the reverse. Reads then have a circuit breaker of their own. Default: `false`.
    fn has_separate_reads(&self) -> bool {
        false
    }

    /// Returns the number of the connection that serves the cache key now: a higher one whenever another server may
    /// serve it. An invalidation that another connection has acknowledged recently may be lost, and is sent again.
    /// Default: 0, as before the first one.
    fn connection(&self, key: &CacheKey) -> u64 {
        let _ = key;
        0
    }

    /// Returns how often this store has read a corrupt entry: the bytes have changed since they were written, or were
    /// never an entry. Each read was a miss. Default: 0.
    fn corrupt_entries(&self) -> u64 {
        0
    }

    /// Returns how often this store has met an entry of another [layout](CacheKey::layout) under the name of the reader's,
    /// or another name for the reader's layout because of one. Default: 0.
    fn other_layouts(&self) -> u64 {
        0
    }

    /// Returns the host of the only server, if there is one and it is known without asking. For traces. Default: `None`.
    fn host(&self) -> Option<String> {
        None
    }

    /// Subscribes to the wake-ups of the cache key. Called before [`get_or_lease`](Self::get_or_lease), so that no
    /// wake-up falls in between.
    fn listen(&self, key: &CacheKey) -> Listener;

    /// Reports whether wake-ups of other processes arrive now, as far as is known without asking. `None`, the default, if
    /// the store has no subscriber.
    fn is_subscribed(&self) -> Option<bool> {
        None
    }

    /// Returns a reader that learns when an entry it has read changes, for a [near cache](crate::NearCacheConfig). The
    /// changes go to `feed`. At least once per `every` the store confirms that no message about a change was lost
    /// ([`confirm_up_to`](InvalidationFeed::confirm_up_to)). Default: `None`, if the store sends no such messages; the
    /// age of a copy is then its only bound.
    fn track(&self, feed: Arc<InvalidationFeed>, every: Duration) -> Option<Arc<dyn TrackedReader>> {
        let _ = (feed, every);
        None
    }
}

/// The precondition of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillCondition {
    /// The lease of the cache key.
    Lease(Lease),
    /// No lease, but the hit-for-pass marker with this id, while that marker is stored. A response that may be shared
    /// again replaces its marker this way.
    ReplaceMarker(Token),
}

/// A write: one entry to store.
#[derive(Clone, Debug)]
pub struct Write {
    /// The cache key of the fill, or a cache key of the same resource.
    pub key: CacheKey,
    /// The entry; the store keeps it for its [retention](super::Lifetimes::retention).
    pub entry: Entry,
    /// Redirect entries that lead to the entry. A store that ignores them is correct, but loses the entry with the
    /// first of them.
    pub extensions: Vec<RedirectExtension>,
    /// Set if the entry is a renewed one. A store that ignores it is correct.
    pub renews: Option<Renewal>,
}

/// The entry that a [`Write`] renews: the new one has a payload of the same length and the same validator. While the store
/// has it, the beginning is enough of the new one. The entry may have been evicted or replaced since it was read: then
/// the write is like any other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renewal {
    /// The id of the entry.
    pub id: Token,
    /// Number of bytes at the beginning of the payload that may differ.
    pub changed: usize,
}

/// A redirect entry that has to be kept for longer, because an entry that it leads to is filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectExtension {
    /// The cache key of the redirect entry.
    pub key: CacheKey,
    /// The id of the redirect entry. If the store has another entry, or none, nothing is to be done: the redirect entry
    /// may have been invalidated.
    pub id: Token,
    /// The time from now for which the store keeps the redirect entry, unless it keeps it for longer already.
    pub retention: Duration,
}

impl Write {
    /// Creates a write of `entry` under `key`.
    #[must_use]
    pub const fn new(key: CacheKey, entry: Entry) -> Self {
        Self { key, entry, extensions: Vec::new(), renews: None }
    }
}

/// A type that [`StampedeGuard::new`](crate::StampedeGuard::new) accepts as its store.
#[diagnostic::on_unimplemented(
    message = "a guard cannot use `{Self}` as its store",
    label = "neither a client nor a connection of the redis-rs that this crate was compiled with, nor a `Store`",
    note = "pass a `stampede_guard::redis::Client`, a `SentinelClient` or a `ConnectionManager` (features `sentinel` and \
            `connection-manager`), or a `RedisEndpoint`; another connection that is `ConnectionLike + Clone` goes into \
            `stampede_guard::Connection(..)`",
    note = "in place of a `ClusterClient` of redis-rs pass `RedisEndpoint::cluster([..])` with the URLs of some nodes \
            (feature `cluster`)",
    note = "a guard needs no pool: it sends the commands of all requests over one connection"
)]
pub trait IntoStore {
    /// Converts `self` into a store.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn into_store(self) -> Arc<dyn Store>;
}

#[diagnostic::do_not_recommend]
impl<S: Store> IntoStore for S {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(self)
    }
}

impl<S: Store> IntoStore for Arc<S> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}

impl IntoStore for Arc<dyn Store> {
    fn into_store(self) -> Arc<dyn Store> {
        self
    }
}
