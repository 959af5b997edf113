//! The interface between [`Lock`](super::Lock) and the recipes.

use super::{
    attempt::{Acquisition, Attempt, LockFuture},
    guarantees::Guarantees,
    queue::Queue,
    token_lock,
};
use crate::store::lease::LeaseStatus;
use std::{fmt, sync::Arc, time::Duration};

/// A lock recipe: a way to lock with Redis. Its promises are its [`Guarantees`]; `docs/locks.md` says when to use it.
///
/// The trait is sealed: only the recipes of this module implement it.
pub trait Recipe: fmt::Debug + Send + Sync + Sealed + 'static {
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

    /// Returns the queue of the waiters, if the recipe has one.
    #[doc(hidden)]
    fn queue(&self) -> Option<Queue> {
        None
    }

    /// Makes one attempt to acquire the lock.
    #[doc(hidden)]
    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt>;

    /// Checks whether the lock is held by any client: [`LeaseStatus::Lost`] if it is free.
    #[doc(hidden)]
    fn check_held(&self, acquisition: Arc<Acquisition>) -> LockFuture<LeaseStatus> {
        token_lock::check_exists(acquisition.clone(), &acquisition.name(self.name()))
    }
}

/// A bound that restricts [`Recipe`] to the recipes of this crate.
pub trait Sealed {}

/// Default delay between attempts, as in redislock.
const DELAY: Duration = Duration::from_millis(50);
