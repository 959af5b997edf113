//! The state of a fake Redis server, which its public handle and its nodes share.

use super::event::{Event, EventKind};
use crate::{
    clock::Timestamp,
    key::{CacheKey, Key},
    store::{
        entry::Entry,
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus},
        memory::MemoryStore,
        port::{FillCondition, Write},
        token::Token,
        wake::WakeRegistry,
    },
    sync::mutex::Mutex,
};
use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::Instant;

/// The embedded store that plays Redis, its connections to the nodes, and the history of a test.
pub(super) struct RedisState {
    began: Instant,
    pub(super) store: MemoryStore,
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    connections: Vec<Weak<NodeConnection>>,
    /// The nodes that take part in a lease: its holder, then the nodes that wait, which may include the holder's. An
    /// item is void once its lease has ended.
    participants: HashMap<CacheKey, Vec<usize>>,
    history: Vec<Event>,
}

/// The connection between the server and one node, on which the server notifies the node.
pub(super) struct NodeConnection {
    pub(super) number: usize,
    pub(super) wakes: WakeRegistry,
    pub(super) is_dead: AtomicBool,
    pub(super) is_deaf: AtomicBool,
}

impl NodeConnection {
    pub(super) fn is_dead(&self) -> bool {
        self.is_dead.load(SeqCst)
    }

    fn receives(&self) -> bool {
        !self.is_dead() && !self.is_deaf.load(SeqCst)
    }

    fn notify(&self, key: &CacheKey, invalidated: bool) {
        if invalidated { self.wakes.invalidated(key.hash()) } else { self.wakes.wake(key.hash()) }
    }
}

impl RedisState {
    pub(super) fn new() -> Self {
        Self { began: now(), store: MemoryStore::with_max_bytes(CAPACITY), records: Mutex::default() }
    }

    /// Opens the connection of a new node.
    pub(super) fn connect(&self) -> Arc<NodeConnection> {
        let mut records = self.records.lock();
        let [is_dead, is_deaf] = [const { AtomicBool::new(false) }; 2];
        let number = records.connections.len();
        let connection = Arc::new(NodeConnection { number, wakes: WakeRegistry::new(), is_dead, is_deaf });
        records.connections.push(Arc::downgrade(&connection));
        connection
    }

    pub(super) fn history(&self) -> Vec<Event> {
        self.records.lock().history.clone()
    }

    /// Records an event of the node itself.
    pub(super) fn record_of(&self, node: usize, kind: EventKind) {
        let mut records = self.records.lock();
        self.record(&mut records, Some(node), None, kind);
    }

    pub(super) fn expire_leases(&self, key: &Key) {
        let mut records = self.records.lock();
        for key in self.store.expire_leases(|stored| key.names(stored.key()), Timestamp::now()) {
            self.record(&mut records, None, Some(&key), EventKind::Expired);
        }
    }

    pub(super) fn evict(&self, key: &Key) {
        let mut records = self.records.lock();
        for key in self.store.evict(|stored| key.names(stored.key())) {
            self.record(&mut records, None, Some(&key), EventKind::Evicted);
        }
    }

    pub(super) fn flush(&self) {
        let mut records = self.records.lock();
        self.store.clear();
        self.record(&mut records, None, None, EventKind::Flushed);
    }

    pub(super) fn get_by(&self, node: usize, key: &CacheKey) -> Option<Entry> {
        let mut records = self.records.lock();
        let entry = self.store.read(key, Timestamp::now());
        self.record(&mut records, Some(node), Some(key), EventKind::Get(entry.clone()));
        entry
    }

    pub(super) fn get_or_lease_by(&self, node: usize, key: &CacheKey, request: LeaseRequest) -> LeaseReply {
        let mut records = self.records.lock();
        let mut reply = self.store.get_or_lease_now(key, request, Timestamp::now());
        match &mut reply {
            LeaseReply::Granted { .. } => _ = records.participants.insert(key.without_layout(), vec![node]),
            LeaseReply::Wait { waiting, .. } => {
                let participants = records.participants.entry(key.without_layout()).or_default();
                if request.notify && !participants.iter().skip(1).any(|waiting| *waiting == node) {
                    participants.push(node);
                }
                *waiting = participants.len() - 1;
            }
            LeaseReply::Hit(_) | LeaseReply::Failed { .. } => {}
        }
        self.record(&mut records, Some(node), Some(key), EventKind::GetOrLease(request, reply.clone()));
        reply
    }

    pub(super) fn fill_by(
        &self,
        node: usize,
        key: &CacheKey,
        condition: FillCondition,
        writes: Vec<Write>,
    ) -> FillOutcome {
        let mut records = self.records.lock();
        let participants = self.take_participants(&mut records, key);
        let filled = self.store.fill_now(key, condition, writes.clone(), Timestamp::now());
        self.record(&mut records, Some(node), Some(key), EventKind::Fill(condition, writes, filled));
        self.notify_if_ended(&mut records, key, participants, false);
        filled
    }

    pub(super) fn release_by(
        &self,
        node: usize,
        key: &CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> LeaseStatus {
        let mut records = self.records.lock();
        let participants = self.take_participants(&mut records, key);
        let status = self.store.release_now(key, token, failure_marker.clone(), Timestamp::now());
        self.record(&mut records, Some(node), Some(key), EventKind::Release(token, failure_marker, status));
        self.notify_if_ended(&mut records, key, participants, false);
        status
    }

    pub(super) fn extend_by(&self, node: usize, key: &CacheKey, lease: Lease, span: Duration) -> LeaseStatus {
        let mut records = self.records.lock();
        let status = self.store.extend_now(key, lease, span, Timestamp::now());
        self.record(&mut records, Some(node), Some(key), EventKind::Extend(lease, status));
        status
    }

    pub(super) fn invalidate_by(&self, node: Option<usize>, keys: &[CacheKey]) {
        let mut records = self.records.lock();
        for key in keys {
            let participants = self.take_participants(&mut records, key);
            self.store.invalidate_now(key);
            self.record(&mut records, node, Some(key), EventKind::Invalidate);
            self.notify_if_ended(&mut records, key, participants, true);
        }
    }

    /// Takes the participants of the current lease out of the table; `None` if no lease is held.
    fn take_participants(&self, records: &mut Records, key: &CacheKey) -> Option<Vec<usize>> {
        let resource = key.without_layout();
        let held = self.store.leases(|led| led.without_layout() == resource, Timestamp::now()) > 0;
        records.participants.remove(&resource).filter(|_| held)
    }

    /// Notifies the participants if the lease has ended; otherwise restores them.
    fn notify_if_ended(
        &self,
        records: &mut Records,
        key: &CacheKey,
        participants: Option<Vec<usize>>,
        invalidated: bool,
    ) {
        let Some(participants) = participants else { return };
        let resource = key.without_layout();
        if self.store.leases(|led| led.without_layout() == resource, Timestamp::now()) > 0 {
            records.participants.insert(resource, participants);
            return;
        }
        let [holder, waiting @ ..] = &participants[..] else { return };
        // The holder needs no notification, unless an invalidation has ended its lease.
        let holder = Some(holder).filter(|holder| invalidated && !waiting.contains(holder));
        for number in holder.into_iter().chain(waiting) {
            let Some(connection) = records.connections[*number].upgrade() else { continue };
            if connection.receives() {
                self.record(records, Some(*number), Some(key), EventKind::Notified { invalidated });
                connection.notify(key, invalidated);
            }
        }
    }

    fn record(&self, records: &mut Records, node: Option<usize>, key: Option<&CacheKey>, kind: EventKind) {
        let at = now() - self.began;
        records.history.push(Event { at, node, key: key.cloned(), kind });
    }
}

/// Capacity of a server in bytes: small, because a simulation creates thousands of servers.
const CAPACITY: u64 = 4 << 20;

/// Returns the current time, for the times of events.
pub(super) fn now() -> Instant {
    crate::clock::deadline_after(Duration::ZERO)
}
