//! One attempt to acquire a lock: its parameters, its result, and the lock that it holds.

use super::client::LockClient;
use crate::{
    clock::Timestamp,
    key::CacheKey,
    redis::connection::script::{ScriptCall, number},
    store::{
        error::{BoxFuture, StoreError},
        lease::LeaseStatus,
        token::Token,
    },
};
use std::{fmt, future::Future, sync::Arc, time::Duration};

/// A lock operation that borrows nothing, so that it can continue in the background if its caller is cancelled.
pub type LockFuture<T> = BoxFuture<'static, Result<T, StoreError>>;

/// The parameters of one acquisition: lock, token and ttl.
#[derive(Debug)]
pub struct Acquisition {
    /// The client that sends the commands.
    pub client: Arc<LockClient>,
    /// The lock.
    pub key: CacheKey,
    /// Unique to this acquisition.
    pub token: Token,
    /// The time to live of the lock.
    pub ttl: Duration,
    /// Whether a released lock goes to the waiter that has waited longest.
    pub fair: bool,
}

/// The registration in the queue that an attempt requests if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registration {
    /// Do not join the queue.
    None,
    /// Join the queue; a message notifies the process if the server sees its subscriber.
    Notified,
    /// Join the queue; the process polls.
    Polling,
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

    /// Adds `by` to the validity, for a last request sent that much later than the start of the attempt.
    pub(crate) fn begun_earlier(self, by: Duration) -> Self {
        match self {
            Self::Acquired { held, valid } => Self::Acquired { held, valid: valid.saturating_add(by) },
            busy @ Self::Busy(_) => busy,
        }
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Acquired { valid, .. } => f.debug_struct("Acquired").field("valid", valid).finish_non_exhaustive(),
            Self::Busy(busy) => busy.fmt(f),
        }
    }
}

/// A lock that was acquired.
pub trait HeldState: Send + Sync + 'static {
    /// Releases the lock.
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

/// Releases a lock. If the reply is lost and the recipe is owner-safe, `again` repeats the release.
///
/// If the repetition does not find the lock, the first release has probably deleted it, so the result is `Held`.
#[must_use]
pub fn release_with_retry(
    first: LockFuture<LeaseStatus>,
    again: Option<LockFuture<LeaseStatus>>,
) -> LockFuture<LeaseStatus> {
    match again {
        Some(again) => {
            Box::pin(retry_once_if_disconnected(first, |_| async { again.await.map(|_| LeaseStatus::Held) }))
        }
        None => first,
    }
}

/// Awaits `first`. If its reply is lost, calls `again` with the time since the start of `first`.
pub(crate) async fn retry_once_if_disconnected<T, Again: Future<Output = Result<T, StoreError>>>(
    first: impl Future<Output = Result<T, StoreError>>,
    again: impl FnOnce(Duration) -> Again,
) -> Result<T, StoreError> {
    let begun = Timestamp::now();
    match first.await {
        Err(error) if error.is_disconnected() => again(Timestamp::now().since(begun)).await,
        answer => answer,
    }
}

/// Returns [`LeaseStatus::Held`] if `held`, otherwise [`LeaseStatus::Lost`].
#[must_use]
pub fn held_if(held: bool) -> LeaseStatus {
    if held { LeaseStatus::Held } else { LeaseStatus::Lost }
}

/// Releases a lock that was granted after its caller was cancelled.
#[must_use]
pub fn release_if_acquired(attempt: Result<Attempt, StoreError>) -> Option<BoxFuture<'static, ()>> {
    match attempt {
        Ok(Attempt::Acquired { held, .. }) => Some(Box::pin(async move { drop(held.release().await) })),
        _ => None,
    }
}
