//! What happens to a store from outside, for the feature `testing`.

use super::{Address, Entry, Held, MemoryStore, Timestamp, What};
use std::cell::RefCell;

impl MemoryStore {
    /// Ends leases; returns whose.
    pub(crate) fn expire_leases(&self, which: impl Fn(&Address) -> bool, now: Timestamp) -> Vec<Address> {
        let mut expired = Vec::new();
        for mut shelf in self.leases.each() {
            for (at, held) in &mut shelf.table {
                if now < held.until && held.is_lease() && which(at) {
                    held.until = now;
                    expired.push(at.clone());
                }
            }
        }
        in_order(expired)
    }

    /// Drops entries; returns which.
    pub(crate) fn evict(&self, which: impl Fn(&Address) -> bool) -> Vec<Address> {
        let evicted = RefCell::default();
        self.entries.retain(|at, _| {
            let keep = !which(at);
            if !keep {
                Vec::push(&mut evicted.borrow_mut(), at.clone());
            }
            keep
        });
        in_order(evicted.into_inner())
    }

    /// Drops all entries, leases and tombstones.
    pub(crate) fn clear(&self) {
        for mut shelf in self.leases.each() {
            shelf.table.clear();
        }
        self.entries.clear();
    }

    /// Addresses with an entry, a lease or a tombstone.
    pub(crate) fn known(&self, which: impl Fn(&Address) -> bool) -> Vec<Address> {
        let led = self.leases.each().flat_map(|shelf| shelf.table.keys().cloned().collect::<Vec<_>>());
        let stored = self.entries.iter().map(|(at, _)| at);
        let mut known = in_order(led.chain(stored).filter(|at| which(at)));
        known.dedup();
        known
    }

    pub(crate) fn any_entry(&self, which: impl Fn(&Address, &Entry) -> bool) -> bool {
        self.entries.iter().any(|(at, entry)| which(&at, &entry))
    }

    /// How many leases are held.
    pub(crate) fn leases(&self, which: impl Fn(&Address) -> bool, now: Timestamp) -> usize {
        let held = |(at, held): &(&Address, &Held)| now < held.until && held.is_lease() && which(at);
        self.leases.each().map(|shelf| shelf.table.iter().filter(held).count()).sum()
    }
}

impl Held {
    fn is_lease(&self) -> bool {
        matches!(self.what, What::Lease(_))
    }
}

/// Not as they are hashed, which differs from run to run.
fn in_order(addresses: impl IntoIterator<Item = Address>) -> Vec<Address> {
    let mut addresses: Vec<_> = addresses.into_iter().collect();
    addresses.sort_unstable_by_key(|at| (*at.hash().as_bytes(), at.schema()));
    addresses
}
