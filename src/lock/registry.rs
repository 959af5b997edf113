//! The registry of the locks that this process holds.

use crate::{clock::Timestamp, sync::mutex::Mutex};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A lock that this process holds, as listed by [`held_locks`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name that the lock was acquired by.
    pub name: Arc<str>,
    /// The [namespace](super::Lock::namespace) of the name.
    pub namespace: Arc<str>,
    /// The name of the recipe.
    pub recipe: &'static str,
    /// The [fencing token](super::LockGuard::fencing_token), if the recipe has one.
    pub fencing_token: Option<u64>,
    since: Timestamp,
}

impl HeldLock {
    /// Returns the time since the lock was acquired.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        Timestamp::now().since(self.since)
    }
}

/// Returns the locks that this process holds, of all handles and servers, in the order of their acquisition.
///
/// A lock is listed while its [`LockGuard`](super::LockGuard) exists, even if it has been
/// [lost](super::LockGuard::lost). Equivalent to `getAcquiredLocks` of redislock.
#[must_use]
pub fn held_locks() -> Vec<HeldLock> {
    HELD.lock().values().cloned().collect()
}

/// An entry of the registry. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct RegistryEntry(u64);

impl RegistryEntry {
    pub(crate) fn new(name: &Arc<str>, namespace: &Arc<str>, recipe: &'static str, fencing_token: Option<u64>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (name, namespace, since) = (name.clone(), namespace.clone(), Timestamp::now());
        let number = NEXT.fetch_add(1, Relaxed);
        HELD.lock().insert(number, HeldLock { name, namespace, recipe, fencing_token, since });
        Self(number)
    }
}

impl Drop for RegistryEntry {
    fn drop(&mut self) {
        HELD.lock().remove(&self.0);
    }
}

static HELD: Mutex<BTreeMap<u64, HeldLock>> = Mutex::new(BTreeMap::new());
