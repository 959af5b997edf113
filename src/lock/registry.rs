//! What this process holds now.

use crate::clock::Timestamp;
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

/// A lock that this process holds, as [`held_locks`] lists it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name it was acquired by.
    pub name: Arc<str>,
    /// The [namespace](super::Lock::namespace) of that name.
    pub namespace: Arc<str>,
    /// The [name of the recipe](super::Recipe::name).
    pub recipe: &'static str,
    /// See [`LockGuard::fencing_token`](super::LockGuard::fencing_token).
    pub fencing_token: Option<u64>,
    since: Timestamp,
}

impl HeldLock {
    /// For how long it has been held.
    #[must_use]
    pub fn held_for(&self) -> Duration {
        Timestamp::now().since(self.since)
    }
}

/// Every lock that this process holds now, of all handles and servers, in the order in which they were acquired:
/// redislock's `getAcquiredLocks`.
///
/// A lock is listed while its [`LockGuard`](super::LockGuard) exists, also when it has been
/// [lost](super::LockGuard::lost) meanwhile.
#[must_use]
pub fn held_locks() -> Vec<HeldLock> {
    table().values().cloned().collect()
}

/// A line of the list, for as long as it exists.
#[derive(Debug)]
pub(crate) struct Listed(u64);

impl Listed {
    pub(crate) fn new(name: &Arc<str>, namespace: &Arc<str>, recipe: &'static str, fencing_token: Option<u64>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (name, namespace, since) = (name.clone(), namespace.clone(), Timestamp::now());
        let number = NEXT.fetch_add(1, Relaxed);
        table().insert(number, HeldLock { name, namespace, recipe, fencing_token, since });
        Self(number)
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        table().remove(&self.0);
    }
}

/// Nothing panics while it holds this.
fn table() -> MutexGuard<'static, BTreeMap<u64, HeldLock>> {
    static HELD: Mutex<BTreeMap<u64, HeldLock>> = Mutex::new(BTreeMap::new());
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}
