//! The interface between [`Lock`](super::Lock) and its recipes, for lock recipes of your own.
//!
//! Public with the feature `unstable`: any release may change it. The recipes of posts and books that are implemented
//! over it are in `tools/lock-table`.

pub use super::attempt::{Acquisition, Attempt, LockFuture};
#[cfg(feature = "unstable")]
pub use super::{
    attempt::{Busy, HeldState, held_if, release_with_retry},
    client::LockClient,
};
#[cfg(feature = "unstable")]
pub use crate::{
    redis::connection::{
        error_class::store_error,
        script::{Script, ScriptCall, millis, number, unexpected},
        subscriber::MessageHandler,
    },
    sync::detach::{DetachOnDrop, detach},
};

use std::{fmt, sync::Arc, time::Duration};

/// A lock recipe: a way to lock with Redis.
///
/// Recipes of one name share their locks, so another recipe needs another [name](Acquisition::name) in Redis.
pub trait Recipe: fmt::Debug + Send + Sync + 'static {
    /// Returns the name shown in [`held_locks`](super::held_locks), in errors and in `Debug` of a guard.
    fn name(&self) -> &'static str;

    /// Returns the delay before the next attempt, as in the source of the recipe. [`Lock::delay`](super::Lock::delay)
    /// overrides it. `random_unit` is a random number in `[0, 1)`, for recipes with a random delay.
    fn delay(&self, random_unit: f64) -> Duration {
        let _ = random_unit;
        DELAY
    }

    /// Returns the queue of the waiters, if the recipe has one. For recipes of the crate.
    #[doc(hidden)]
    fn queue(&self) -> Option<Queue> {
        None
    }

    /// Makes one attempt to acquire the lock.
    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt>;
}

/// A kind of lock with a queue of waiters.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The name of the recipe, part of the lock's name in Redis.
    pub(super) name: &'static str,
    /// Whether the server's time at the grant follows the token in the lock's value. It serves as the fencing token.
    pub(super) has_fencing_token: bool,
}

/// Default delay between attempts, as in redislock.
const DELAY: Duration = Duration::from_millis(50);
