//! The port to a cache that knows leases, and the stores that come with the crate.
//!
//! The question is never "get" and then "lock": it is [`Store::lead`], "the entry, or the right to fill it". A store of
//! one's own keeps five promises:
//!
//! 1. At most one lease per address is valid at any time; it ends by itself after the span that was asked for.
//! 2. A fill lands only if its lease, token and stamp, is still the valid one. It ends the lease whether it lands or
//!    not. A repeated fill that landed before says [`Filled::Stored`].
//! 3. [`invalidate`](Store::invalidate) drops entry *and* lease: no fill that began before it lands after it.
//! 4. Every operation may run twice, and may run although its caller has given up on it.
//! 5. Whoever waits is told when the wait is over ([`Wakes`]). This is a hint: a lost one costs a poll, never a hang.

#[cfg(feature = "redis")]
mod locked;
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod track;
mod wake;

#[cfg(feature = "redis")]
pub use self::redis::RedisStore;
#[cfg(feature = "redis")]
pub use crate::wire::Connection;
pub use crate::{
    clock::Timestamp,
    entry::{Entry, FORMAT, Kind, Lifetimes, Live, Meta, Payload},
    key::{Address, KeyHash},
    lease::{Ask, Filled, Hold, Inbox, Lead, Lease, Token, Tombstone},
};
#[cfg(feature = "redis")]
pub use locked::LockedStore;
pub use memory::MemoryStore;
pub use track::{Line, Mark, Track, Tracked};
pub use wake::{Listener, Wakes};

use crate::error::BoxError;
use std::{error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

/// A future in a box, which is what a `dyn` trait can return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What an operation of a store returns.
pub type Answer<'a, T> = BoxFuture<'a, Result<T, StoreError>>;

/// A cache that knows leases. See the [module](self) for what it promises.
///
/// The guard puts its own timeout around every call and drops the future when that is over.
pub trait Store: Send + Sync + 'static {
    /// The entry, if the store can tell without waiting. For stores that live in this process.
    fn peek(&self, at: &Address) -> Option<Entry> {
        let _ = at;
        None
    }

    /// The entry. Whatever cannot be read, or belongs to another address, is `None`.
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>>;

    /// Each of these entries, of one resource, as they are at one moment if the store can tell: what is found by way of
    /// another entry is read together with that.
    fn get_all<'a>(&'a self, at: &'a [Address]) -> Answer<'a, Vec<Option<Entry>>> {
        Box::pin(async move {
            let mut found = Vec::with_capacity(at.len());
            for at in at {
                found.push(self.get(at).await?);
            }
            Ok(found)
        })
    }

    /// The entry, unless it is the one that was seen; or the lease, if nobody has it; or who has it.
    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead>;

    /// Stores all of `writes`, or none, and gives the right to it back. An error means that nothing was stored, or that
    /// the outcome is not known.
    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled>;

    /// Gives the lease of that token back unfilled, at once or after a tombstone.
    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold>;

    /// Prolongs a lease to that span from now.
    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold>;

    /// Drops the entry, its neighbours of other schemas, and the lease; wakes those who wait, and the holder.
    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()>;

    /// Whether another object may stand for the same entries, as two clients of one server do. Such stores are taken
    /// for one where a computation asks for its own key, so that it does not wait for itself.
    ///
    /// One of which there is no other is taken to answer reads at once. The first read that does not is dropped, and asked
    /// again; from then on those who ask for the same at the same time share a read.
    fn is_shared(&self) -> bool {
        true
    }

    /// Which part of the store the address is in, where parts fail on their own, as the nodes of a cluster do. A part
    /// that does not answer is left alone for a moment; the others are not.
    fn part(&self, at: &Address) -> u16 {
        let _ = at;
        0
    }

    /// Changes when what was acknowledged before may have been lost, for instance with the server: invalidations of
    /// the last seconds are then sent again.
    fn epoch(&self) -> u64 {
        0
    }

    /// Hears of the address from now on. Called before [`lead`](Self::lead), so that no wake-up falls in between.
    fn listen(&self, at: &Address) -> Listener;

    /// Reads that hear when what they have read changes, for a [near cache](crate::NearCache); at least that often the
    /// store says that nothing went unheard ([`Line::confirm`]). `None` if it cannot tell: copies are bounded by their
    /// age alone then.
    fn track(&self, every: Duration) -> Option<Arc<dyn Track>> {
        let _ = every;
        None
    }
}

/// What entitles to a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// The lease of the address.
    Lease(Lease),
    /// No lease, but the pass marker of that id, as long as it stands: how an answer that may be shared again ends the
    /// time of its marker.
    Promote(Token),
}

/// One entry to store.
#[derive(Clone, Debug)]
pub struct Write {
    /// Where: the address that is led, or one in its slot.
    pub at: Address,
    /// What, for as long as its [retention](Lifetimes::retention).
    pub entry: Entry,
}

/// A store did not do what it was asked.
#[derive(Clone, Debug)]
pub struct StoreError {
    source: Arc<dyn error::Error + Send + Sync>,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    TimedOut,
    Disconnected,
    Refused,
}

impl StoreError {
    /// It did not answer, for this reason. Whether the operation was done is not known.
    #[must_use]
    pub fn new(source: impl Into<BoxError>) -> Self {
        Self { source: Arc::from(source.into()), outcome: Outcome::Unknown }
    }

    /// The connection broke meanwhile: whether the operation was done is not known, but it may be tried again at once.
    #[must_use]
    pub fn disconnected(source: impl Into<BoxError>) -> Self {
        Self { outcome: Outcome::Disconnected, ..Self::new(source) }
    }

    /// It answered that it will not, for instance because it is full: the operation was not done.
    #[must_use]
    pub fn refused(source: impl Into<BoxError>) -> Self {
        Self { outcome: Outcome::Refused, ..Self::new(source) }
    }

    pub(crate) fn timed_out(source: impl Into<BoxError>) -> Self {
        Self { outcome: Outcome::TimedOut, ..Self::new(source) }
    }

    pub(crate) fn is_timed_out(&self) -> bool {
        self.outcome == Outcome::TimedOut
    }

    /// Whether the connection broke.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        self.outcome == Outcome::Disconnected
    }

    /// Whether it answered that it will not.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        self.outcome == Outcome::Refused
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the store did not answer as asked: {}", self.source)
    }
}

impl error::Error for StoreError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        Some(&*self.source)
    }
}

/// What [`StampedeGuard::new`](crate::StampedeGuard::new) takes.
pub trait IntoStore {
    /// The store.
    fn into_store(self) -> Arc<dyn Store>;
}

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
