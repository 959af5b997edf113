//! The interface between [`Lock`](super::Lock) and its recipes, for lock recipes of your own.
//!
//! Public with the feature `unstable`: any release may change it. The recipes of posts and books that are implemented
//! over it are in `tools/lock-table`.

pub use super::attempt::{Acquisition, Attempt, LockFuture, check_exists};
#[cfg(feature = "unstable")]
pub use super::{
    attempt::{Busy, HeldState, TokenLock, held_if, release_with_retry},
    client::LockClient,
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

/// A kind of lock with a queue of waiters.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The name of the recipe, part of the lock's name in Redis.
    pub(super) name: &'static str,
    /// Whether the server's time at the grant follows the token in the lock's value. It serves as the fencing token.
    pub(super) has_fencing_token: bool,
}

/// The guarantees of a recipe on one Redis primary without a failover.
///
/// The table of all recipes in `docs/locks.md` is generated from these values, and tests compare each value with a real
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The lock of a crashed holder becomes free after at most its ttl. Without this guarantee a crash blocks the lock
    /// forever.
    pub crash_frees: bool,
    /// A former holder cannot release the lock of the current holder, however late it tries.
    pub owner_safe: bool,
    /// The holder can extend the lock, so that the ttl may be shorter than the work.
    pub extendable: bool,
    /// The value of the lock's key identifies its holder, so that a script can refuse the writes of a late holder.
    pub fenceable: bool,
    /// An acquisition or a release may be sent again if the first reply was lost: twice has the same effect as once.
    pub replay_safe: bool,
    /// The recipe does not compare the clocks of two hosts.
    pub clock_free: bool,
    /// The recipe works over connections that are shared with other users.
    pub multiplex_safe: bool,
    /// All keys of one lock are in one slot of a Redis Cluster, and different locks are spread over the slots.
    pub one_slot: bool,
}

impl Guarantees {
    /// All guarantees.
    pub(crate) const ALL: Self = Self {
        crash_frees: true,
        owner_safe: true,
        extendable: true,
        fenceable: true,
        replay_safe: true,
        clock_free: true,
        multiplex_safe: true,
        one_slot: true,
    };
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
