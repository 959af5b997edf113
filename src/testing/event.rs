//! Events in the history of a test server.

use crate::{
    key::CacheKey,
    store::{
        entry::Entry,
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus},
        port::{FillCondition, Write},
        token::Token,
    },
};
use std::time::Duration;

/// An event of [`FakeRedis::history`](super::FakeRedis::history).
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{FakeRedis, Origin};
///
/// let server = FakeRedis::new();
/// let guard = server.node().guard();
/// guard.fetch("k", Origin::new().fetch(1)).await?;
/// guard.drain().await;
/// let acted: Vec<_> = server.history().iter().map(|event| event.node).collect();
/// assert_eq!(acted, [Some(0); 3]); // looked up, got the lease, and filled
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event {
    /// The time of the event, counted from the creation of the server.
    pub at: Duration,
    /// The number of the node that acted or was affected. `None` for an event of the server.
    pub node: Option<usize>,
    pub(crate) key: Option<CacheKey>,
    pub(crate) kind: EventKind,
}

impl Event {
    /// Returns the cache key affected. `None` for an event of all entries, or of the node itself.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    #[must_use]
    pub fn key(&self) -> Option<&CacheKey> {
        self.key.as_ref()
    }

    /// Returns the kind of event.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    #[must_use]
    pub fn kind(&self) -> &EventKind {
        &self.kind
    }
}

/// The kind of an [`Event`]: the request and its result.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// A node read the entry.
    Get(Option<Entry>),
    /// A node requested the entry or a lease.
    GetOrLease(LeaseRequest, LeaseReply),
    /// A leader stored entries.
    Fill(FillCondition, Vec<Write>, FillOutcome),
    /// A leader released its lease.
    Release(Token, Option<FailureMarker>, LeaseStatus),
    /// A leader extended its lease.
    Extend(Lease, LeaseStatus),
    /// Entry and lease were dropped.
    Invalidate,
    /// The lease was dropped, and the value is stale from now on.
    Expire,
    /// A node was notified that a lease has ended.
    #[non_exhaustive]
    Notified {
        /// Whether an invalidation ended the lease.
        invalidated: bool,
    },
    /// The lease was ended before its time.
    Expired,
    /// The entry was evicted.
    Evicted,
    /// All entries and leases were lost.
    Flushed,
    /// The node was disconnected from the server.
    Killed,
    /// The node was reconnected to the server.
    Revived,
}
