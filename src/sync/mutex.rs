//! A mutex whose `lock` cannot fail.
//!
//! Not `tokio::sync::Mutex`, whose `lock` is awaited: destructors and polls cannot await, and no code here awaits while
//! it holds a lock. Not `parking_lot`'s, because a lock that is never poisoned would be all that this dependency adds.
//! Std's is poisoned after a panic, which helps no caller here: no code panics between two changes that belong
//! together.

#[cfg(test)]
use super::schedules as sync;
#[cfg(not(test))]
use std::sync;

use std::sync::PoisonError;
pub(crate) use sync::MutexGuard;

/// A mutex of std without its poison. In unit tests it also hands control to the schedule explorer.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
