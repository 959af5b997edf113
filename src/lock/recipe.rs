//! The port between the lock and the ways to lock.

use super::{Guarantees, hub::Hub, owned, queue::Queue};
use crate::{
    clock::Timestamp,
    key::Address,
    lease::{Hold, Token},
    store::{BoxFuture, StoreError},
    wire::{Call, number},
};
use std::{fmt, future::Future, sync::Arc, time::Duration};

/// A way to lock with Redis. What each one promises is its [`Guarantees`]; `docs/locks.md` says which one to use.
///
/// The recipes are those of this module; the trait cannot be implemented elsewhere.
pub trait Recipe: fmt::Debug + Send + Sync + Sealed + 'static {
    /// What it is called in [`held_locks`](super::held_locks), in errors and in `Debug` of a guard.
    fn name(&self) -> &'static str;

    /// What it promises.
    fn guarantees(&self) -> Guarantees;

    /// How long to wait before the next attempt, unless [`Lock::delay`](super::Lock::delay) says otherwise: what the
    /// source of the recipe says. The draw is from `[0, 1)`, for those that wait at random.
    fn delay(&self, draw: f64) -> Duration {
        let _ = draw;
        DELAY
    }

    /// Where those who wait are queued, if they are.
    #[doc(hidden)]
    fn queue(&self) -> Option<Queue> {
        None
    }

    /// Tries once.
    #[doc(hidden)]
    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt>;

    /// Whether anybody holds the lock; [`Hold::Lost`] if nobody does.
    #[doc(hidden)]
    fn look(&self, claim: Arc<Claim>) -> Doing<Hold> {
        owned::look(claim.clone(), &claim.name(self.name()))
    }
}

/// The recipes of this crate.
pub trait Sealed {}

/// An operation that borrows nothing: it can be brought to its end behind, when whoever wanted it has gone away.
pub(crate) type Doing<T> = BoxFuture<'static, Result<T, StoreError>>;

/// What is wanted: which lock, by whom, for how long.
#[derive(Debug)]
pub struct Claim {
    pub(crate) hub: Arc<Hub>,
    pub(crate) at: Address,
    /// New for every claim.
    pub(crate) token: Token,
    pub(crate) ttl: Duration,
    /// Whether who waits longest is next.
    pub(crate) fair: bool,
}

/// Whether who finds the lock held is to be queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// No.
    None,
    /// Its process hears of it.
    Woken,
    /// It asks again.
    Polling,
}

impl Claim {
    /// A name of this lock in Redis; all of them share a slot.
    pub(crate) fn name(&self, of: &str) -> String {
        ["{", self.at.namespace(), ":", &self.at.resource_name(), "}:", of, &self.variant()].concat()
    }

    /// What the lock is called among those of its namespace.
    pub(crate) fn member(&self) -> String {
        self.at.resource_name() + &self.variant()
    }

    /// Runs a script that answers whether the claim holds the lock, or held it.
    pub(crate) fn ask(self: Arc<Self>, call: Call) -> Doing<Hold> {
        Box::pin(async move { Ok(held_if(number(&self.hub.run(call).await?)? != 0)) })
    }

    /// The locks under which the guard computes have one, those that are acquired by name have none: they never meet.
    fn variant(&self) -> String {
        self.at.variant().map_or_else(String::new, |_| format!(".{:?}", self.at.hash()))
    }
}

/// How an attempt ended.
pub enum Attempt {
    /// It is held for `valid` from the moment when the attempt began.
    Acquired { held: Arc<dyn Held>, valid: Duration },
    /// Somebody else holds it.
    Busy(Busy),
}

/// What is known of the one who holds it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Busy {
    /// When it will be free if nobody extends it.
    pub(crate) remaining: Option<Duration>,
    /// The server's clock, in microseconds.
    pub(crate) now: Option<u64>,
}

impl Attempt {
    pub(crate) fn acquired(held: impl Held, valid: Duration) -> Self {
        Self::Acquired { held: Arc::new(held), valid }
    }

    /// As the end of an attempt that began so much before the last question was asked.
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
pub trait Held: Send + Sync + 'static {
    /// Gives it back.
    fn release(&self) -> Doing<Hold>;

    /// Prolongs it to that time from now.
    fn extend(&self, ttl: Duration) -> Doing<Hold> {
        let _ = ttl;
        Box::pin(async { Err(StoreError::refused("this recipe cannot extend a lock")) })
    }

    /// Whether it is still held.
    fn check(&self) -> Doing<Hold>;

    /// A number that is larger than those of all who held it before.
    fn fencing_token(&self) -> Option<u64> {
        None
    }

    /// How much shorter than its ttl it is safe to use.
    fn margin(&self, ttl: Duration) -> Duration {
        let _ = ttl;
        Duration::ZERO
    }
}

/// Releases a lock. If the reply is lost, it is asked for again where that does no harm: only an owner-safe recipe is. What
/// was released by then counts as held until now.
pub(crate) fn give_back(first: Doing<Hold>, again: Option<Doing<Hold>>) -> Doing<Hold> {
    match again {
        Some(again) => Box::pin(or_again(first, |_| async { again.await.map(|_| Hold::Held) })),
        None => first,
    }
}

/// What to do instead if the reply is lost, so long after the first was asked for.
pub(crate) async fn or_again<T, Again: Future<Output = Result<T, StoreError>>>(
    first: impl Future<Output = Result<T, StoreError>>,
    again: impl FnOnce(Duration) -> Again,
) -> Result<T, StoreError> {
    let begun = Timestamp::now();
    match first.await {
        Err(error) if error.is_disconnected() => again(Timestamp::now().since(begun)).await,
        answer => answer,
    }
}

pub(crate) fn held_if(held: bool) -> Hold {
    if held { Hold::Held } else { Hold::Lost }
}

/// redislock's.
const DELAY: Duration = Duration::from_millis(50);
