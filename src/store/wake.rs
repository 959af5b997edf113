//! The waiters of this process, by key, and their wake-ups.

#[cfg(test)]
mod schedules;

use super::token::{Inbox, Token};
use crate::{
    key::{CacheKey, KeyHash},
    sync::{mutex::Mutex, watch::Watched},
};
use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

/// The registry of the waiters of one process, for a store to wake. Cheap to clone.
#[derive(Clone, Debug)]
pub struct WakeRegistry {
    inbox: Inbox,
    /// In order, so that a simulation wakes all waiters in the same order in each run.
    table: Arc<Mutex<BTreeMap<KeyHash, Subscription>>>,
}

/// The subscription of this process to one key, shared by its listeners.
#[derive(Debug)]
struct Subscription {
    count: Arc<Watched<WakeCount>>,
    listeners: usize,
    /// The tokens of current attempts to lead and of held leases. A lease under any other token of this inbox is
    /// orphaned.
    tokens: Vec<Token>,
}

/// The number of wake-ups so far. Two simultaneous ones are counted, so neither is lost.
#[derive(Clone, Copy, Debug, Default)]
struct WakeCount {
    notifications: u64,
    invalidations: u64,
}

impl WakeRegistry {
    /// Creates a registry without waiters, with an inbox of its own.
    #[must_use]
    pub fn new() -> Self {
        Self { inbox: Inbox::unique(), table: Arc::default() }
    }

    /// Returns the inbox of this process.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        self.inbox
    }

    /// Subscribes to the wake-ups of the cache key, until the listener is dropped.
    #[must_use]
    pub fn listen(&self, key: &CacheKey) -> Listener {
        let hash = key.hash();
        let mut table = self.table.lock();
        let subscription = table.entry(hash).or_insert_with(|| Subscription {
            count: Arc::new(Watched::new(WakeCount::default())),
            listeners: 0,
            tokens: Vec::with_capacity(1),
        });
        subscription.listeners += 1;
        let count = subscription.count.clone();
        let last = count.get();
        Listener { wakes: self.clone(), hash, count, last, token: None }
    }

    /// Wakes the waiters of this key.
    pub fn wake(&self, hash: KeyHash) {
        self.notify(hash, 0);
    }

    /// Wakes the waiters and the leader of this key: its entry and lease were dropped by an invalidation.
    pub fn invalidated(&self, hash: KeyHash) {
        self.notify(hash, 1);
    }

    /// Wakes all waiters, because wake-ups may have been lost.
    pub fn wake_all(&self) {
        for subscription in self.table.lock().values() {
            subscription.count.send_modify(|count| count.notifications += 1);
        }
    }

    /// Returns the number of keys with listeners.
    #[cfg(feature = "testing")]
    pub(crate) fn keys(&self) -> usize {
        self.table.lock().len()
    }

    fn notify(&self, hash: KeyHash, invalidations: u64) {
        if let Some(subscription) = self.table.lock().get(&hash) {
            subscription.count.send_modify(|count| {
                count.notifications += 1;
                count.invalidations += invalidations;
            });
        }
    }
}

impl Default for WakeRegistry {
    fn default() -> Self {
        Self::new()
    }
}

/// A subscription to one key. It reports changes of the key, and makes the tokens for attempts to lead it.
#[derive(Debug)]
pub struct Listener {
    wakes: WakeRegistry,
    hash: KeyHash,
    count: Arc<Watched<WakeCount>>,
    last: WakeCount,
    token: Option<Token>,
}

impl Listener {
    /// Makes the token for one send of [`get_or_lease`](super::Store::get_or_lease). It counts as alive until the next
    /// one is made, or the listener is dropped.
    #[must_use]
    pub fn token(&mut self) -> Token {
        let token = Token::unique(self.wakes.inbox);
        let last = self.token.replace(token);
        if let Some(subscription) = self.wakes.table.lock().get_mut(&self.hash) {
            subscription.tokens.retain(|other| Some(*other) != last);
            subscription.tokens.push(token);
        }
        token
    }

    /// Reports whether the lease is an orphan of this process. The request for an orphaned lease arrived after its
    /// flight had given up, so no leader will fill or release it.
    #[must_use]
    pub fn is_orphaned_lease(&self, holder: Token) -> bool {
        let alive = |subscription: &Subscription| subscription.tokens.contains(&holder);
        holder.inbox() == self.wakes.inbox && !self.wakes.table.lock().get(&self.hash).is_some_and(alive)
    }

    /// Waits for the next wake-up; `true` if the entry was dropped meanwhile. A wake-up since the last call counts.
    ///
    /// Cancel safe: a wake-up that was not returned is reported by the next call.
    pub async fn notified(&mut self) -> bool {
        let last = self.last;
        self.last = self.count.wait_for(|count| count.notifications != last.notifications).await;
        self.last.invalidations != last.invalidations
    }

    /// Waits until the entry is dropped by an invalidation that was not reported before. Leaves the wake-up to be
    /// reported by the next call of [`notified`](Self::notified), as one without an invalidation.
    ///
    /// Cancel safe.
    pub async fn invalidated(&mut self) {
        let last = self.last;
        let count = self.count.wait_for(|count| count.invalidations != last.invalidations).await;
        self.last.invalidations = count.invalidations;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut table = self.wakes.table.lock();
        let Entry::Occupied(mut entry) = table.entry(self.hash) else { return };
        let subscription = entry.get_mut();
        subscription.listeners -= 1;
        subscription.tokens.retain(|other| Some(*other) != self.token);
        if subscription.listeners == 0 {
            entry.remove();
        }
    }
}
