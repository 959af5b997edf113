//! Test support for code that uses the guard: a fleet of nodes in one test, scripted faults, and counted fetches.
//!
//! The module covers failures that are hard to test otherwise: a leader that crashes, a lease that ends too early, a
//! store that does not reply, a lost wake-up, an invalidation between two steps. Everything runs in the process of the
//! test, on the embedded memory store, in virtual time. There is nothing to install, no real sleep, and each run has
//! the same result.
//!
//! - A [`FakeRedis`] replaces Redis. Each [`Node`] of it is a store for one guard. Two guards over two nodes behave
//!   like two hosts: they share entries and leases, and messages notify their waiters.
//! - A [`Fault`] makes an [`Operation`] of a node fail [once](Node::once), [several times](Node::times) or
//!   [always](Node::always). The server [expires](FakeRedis::expire_lease), [evicts](FakeRedis::evict),
//!   [invalidates](FakeRedis::invalidate) and [flushes](FakeRedis::flush) on demand. A node can be
//!   [killed](Node::kill), also [when it starts to lead](Node::kill_once_it_leads), and can
//!   [lose wake-ups](Node::lose_wakes).
//! - An [`Origin`] is the fake expensive call. It counts its calls, holds them at a [`Gate`], and
//!   [asserts](Origin::assert_fetched_once) that exactly one was made.
//! - [`advance`] moves the clock.
//!
//! ```
//! # #[cfg(feature = "bincode")]
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), stampede_guard::Error> {
//! use stampede_guard::testing::{FakeRedis, Origin};
//! use std::time::Duration;
//!
//! let (server, origin) = (FakeRedis::new(), Origin::new().takes(Duration::from_millis(300)));
//! let [a, b] = [server.node().guard(), server.node().guard()];
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
//! The guard uses tokio's clock. A test pauses that clock with `#[tokio::test(start_paused = true)]`, which needs
//! tokio's feature `test-util`. There is no separate mock clock, because the code under test would not follow it. A
//! paused clock stands still while a task can run, and then jumps to the next timer.
//!
//! Jitter comes from a random generator of the thread; [`seed`] makes it repeatable.
//!
//! The feature `testing` enables parts of tokio that cost time: enable it in the dev-dependencies only.

mod event;
mod fault;
mod fleet;
mod origin;

pub use event::Event;
#[cfg(feature = "unstable")]
pub use event::EventKind;
pub use fault::{Fault, Operation};
pub use fleet::{FakeRedis, Node};
pub use origin::{Gate, Origin};

use std::time::Duration;

/// Lets `span` pass on the paused clock.
///
/// Every timer that is due before the end fires at its own time. Work that is due exactly at the end may still be
/// running when this returns.
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
/// Panics if the clock is not paused, because the test would wait in real time.
pub async fn advance(span: Duration) {
    tokio::time::advance(Duration::ZERO).await; // panics if the clock is not paused
    tokio::time::sleep(span).await;
}

/// Seeds the jitter of this thread (wait timeouts, polls, lifetimes), so that it repeats from here on.
///
/// ```
/// stampede_guard::testing::seed(42);
/// ```
pub fn seed(seed: u64) {
    fastrand::seed(seed);
}
