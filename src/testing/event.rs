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
use std::{fmt, time::Duration};

/// An event of [`FakeRedis::history`](super::FakeRedis::history).
///
/// `Display` omits tokens and stamps, so that two runs of a test can be compared.
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
/// let lines: Vec<_> = server.history().iter().map(ToString::to_string).collect();
/// assert_eq!(lines, ["0ns node 0: get k: nothing", "0ns node 0: get_or_lease k: granted", "0ns node 0: fill k: Stored"]);
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

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} ", self.at)?;
        match self.node {
            Some(number) => write!(f, "node {number}:")?,
            None => f.write_str("server:")?,
        }
        let key = self.key.as_ref().map_or_else(String::new, |key| format!(" {}", key.primary().escape_ascii()));
        match &self.kind {
            EventKind::Get(Some(entry)) => write!(f, " get{key}: {:?}", entry.meta().kind),
            EventKind::Get(None) => write!(f, " get{key}: nothing"),
            EventKind::GetOrLease(_, reply) => {
                write!(f, " get_or_lease{key}: ")?;
                match reply {
                    LeaseReply::Hit(entry) => write!(f, "{:?}", entry.meta().kind),
                    LeaseReply::Granted { .. } => f.write_str("granted"),
                    LeaseReply::Wait { remaining, .. } => write!(f, "wait {remaining:?}"),
                    LeaseReply::Failed { retry_in, .. } => write!(f, "failed, again in {retry_in:?}"),
                }
            }
            EventKind::Fill(_, _, outcome) => write!(f, " fill{key}: {outcome:?}"),
            EventKind::Release(_, _, status) => write!(f, " release{key}: {status:?}"),
            EventKind::Extend(_, status) => write!(f, " extend{key}: {status:?}"),
            EventKind::Invalidate => write!(f, " invalidate{key}"),
            EventKind::Expire => write!(f, " expire{key}"),
            EventKind::Notified { invalidated: true } => write!(f, " notified of invalidation{key}"),
            EventKind::Notified { invalidated: false } => write!(f, " notified{key}"),
            EventKind::Expired => write!(f, " expired{key}"),
            EventKind::Evicted => write!(f, " evicted{key}"),
            EventKind::Flushed => f.write_str(" flushed"),
            EventKind::Killed => f.write_str(" killed"),
            EventKind::Revived => f.write_str(" revived"),
        }
    }
}
