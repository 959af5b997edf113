//! The context of a fetch, and its outcome.

use std::{
    fmt,
    time::{Duration, Instant},
};

/// The context of a call of [`fetch_with`](crate::CacheEntry::fetch_with).
pub struct FetchContext<T> {
    pub(super) stale: Option<T>,
    pub(super) deadline: Option<Instant>,
    pub(super) fencing_token: Option<u64>,
}

impl<T> FetchContext<T> {
    /// Returns the stored value that is no longer fresh enough, for example to ask the origin whether it has changed.
    #[must_use]
    pub fn stale(&self) -> Option<&T> {
        self.stale.as_ref()
    }

    /// Returns the stored value by move: see [`stale`](Self::stale).
    #[must_use]
    pub fn into_stale(self) -> Option<T> {
        self.stale
    }

    /// Returns when the call will be aborted. `None` if it runs for its own caller only, which can drop it.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Returns a number that grows from leader to leader of the key, as long as the clock of the Redis server does not
    /// go back. Pass it to a resource that the call writes to, and let that resource refuse smaller numbers. `None` if
    /// the call holds no lease.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.fencing_token
    }
}

impl<T> fmt::Debug for FetchContext<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchContext")
            .field("stale", &self.stale.is_some())
            .field("deadline", &self.deadline)
            .field("fencing_token", &self.fencing_token)
            .finish()
    }
}

/// The result of a call of [`fetch_with`](crate::CacheEntry::fetch_with): a value, and how it may be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchOutcome<T> {
    pub(super) value: T,
    pub(super) sharing: Sharing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    Cacheable { fresh_for: Option<Duration> },
    WaitersOnly,
    Private,
}

impl<T> FetchOutcome<T> {
    /// Creates a result that is stored and shared, fresh for as long as the [`Policy`](crate::Policy) says.
    #[must_use]
    pub const fn new(value: T) -> Self {
        Self { value, sharing: Sharing::Cacheable { fresh_for: None } }
    }

    /// Stores and shares the value, fresh for exactly this time, without jitter. The stale windows of the policy
    /// follow.
    #[must_use]
    pub fn fresh_for(mut self, lifetime: Duration) -> Self {
        self.sharing = Sharing::Cacheable { fresh_for: Some(lifetime) };
        self
    }

    /// Shares the value with requests that wait in this process now, and does not store it. For a while each process
    /// makes calls of its own and does not wait for other processes: see
    /// [`uncacheable_ttl`](crate::StampedeGuard::uncacheable_ttl).
    #[must_use]
    pub fn do_not_store(mut self) -> Self {
        self.sharing = Sharing::WaitersOnly;
        self
    }

    /// Returns the value to the caller only. For a while each request makes a call of its own at once: see
    /// [`uncacheable_ttl`](crate::StampedeGuard::uncacheable_ttl).
    #[must_use]
    pub fn private(mut self) -> Self {
        self.sharing = Sharing::Private;
        self
    }
}
