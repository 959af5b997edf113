//! The locks that this process holds for its fetches.

use crate::mutex::Mutex;
use stampede_guard::{
    lock::recipe::HeldState,
    store::{CacheKey, KeyHash, Lease, Timestamp, Token},
};
use std::{collections::HashMap, sync::Arc, time::Duration};

/// A held lock, and the key that it protects.
pub(super) struct HeldLockEntry {
    pub(super) key: CacheKey,
    pub(super) hash: KeyHash,
    pub(super) held: Arc<dyn HeldState>,
    /// The ttl that an extension sets.
    pub(super) span: Duration,
    /// The end of the lock without an extension.
    pub(super) until: Timestamp,
}

/// The table of held locks, by the token of their lease. A release removes its item; expired items are swept.
#[derive(Default)]
pub(super) struct HeldLocks(Mutex<Table>);

#[derive(Default)]
struct Table {
    held: HashMap<Token, (Lease, HeldLockEntry)>,
    /// The size at which an insertion sweeps expired items.
    sweep_at: usize,
}

impl HeldLocks {
    pub(super) fn insert(&self, lease: Lease, entry: HeldLockEntry) {
        let mut table = self.0.lock();
        if table.held.len() >= table.sweep_at {
            let now = Timestamp::now();
            table.held.retain(|_, (_, entry)| now < entry.until);
            table.sweep_at = (2 * table.held.len()).max(LEAST_SWEPT);
        }
        table.held.insert(lease.token, (lease, entry));
    }

    /// Returns the lock of the token, for any stamp.
    pub(super) fn of(&self, token: Token) -> Option<Arc<dyn HeldState>> {
        self.0.lock().held.get(&token).map(|(_, entry)| entry.held.clone())
    }

    pub(super) fn get(&self, lease: Lease) -> Option<(Arc<dyn HeldState>, Timestamp)> {
        let table = self.0.lock();
        let (_, entry) = table.held.get(&lease.token).filter(|(held, _)| *held == lease)?;
        Some((entry.held.clone(), entry.until))
    }

    /// Returns the leases with the key hash, or all leases if it is `None`.
    pub(super) fn under(&self, hash: Option<&[u8]>) -> Vec<(Lease, CacheKey, Duration)> {
        let table = self.0.lock();
        let here = table.held.values().filter(|(_, entry)| hash.is_none_or(|hash| entry.hash.as_bytes() == hash));
        here.map(|(lease, entry)| (*lease, entry.key.clone(), entry.span)).collect()
    }

    pub(super) fn extended(&self, lease: Lease, until: Timestamp) {
        if let Some((_, entry)) = self.0.lock().held.get_mut(&lease.token) {
            entry.until = until;
        }
    }

    pub(super) fn take(&self, lease: Lease) -> Option<HeldLockEntry> {
        let mut table = self.0.lock();
        table.held.get(&lease.token).filter(|(held, _)| *held == lease)?;
        table.held.remove(&lease.token).map(|(_, entry)| entry)
    }

    /// Removes the lock of the token, for any stamp.
    pub(super) fn remove(&self, token: Token) -> Option<HeldLockEntry> {
        self.0.lock().held.remove(&token).map(|(_, entry)| entry)
    }

    pub(super) fn len(&self) -> usize {
        self.0.lock().held.len()
    }
}

/// Minimum size of the table at which an insertion sweeps it.
const LEAST_SWEPT: usize = 64;
