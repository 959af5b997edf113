//! Lock recipes of posts and books over the interface that the feature `unstable` of `stampede-guard` opens, and a
//! cache under any lock: [`LockedStore`].
//!
//! Not for new work: take [`Lock`](stampede_guard::Lock) with its default recipe, [`SetPx`]. They are here because they
//! are in use, so that their behaviour can be seen, tested and measured. `src/guide/locks.md` compares use and failures.
//!
//! The seed documents, the sources of the recipes, are numbered:
//!
//! - 000: a post on locking with node.js and Redis.
//! - 001: the README of redislock.
//! - 002: "Redis in Action", section 11.2.2.
//! - 003: the page of `SETNX` in the Redis documentation.
//! - 004: the post "Redis as a mutex service".
#![allow(clippy::disallowed_methods, reason = "a recipe compares the clocks of hosts")]

mod guarantees;
mod historical;
mod mutex;
mod redlock;
mod store;
mod token_lock;

pub use guarantees::{Guarantees, LabRecipe};
pub use historical::{
    counter::Counter, exists_setex::ExistsSetex, getset::GetSet, rename::Rename, set_membership::SetMembership,
    setnx_expire::SetnxExpire, watch::Watch,
};
pub use redlock::Redlock;
pub use store::{LockedStore, RecipeRefused};
