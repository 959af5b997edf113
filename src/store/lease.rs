//! Leases: the right to fill one entry, and the replies of a store about it.

use super::{entry::Entry, token::Token};
use bytes::Bytes;
use std::time::Duration;

/// A granted lease. Token and stamp together identify it: a late copy of the request is granted another stamp,
/// so its grant cannot fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The token of the request.
    pub token: Token,
    /// The store's clock at the grant, in microseconds. It grows from grant to grant unless the server's clock steps
    /// back. So it serves as a fencing token for resources that a fetch writes to.
    pub stamp: u64,
    /// The number of the name under which the entry is to be stored, among the names of its layout: entries of other
    /// layouts may have the earlier ones. 0 in a store whose names tell all layouts apart.
    pub name: u64,
}

/// The request of [`Store::get_or_lease`](super::Store::get_or_lease).
#[derive(Clone, Copy, Debug)]
pub struct LeaseRequest {
    /// A new token for every send, repeated sends included.
    pub token: Token,
    /// Lease TTL: how long no other request takes the lease if it is not extended.
    pub lease: Duration,
    /// How long the store keeps the lease after its end, so that its holder can still extend it or fill.
    pub kept_for: Duration,
    /// The id of the entry that the caller has already evaluated. Only another entry is a hit.
    pub seen: Option<Token>,
    /// Whether the store notifies this process when the wait for another leader is over. If `false`, the store
    /// registers no inbox. A refresh in the background sets it to `false`, because it does not wait.
    pub notify: bool,
}

impl LeaseRequest {
    /// Creates the request of a caller that has not seen an entry, and wants to be notified. `lease` is the lease TTL.
    /// The store does not keep the lease after its end.
    #[must_use]
    pub const fn new(token: Token, lease: Duration) -> Self {
        Self { token, lease, kept_for: Duration::ZERO, seen: None, notify: true }
    }
}

/// What [`Store::invalidate`](super::Store::invalidate) leaves.
#[derive(Clone, Copy, Debug)]
pub enum Leaves {
    /// Neither entries nor leases.
    Nothing,
    /// The values, which are stale from now on, and keep the windows after their freshness. A store that drops them is
    /// correct.
    StaleValues,
    /// A lease that is granted to this request, for a put.
    Lease(LeaseRequest),
}

/// The reply of [`Store::get_or_lease`](super::Store::get_or_lease): the entry, the right to fill it, or its holder.
///
/// ```
/// use stampede_guard::store::{Lease, LeaseReply, LeaseRequest};
/// use std::time::Duration;
///
/// /// Replies to a request for an entry that is not stored. `held` is the valid lease and the rest of its TTL.
/// fn reply(request: LeaseRequest, held: Option<(Lease, Duration)>, now: u64) -> LeaseReply {
///     match held {
///         Some((lease, remaining)) if lease.token != request.token => {
///             LeaseReply::Wait { remaining, holder: lease, waiting: 0, registered: false, seen_alive: false }
///         }
///         held => {
///             let new = Lease { token: request.token, stamp: now, name: 0 };
///             let lease = held.map_or(new, |(lease, _)| lease); // the request may be sent twice
///             LeaseReply::Granted { lease, seen_alive: false, failures: 0 }
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub enum LeaseReply {
    /// An entry that the caller has not seen yet.
    Hit(Entry),
    /// The caller leads.
    Granted {
        /// The granted lease.
        lease: Lease,
        /// Whether the entry that the caller had seen is still stored. If not, it must not be served any more, even if
        /// the fetch fails: it may have been invalidated.
        seen_alive: bool,
        /// Number of fetches in a row that have failed before this one, as failure markers remember them.
        failures: u32,
    },
    /// Another caller leads.
    Wait {
        /// The rest of the lease's TTL. After its end, the rest of [`MARKED_FOR`].
        remaining: Duration,
        /// The lease of the leader. An entry with a [higher stamp](super::Meta::stamp) is of a fetch that began after this
        /// reply.
        holder: Lease,
        /// Number of processes that wait. Waiters spread their next request by it.
        waiting: usize,
        /// Whether this process will be notified. It then asks again at the end of `remaining`. Otherwise it polls.
        registered: bool,
        /// Whether the entry that the caller had seen is still stored.
        seen_alive: bool,
    },
    /// A fetch failed recently and left a failure marker.
    Failed {
        /// Time until the next attempt is allowed.
        retry_in: Duration,
        /// The [report](FailureMarker::report) that the failed leader left.
        report: Bytes,
        /// Whether the entry that the caller had seen is still stored.
        seen_alive: bool,
    },
}

/// A failure marker, which a failed leader leaves in place of its lease. The store adds one to the number of
/// [failures](LeaseReply::Granted) that it told the leader, and tells the next leader the sum. In Redis, each time is at
/// most 999.999 s, and the number at most 9.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureMarker {
    /// How long the marker blocks other callers. Zero: it only counts.
    pub blocks_for: Duration,
    /// How long the number of failures is remembered after that.
    pub remembered_for: Duration,
    /// What the leader reports to blocked callers, 17 bytes. A store returns it unchanged, also a longer one.
    pub report: Bytes,
}

/// The status of a lease: whether its owner still held it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseStatus {
    /// The lease was held.
    Held,
    /// The lease was taken over, dropped by an invalidation, or not kept any longer.
    Lost,
}

/// Time from the first request after the end of a lease, which marks it, until a request takes it. Within this time a
/// server that has stalled executes the extension that its holder has sent.
pub const MARKED_FOR: Duration = Duration::from_millis(250);

/// The outcome of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FillOutcome {
    /// The entry is stored, by this fill or by an earlier copy of it.
    Stored,
    /// The fill came too late and changed nothing.
    Fenced,
}
