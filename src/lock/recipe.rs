//! The interface between [`Lock`](super::Lock) and its recipes, for lock recipes of your own.
//!
//! Public with the feature `unstable`: any release may change it. The recipes of posts and books that are implemented
//! over it are in `tools/lock-table`.

pub use super::{
    attempt::{Acquisition, Attempt, LockFuture},
    token_lock::check_exists,
};
#[cfg(feature = "unstable")]
pub use super::{
    attempt::{Busy, HeldState, held_if, release_if_acquired, release_with_retry},
    client::LockClient,
    token_lock::{TokenLock, check_token, extend},
};
#[cfg(feature = "unstable")]
pub use crate::{
    redis::connection::{
        error_class::store_error,
        reconnecting::transaction,
        script::{Script, ScriptCall, millis, number, unexpected},
        subscriber::MessageHandler,
    },
    sync::detach::{DetachOnDrop, detach},
};

use super::{guarantees::Guarantees, queue::Queue};
use crate::store::lease::LeaseStatus;
use std::{fmt, sync::Arc, time::Duration};

/// A lock recipe: a way to lock with Redis. Its promises are its [`Guarantees`].
///
/// Recipes of one name share their locks, so another recipe needs another [name](Acquisition::name) in Redis.
pub trait Recipe: fmt::Debug + Send + Sync + 'static {
    /// Returns the name shown in [`held_locks`](super::held_locks), in errors and in `Debug` of a guard.
    fn name(&self) -> &'static str;

    /// Returns the guarantees of the recipe.
    fn guarantees(&self) -> Guarantees;

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

    /// Checks whether the lock is held by any client: [`LeaseStatus::Lost`] if it is free. Default: the lock is held
    /// while the key of the recipe's [name](Self::name) exists.
    fn check_held(&self, acquisition: Arc<Acquisition>) -> LockFuture<LeaseStatus> {
        check_exists(acquisition.clone(), &acquisition.name(self.name()))
    }
}

/// A type that [`Lock::recipe`](super::Lock::recipe) accepts: [`SetPx`](super::SetPx),
/// [`FencedLock`](super::FencedLock) or [`Redlock`](super::Redlock).
pub trait IntoRecipe {
    /// Converts `self` into a recipe.
    #[cfg_attr(not(feature = "unstable"), doc(hidden))]
    fn into_recipe(self) -> Arc<dyn Recipe>;
}

impl<R: Recipe> IntoRecipe for R {
    fn into_recipe(self) -> Arc<dyn Recipe> {
        Arc::new(self)
    }
}

/// Default delay between attempts, as in redislock.
const DELAY: Duration = Duration::from_millis(50);
