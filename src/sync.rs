//! What is locked by everything that waits within a process: std's, but where schedules are explored, one with which
//! every step is one at which another thread may get in.

#[cfg(test)]
mod explored;

#[cfg(test)]
pub(crate) use explored::{Mutex, MutexGuard, any, explore};
#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard};
