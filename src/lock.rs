//! Distributed locks over Redis: [`Lock`], ten lock recipes ([`Recipe`]), and the [`Guarantees`] of each recipe.
//!
//! Use [`SetPx`], the default, or [`FencedLock`] if you need a fencing token. The other recipes are here because posts,
//! books and systems use them, so that readers can see how each one behaves. `docs/locks.md` compares use, cost and
//! failures.
//!
//! ```no_run
//! # async fn example(job: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
//! use stampede_guard::{lock::{FencedLock, Lock, LockErrorKind}, redis};
//!
//! let lock = Lock::new(redis::Client::open("redis://127.0.0.1/")?).recipe(FencedLock);
//! let guard = match lock.acquire("nightly-report").await {
//!     Ok(guard) => guard,
//!     Err(error) if error.kind() == LockErrorKind::Acquisition => return Ok(()), // another client holds it
//!     Err(error) => return Err(error.into()),                                    // unknown: Redis is unavailable
//! };
//! guard.keep_alive()?;
//! tokio::select! {
//!     () = job => guard.release().await?,
//!     () = guard.lost() => eprintln!("stopped: another client may hold the lock"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The seed documents, the sources of the recipes, are numbered:
//!
//! - 000: a post on locking with node.js and Redis.
//! - 001: the README of redislock.
//! - 002: "Redis in Action", section 11.2.2.
//! - 003: the page of `SETNX` in the Redis documentation.
//! - 004: the post "Redis as a mutex service".

mod acquire;
mod attempt;
mod client;
mod config;
pub(crate) mod error;
mod fenced_lock;
mod guarantees;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod historical;
mod limits;
mod queue;
pub(crate) mod recipe;
mod redlock;
mod registry;
mod scripts;
mod set_px;
pub(crate) mod store;
mod token_lock;
mod validity;

pub use crate::{
    redis::connection::{
        connect::Connection,
        endpoint::{IntoEndpoint, RedisEndpoint},
    },
    store::{lease::LeaseStatus, token::Token},
};
pub use error::{LockError, LockErrorKind};
pub use fenced_lock::FencedLock;
pub use guarantees::Guarantees;
pub use guard::LockGuard;
pub use handle::Lock;
pub use historical::{
    counter::Counter, exists_setex::ExistsSetex, getset::GetSet, rename::Rename, set_membership::SetMembership,
    setnx_expire::SetnxExpire, watch::Watch,
};
pub use recipe::Recipe;
pub use redlock::Redlock;
pub use registry::{HeldLock, held_locks};
pub use set_px::SetPx;
pub use store::LockedStore;
