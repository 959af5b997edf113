//! One attempt to acquire a lock: its parameters, its result, and the lock that it holds.

use super::{
    client::LockClient,
    error::{LockError, LockErrorKind},
};
use crate::{
    key::CacheKey,
    redis::connection::script::{ScriptCall, millis, number},
    store::{
        error::{BoxFuture, StoreError},
        lease::LeaseStatus,
        token::Token,
    },
};
use std::{fmt, future::Future, sync::Arc, time::Duration};
use tokio::time::timeout;

/// A lock operation that borrows nothing, so that it can continue in the background if its caller is cancelled.
pub type LockFuture<T> = BoxFuture<'static, Result<T, StoreError>>;

/// The parameters of one acquisition: lock, token and ttl.
#[derive(Clone, Debug)]
pub struct Acquisition {
    /// The client that sends the commands.
    pub client: Arc<LockClient>,
    /// The lock.
    pub key: CacheKey,
    /// Unique to this acquisition.
    pub token: Token,
    /// The time to live of the lock.
    pub ttl: Duration,
}

impl Acquisition {
    /// Returns the Redis key with the suffix `of` for this lock. All keys of a lock share a cluster slot.
    #[must_use]
    pub fn name(&self, of: &str) -> String {
        ["{", self.key.namespace(), ":", &self.key.resource_name(), "}:", of, &self.variant()].concat()
    }

    /// Returns the name of the lock, unique within its namespace.
    #[must_use]
    pub fn member(&self) -> String {
        self.key.resource_name() + &self.variant()
    }

    /// Runs a script that replies with a number: [`LeaseStatus::Held`] unless it is 0.
    pub fn run_script(self: Arc<Self>, call: ScriptCall) -> LockFuture<LeaseStatus> {
        Box::pin(async move { Ok(held_if(number(&self.client.run(call).await?)? != 0)) })
    }

    /// Returns the suffix for locks of a key with a variant. Locks acquired by name have none, so the two never collide.
    fn variant(&self) -> String {
        self.key.variant().map_or_else(String::new, |_| format!(".{:?}", self.key.hash()))
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub enum Attempt {
    /// The lock is held for `valid`, counted from the start of the attempt.
    Acquired {
        /// The lock.
        held: Arc<dyn HeldState>,
        /// The time for which it is held.
        valid: Duration,
    },
    /// Another client holds the lock.
    Busy(Busy),
}

/// The details of a lock that another client holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// Time until the lock is free if its holder does not extend it.
    pub remaining: Option<Duration>,
    /// The server's clock at the reply, in microseconds.
    pub now: Option<u64>,
    /// Whether a message will notify the queued waiter. Otherwise it has to poll.
    pub is_notified: bool,
}

impl Attempt {
    /// Creates [`Acquired`](Self::Acquired).
    pub fn acquired(held: impl HeldState, valid: Duration) -> Self {
        Self::Acquired { held: Arc::new(held), valid }
    }
}

/// A lock that was acquired.
pub trait HeldState: fmt::Debug + Send + Sync + 'static {
    /// Releases the lock. If the recipe is owner-safe, the release is [repeated](release_with_retry) when its reply is
    /// lost.
    fn release(&self) -> LockFuture<LeaseStatus>;

    /// Sets the expiry to `ttl` from now.
    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        let _ = ttl;
        Box::pin(async { Err(StoreError::refused("this recipe cannot extend a lock")) })
    }

    /// Checks whether the lock is still held.
    fn check(&self) -> LockFuture<LeaseStatus>;

    /// Returns a number larger than that of every earlier holder, if the recipe has one.
    fn fencing_token(&self) -> Option<u64> {
        None
    }

    /// Returns the safety margin: the lock is valid for its ttl minus this.
    fn margin(&self, ttl: Duration) -> Duration {
        let _ = ttl;
        Duration::ZERO
    }
}

/// Awaits `first`, a release. If its reply is lost, `again` repeats the release.
///
/// If the repetition does not find the lock, the first release has probably deleted it, so the result is `Held`.
#[must_use]
pub fn release_with_retry(first: LockFuture<LeaseStatus>, again: LockFuture<LeaseStatus>) -> LockFuture<LeaseStatus> {
    Box::pin(retry_once_if_disconnected(first, || async { again.await.map(|_| LeaseStatus::Held) }))
}

/// Awaits `first`. If its reply is lost, calls `again`. The guard counts its time from the start of `first` in any case.
pub(super) async fn retry_once_if_disconnected<T, Again: Future<Output = Result<T, StoreError>>>(
    first: impl Future<Output = Result<T, StoreError>>,
    again: impl FnOnce() -> Again,
) -> Result<T, StoreError> {
    match first.await {
        Err(error) if error.is_disconnected() => again().await,
        answer => answer,
    }
}

/// Limits a server operation to `limit`.
pub(super) async fn with_timeout<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    timeout(limit, operation).await.unwrap_or_else(|_| Err(StoreError::timed_out(limit)))
}

/// Returns the ttl in whole milliseconds, the unit of Redis. With more, the guard would outlive the lock on the server.
pub(super) fn check_ttl(name: &Arc<str>, ttl: Duration) -> Result<Duration, LockError> {
    if ttl < Duration::from_millis(1) {
        let reason = format!("a ttl of {ttl:?} is too short: it has to be a millisecond at least");
        return Err(LockError::new(LockErrorKind::Input, name, reason));
    }
    Ok(Duration::from_millis(millis(ttl)))
}

/// Returns [`LeaseStatus::Held`] if `held`, otherwise [`LeaseStatus::Lost`].
#[must_use]
pub fn held_if(held: bool) -> LeaseStatus {
    if held { LeaseStatus::Held } else { LeaseStatus::Lost }
}
