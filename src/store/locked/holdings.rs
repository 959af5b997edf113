//! The locks under which this process computes.

use crate::{
    clock::Timestamp,
    key::{Address, KeyHash},
    lease::{Lease, Token},
    lock::recipe::Held,
};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// What a lease is held under.
pub(super) struct Holding {
    pub(super) at: Address,
    pub(super) hash: KeyHash,
    pub(super) held: Arc<dyn Held>,
    /// How long it lives when it is extended,
    pub(super) span: Duration,
    /// and if it is not.
    pub(super) until: Timestamp,
}

/// Each is taken out by whoever releases it, and forgotten after its time.
#[derive(Default)]
pub(super) struct Holdings(Mutex<Table>);

#[derive(Default)]
struct Table {
    held: HashMap<Token, (Lease, Holding)>,
    /// The table is swept of what has expired when it grows to this size.
    sweep_at: usize,
}

impl Holdings {
    pub(super) fn insert(&self, lease: Lease, holding: Holding) {
        let mut table = self.lock();
        if table.held.len() >= table.sweep_at {
            let now = Timestamp::now();
            table.held.retain(|_, (_, holding)| now < holding.until);
            table.sweep_at = (2 * table.held.len()).max(LEAST_SWEPT);
        }
        table.held.insert(lease.token, (lease, holding));
    }

    /// The lock of that token, whichever its stamp.
    pub(super) fn of(&self, token: Token) -> Option<Arc<dyn Held>> {
        self.lock().held.get(&token).map(|(_, holding)| holding.held.clone())
    }

    pub(super) fn get(&self, lease: Lease) -> Option<(Arc<dyn Held>, Timestamp)> {
        let table = self.lock();
        let (_, holding) = table.held.get(&lease.token).filter(|(held, _)| *held == lease)?;
        Some((holding.held.clone(), holding.until))
    }

    /// The leases of that key hash, or of all.
    pub(super) fn under(&self, hash: Option<&[u8]>) -> Vec<(Lease, Address, Duration)> {
        let table = self.lock();
        let here = table.held.values().filter(|(_, holding)| hash.is_none_or(|hash| holding.hash.as_bytes() == hash));
        here.map(|(lease, holding)| (*lease, holding.at.clone(), holding.span)).collect()
    }

    pub(super) fn extended(&self, lease: Lease, until: Timestamp) {
        if let Some((_, holding)) = self.lock().held.get_mut(&lease.token) {
            holding.until = until;
        }
    }

    pub(super) fn take(&self, lease: Lease) -> Option<Holding> {
        let mut table = self.lock();
        table.held.get(&lease.token).filter(|(held, _)| *held == lease)?;
        table.held.remove(&lease.token).map(|(_, holding)| holding)
    }

    /// The same, whichever its stamp.
    pub(super) fn remove(&self, token: Token) -> Option<Holding> {
        self.lock().held.remove(&token).map(|(_, holding)| holding)
    }

    pub(super) fn len(&self) -> usize {
        self.lock().held.len()
    }

    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const LEAST_SWEPT: usize = 64;
