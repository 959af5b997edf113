//! The port to a cache that grants leases, and the stores that come with the crate.
//!
//! The guard does not read and then lock. It calls [`Store::get_or_lease`], which returns the entry, or the right to
//! fill it. An implementation of [`Store`] keeps five promises:
//!
//! 1. At most one lease per cache key is kept at any time. It ends after the requested lease TTL, and is
//!    [kept](LeaseRequest::kept_for) for a while. The first request after its end marks it, and is told to wait for
//!    [`MARKED_FOR`]. A later request takes it, unless an extension has cleared the mark.
//! 2. A fill is stored only if its lease (token and stamp) is still kept, so only the last holder can fill. It ends the
//!    lease in either case. A repeated fill that was stored before returns [`FillOutcome::Stored`].
//! 3. [`invalidate`](Store::invalidate) drops the entries of all layouts *and* the lease, so that no fill of a lease
//!    granted before is stored. An absent lease permits no fill and no extension.
//! 4. Every operation may run twice, and may run although its caller has given up on it.
//! 5. The store wakes its waiters when the wait is over ([`WakeRegistry`]). A wake-up is a hint: a lost one costs
//!    the rest of the lease that the waiter was told of, never a hang.
//!
//! Any release may change the types of this module, as the feature `unstable` says.

pub(crate) mod entry;
pub(crate) mod entry_cache;
pub(crate) mod envelope;
pub(crate) mod error;
pub(crate) mod lease;
pub(crate) mod memory;
pub(crate) mod port;
pub(crate) mod token;
pub(crate) mod tracking;
pub(crate) mod wake;

#[cfg(feature = "unstable")]
pub use self::{
    entry::{Audience, Entry, Kind, Lifetimes, Meta, Payload, SharedValue},
    envelope::{EnvelopeError, FORMAT},
    error::{Answer, BoxFuture, StoreError},
    lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves, MARKED_FOR},
    memory::MemoryStore,
    port::{FillCondition, IntoStore, RedirectExtension, Renewal, Store, Write},
    token::{Inbox, Token},
    tracking::{InvalidationFeed, TrackedRead, TrackedReader},
    wake::{Listener, WakeRegistry},
};
#[cfg(feature = "unstable")]
pub use crate::{
    clock::Timestamp,
    key::{CacheKey, CacheKeyRef, KeyHash},
    versions::ReadTerms,
};
