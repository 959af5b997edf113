//! What the tables of waiters and flights are locked with, and tell the news through.
//!
//! It is std and tokio. Only where schedules are explored, every step on them is one at which another thread may get in.

#[cfg(test)]
mod explored;

#[cfg(test)]
pub(crate) use explored::{Mutex, MutexGuard, any, explore, watch};
#[cfg(not(test))]
pub(crate) use {
    std::sync::{Mutex, MutexGuard},
    tokio::sync::watch,
};
