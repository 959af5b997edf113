//! For tests of code that uses the guard: a fleet in one test, faults by script, fetches that are counted.
//!
//! What a cache in front of a database does while everything works is quickly tested. This module is for the rest: a
//! leader that dies, a lease that ends too early, a store that does not answer, a wake-up that is lost, an invalidation
//! between two steps. Everything runs in the process of the test, on the store that the guard embeds, in virtual time:
//! nothing to install, no sleeping, the same outcome every time.
//!
//! - A [`Server`] takes the place of Redis. Each [`Process`] of it is a store for one guard, and what two guards over two
//!   processes do is what two hosts do: they share entries and leases, and are woken by message.
//! - A [`Fault`] goes wrong with an [`Operation`] of a process, [once](Process::once), [some times](Process::times) or
//!   [always](Process::always). The server [expires](Server::expire_lease), [evicts](Server::evict),
//!   [invalidates](Server::invalidate) and [flushes](Server::flush) on demand. A process [dies](Process::kill), also
//!   [right after it has begun to lead](Process::kill_once_it_leads), or is [deaf](Process::lose_wakes) to wake-ups.
//! - An [`Origin`] is what is expensive: it counts, holds calls back at a [`Gate`], and
//!   [asserts](Origin::assert_fetched_once) that one call was made.
//! - [`advance`] moves the clock.
//!
//! ```
//! # #[cfg(feature = "bincode")]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), stampede_guard::Error> {
//! use stampede_guard::testing::{Origin, Server};
//! use std::time::Duration;
//!
//! let (server, origin) = (Server::new(), Origin::new().takes(Duration::from_millis(300)));
//! let [a, b] = [server.process().guard(), server.process().guard()];
//! let (one, other) = tokio::join!(a.fetch("report", origin.fetch(7)), b.fetch("report", origin.fetch(7)));
//! assert_eq!((one?, other?), (7, 7));
//! origin.assert_fetched_once();
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "bincode"))] fn main() {}
//! ```
//!
//! # Time
//!
//! The guard follows tokio's clock, so a test pauses that (`#[tokio::test(start_paused = true)]`, with tokio's feature
//! `test-util`) instead of being handed a second one that its own code would not follow. Paused, the clock stands still
//! while there is anything to do and jumps to the next timer when there is not.
//!
//! Jitter is drawn from a generator of the thread; [`seed`] makes it repeat itself.
//!
//! This feature switches on parts of tokio that cost time: keep it among the dev-dependencies.

mod event;
mod fault;
mod gate;
mod origin;
mod process;
mod server;

pub use event::{Event, Happened};
pub use fault::{Fault, Operation};
pub use gate::Gate;
pub use origin::Origin;
pub use process::Process;
pub use server::Server;

use std::time::Duration;

/// Lets that much time pass on the paused clock: all that is due before its end happens, each at its own moment. What is
/// due at the very end may still be under way.
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)] async fn main() {
/// use std::time::Duration;
/// use tokio::time::{Instant, sleep};
///
/// let (began, hour) = (Instant::now(), Duration::from_secs(3600));
/// let within = tokio::spawn(async move {
///     sleep(hour / 2).await;
///     began.elapsed()
/// });
/// stampede_guard::testing::advance(hour).await;
/// assert_eq!((within.await.unwrap(), began.elapsed()), (hour / 2, hour));
/// # }
/// ```
///
/// # Panics
///
/// If the clock is not paused: the test would really wait.
pub async fn advance(span: Duration) {
    tokio::time::advance(Duration::ZERO).await; // panics if it cannot
    tokio::time::sleep(span).await;
}

/// Makes all jitter of this thread (wait budgets, polls, lifetimes) repeat itself from here on.
///
/// ```
/// stampede_guard::testing::seed(42);
/// ```
pub fn seed(seed: u64) {
    fastrand::seed(seed);
}
