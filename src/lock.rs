//! Distributed locks over Redis: [`Lock`], and two lock recipes.
//!
//! Use [`SetPx`], the default, or [`FencedLock`] if you need a fencing token. The
//! [guide](crate::guide::locks) compares their use and failures with Redlock and with seven recipes of posts and books. For recipes of your own, the feature `unstable` opens the module `lock::recipe`.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let server = stampede_guard_support::RedisServer::start();
//! # let (url, job) = (server.url(), async {});
//! use stampede_guard::{lock::{FencedLock, Lock, LockErrorKind}, redis};
//!
//! let lock = Lock::new(redis::Client::open(url)?).recipe(FencedLock);
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

mod acquire;
mod attempt;
mod client;
pub(crate) mod error;
pub(crate) mod guard;
pub(crate) mod handle;
mod queue;
#[cfg(feature = "unstable")]
pub mod recipe;
#[cfg(not(feature = "unstable"))]
pub(crate) mod recipe;
mod validity;

pub use crate::{
    redis::connection::{
        endpoint::{IntoEndpoint, RedisEndpoint},
        source::Connection,
    },
    store::{lease::LeaseStatus, token::Token},
};
pub use error::{LockError, LockErrorKind};
pub use guard::{HeldLock, LockGuard, held_locks};
pub use handle::Lock;
pub use queue::{FencedLock, SetPx};
#[cfg(feature = "unstable")]
pub use recipe::Recipe;
