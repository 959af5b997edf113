//! Locks by themselves: [`Lock`], ten ways to lock ([`Recipe`]), and what each of them promises ([`Guarantees`]).
//!
//! Which one to use, what each costs and how it fails is in `docs/locks.md`. In short: [`SetPx`], the default, unless you
//! need a fencing token, which [`Fused`] has. The others are here because they are in use, in posts, books and systems,
//! and whoever meets one should be able to see what it does.
//!
//! ```no_run
//! # async fn example(job: impl Future<Output = ()>) -> Result<(), Box<dyn std::error::Error>> {
//! use stampede_guard::{lock::{Fused, Lock, LockErrorKind}, redis};
//!
//! let lock = Lock::new(redis::Client::open("redis://127.0.0.1/")?).recipe(Fused);
//! let guard = match lock.acquire("nightly-report").await {
//!     Ok(guard) => guard,
//!     Err(error) if error.kind() == LockErrorKind::Acquisition => return Ok(()), // somebody else does it
//!     Err(error) => return Err(error.into()),                                    // nobody knows: Redis is away
//! };
//! guard.keep_alive()?;
//! tokio::select! {
//!     () = job => guard.release().await?,
//!     () = guard.lost() => eprintln!("stopped: somebody else may be at work"),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The texts that the recipes come from are numbered. 000: a post on locking with node.js and Redis. 001: the README of
//! redislock. 002: "Redis in Action", 11.2.2. 003: the page of `SETNX` in the Redis documentation. 004: the post "Redis as
//! a mutex service".

pub(crate) mod behind;
mod counter;
mod error;
mod exists_setex;
mod fused;
mod getset;
mod guarantees;
mod guard;
mod handle;
pub(crate) mod hub;
mod owned;
mod queue;
pub(crate) mod recipe;
mod redlock;
mod registry;
mod rename;
mod set_membership;
mod set_px;
mod setnx_expire;
mod tenure;
pub(crate) mod wanted;
mod watch;
mod watched;

pub use crate::{
    lease::{Hold, Token},
    wire::{Connection, IntoServer, Server},
};
pub use counter::Counter;
pub use error::{LockError, LockErrorKind};
pub use exists_setex::ExistsSetex;
pub use fused::Fused;
pub use getset::GetSet;
pub use guarantees::Guarantees;
pub use guard::LockGuard;
pub use handle::Lock;
pub use recipe::Recipe;
pub use redlock::Redlock;
pub use registry::{HeldLock, held_locks};
pub use rename::Rename;
pub use set_membership::SetMembership;
pub use set_px::SetPx;
pub use setnx_expire::SetnxExpire;
pub use watch::Watch;
