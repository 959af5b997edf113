//! The fleet in a test: a fake Redis server, and nodes that are processes with a connection of their own.

use super::{
    event::{Event, EventKind},
    fault::{Fault, Operation, OperationFaults},
};
use crate::{
    clock::{self, Timestamp},
    guard::StampedeGuard,
    key::{CacheKey, Key, to_key::ToKey},
    store::{
        entry::Entry,
        error::{Answer, StoreError},
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus, Leaves},
        memory::MemoryStore,
        port::{FillCondition, Store, Write},
        token::Token,
        wake::{Listener, WakeRegistry},
    },
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
    versions::ReadTerms,
};
use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::Instant;

/// A fake Redis server: the embedded [`MemoryStore`](crate::MemoryStore) plays Redis for the nodes of a test. Clones
/// share one server.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{FakeRedis, Origin};
///
/// let (server, origin) = (FakeRedis::new(), Origin::new());
/// let [a, b] = [server.node().guard(), server.node().guard()];
/// a.fetch("k", origin.fetch(1)).await?;
/// a.drain().await; // waits for the fill
/// assert_eq!(b.fetch("k", origin.fetch(2)).await?, 1);
/// server.evict("k");
/// assert_eq!(b.fetch("k", origin.fetch(2)).await?, 2);
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
///
/// As with Redis, and unlike a plain [`MemoryStore`](crate::MemoryStore), the server notifies only nodes that
/// lead a key or wait for it.
#[derive(Clone)]
pub struct FakeRedis(Arc<RedisState>);

impl FakeRedis {
    /// Creates an empty server.
    #[must_use]
    pub fn new() -> Self {
        let (nodes, participants, history) = (Vec::new(), HashMap::new(), Vec::new());
        let records = Mutex::new(Records { began: clock::now(), nodes, participants, history });
        Self(Arc::new(RedisState { store: MemoryStore::with_max_bytes(CAPACITY), records }))
    }

    /// Adds a node with a connection of its own. Nodes are numbered from 0.
    #[must_use]
    pub fn node(&self) -> Node {
        let mut records = self.0.records.lock();
        let node = Arc::new(NodeState::new(self.clone(), records.nodes.len()));
        records.nodes.push(Arc::downgrade(&node));
        Node(node)
    }

    /// Ends the leases of the key now, as if the holder had not extended them. No node is notified. Another node takes
    /// over a quarter of a second after its first question, unless the holder extends its lease or fills until then.
    ///
    /// Like every method with a `key`, it applies to all namespaces.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, slow, origin) = (FakeRedis::new(), Origin::gated(), Origin::new());
    /// let [a, b] = [server.node().guard(), server.node().guard()];
    /// let late = tokio::spawn({
    ///     let (a, fetch) = (a.clone(), slow.fetch(1));
    ///     async move { a.fetch("k", fetch).await }
    /// });
    /// slow.arrived(1).await;
    /// server.expire_lease("k");
    /// assert_eq!(b.fetch("k", origin.fetch(2)).await?, 2); // takes over
    /// slow.open();
    /// assert_eq!(late.await.unwrap()?, 1);
    /// a.drain().await;
    /// assert_eq!((a.stats().fenced, b.fetch("k", origin.fetch(3)).await?), (1, 2));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn expire_lease(&self, key: impl ToKey) {
        let (key, now, mut records) = (Key::new(key), Timestamp::now(), self.0.records.lock());
        for key in self.0.store.leased_keys(|stored| key.names(stored.key()), now) {
            self.0.store.expire_lease(&key, now);
            records.add(None, Some(&key), EventKind::Expired);
        }
    }

    /// Evicts the entries of the key. Their leases stay.
    pub fn evict(&self, key: impl ToKey) {
        let (key, mut records) = (Key::new(key), self.0.records.lock());
        for key in self.0.store.evict(|stored| key.names(stored.key())) {
            records.add(None, Some(&key), EventKind::Evicted);
        }
    }

    /// Drops all entries and leases, as `FLUSHALL` or a restart without persistence does. No node is notified.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, origin) = (FakeRedis::new(), Origin::new());
    /// let guard = server.node().guard();
    /// guard.fetch("k", origin.fetch(1)).await?;
    /// guard.drain().await;
    /// server.flush();
    /// guard.fetch("k", origin.fetch(1)).await?;
    /// origin.assert_fetched(2);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn flush(&self) {
        let mut records = self.0.records.lock();
        self.0.store.clear();
        records.add(None, None, EventKind::Flushed);
    }

    /// Invalidates the key, as a node that is not part of the test would.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, origin) = (FakeRedis::new(), Origin::new());
    /// let guard = server.node().guard();
    /// assert_eq!(guard.fetch("k", origin.fetch(1)).await?, 1);
    /// guard.drain().await;
    /// server.invalidate("k");
    /// assert_eq!(guard.fetch("k", origin.fetch(2)).await?, 2);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn invalidate(&self, key: impl ToKey) {
        let key = Key::new(key);
        self.invalidate_for(None, &self.0.store.cache_keys(|stored| key.names(stored.key())), Leaves::Nothing);
    }

    /// Reports whether an entry of the key is stored. A hit-for-pass marker counts.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::{FetchContext, FetchOutcome, testing::FakeRedis};
    ///
    /// let server = FakeRedis::new();
    /// let baskets = server.node().guard().cache::<u32>("basket");
    /// let load = async |_: FetchContext<u32>| Ok::<_, std::io::Error>(FetchOutcome::new(3).do_not_store());
    /// baskets.entry(7).fetch_with(load).await?;
    /// assert!(server.holds("basket:7")); // the marker that says so, not the value
    /// assert_eq!(baskets.get(7).await?, None);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    #[must_use]
    pub fn holds(&self, key: impl ToKey) -> bool {
        let (key, now) = (Key::new(key), Timestamp::now());
        self.0.store.any_entry(|stored, entry| key.names(stored.key()) && entry.is_retained(now))
    }

    /// Returns the number of leases that have not ended: see [`is_led`](Self::is_led).
    #[must_use]
    pub fn leases(&self) -> usize {
        self.0.store.leased_keys(|_| true, Timestamp::now()).len()
    }

    /// Reports whether a node holds a lease of the key that has not ended.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, slow) = (FakeRedis::new(), Origin::gated());
    /// let guard = server.node().guard();
    /// let leader = tokio::spawn({
    ///     let (guard, fetch) = (guard.clone(), slow.fetch(1));
    ///     async move { guard.fetch("k", fetch).await }
    /// });
    /// slow.arrived(1).await;
    /// assert!(server.is_led("k") && server.leases() == 1);
    /// slow.open();
    /// leader.await.unwrap()?;
    /// guard.drain().await; // the fill has released the lease
    /// assert!(!server.is_led("k") && server.leases() == 0);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    #[must_use]
    pub fn is_led(&self, key: impl ToKey) -> bool {
        let key = Key::new(key);
        !self.0.store.leased_keys(|known| key.names(known.key()), Timestamp::now()).is_empty()
    }

    /// Returns all events in order. Print them when a test fails.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let server = FakeRedis::new();
    /// let [a, b] = [server.node(), server.node()];
    /// a.guard().fetch("k", Origin::new().fetch(1)).await?;
    /// assert_eq!(b.number(), 1);
    /// let of_b = server.history().into_iter().filter(|event| event.node == Some(b.number())).count();
    /// assert_eq!(of_b, 0, "{:#?}", server.history());
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        self.0.records.lock().history.clone()
    }

    /// Records an event of the node itself.
    fn record(&self, node: usize, kind: EventKind) {
        self.0.records.lock().add(Some(node), None, kind);
    }

    /// Executes an operation of a node.
    fn execute<T>(&self, node: usize, key: &CacheKey, operation: impl FnOnce(&MemoryStore) -> (T, EventKind)) -> T {
        self.execute_locked(&mut self.0.records.lock(), Some(node), key, false, operation)
    }

    fn get_or_lease(&self, node: usize, key: &CacheKey, request: LeaseRequest) -> LeaseReply {
        let mut records = self.0.records.lock();
        let mut reply = self.0.store.get_or_lease_now(key, request, Timestamp::now());
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
        records.add(Some(node), Some(key), EventKind::GetOrLease(request, reply.clone()));
        reply
    }

    fn invalidate_for(&self, node: Option<usize>, keys: &[CacheKey], leaves: Leaves) -> Option<Lease> {
        let (mut records, mut lease) = (self.0.records.lock(), None);
        for key in keys {
            let event = if matches!(leaves, Leaves::StaleValues) { EventKind::Expire } else { EventKind::Invalidate };
            lease = self.execute_locked(&mut records, node, key, true, |store| {
                (store.invalidate_now(key, leaves, Timestamp::now()), event)
            });
            if let (Leaves::Lease(request), Some(lease)) = (leaves, lease) {
                let granted = LeaseReply::Granted { lease, seen_alive: false, failures: 0 };
                records.add(node, Some(key), EventKind::GetOrLease(request, granted));
                records.participants.entry(key.without_layout()).or_insert_with(|| node.into_iter().collect());
            }
        }
        lease
    }

    /// Executes an operation, and notifies the participants in the lease of the key if it ends the lease.
    fn execute_locked<T>(
        &self,
        records: &mut Records,
        node: Option<usize>,
        key: &CacheKey,
        invalidated: bool,
        operation: impl FnOnce(&MemoryStore) -> (T, EventKind),
    ) -> T {
        let resource = key.without_layout();
        let is_kept = || self.0.store.keeps_lease(key, Timestamp::now());
        let participants = records.participants.remove(&resource).filter(|_| is_kept());
        let (result, kind) = operation(&self.0.store);
        records.add(node, Some(key), kind);
        match participants {
            Some(participants) if is_kept() => _ = records.participants.insert(resource, participants),
            Some(participants) => records.notify(key, &participants, invalidated),
            None => {}
        }
        result
    }
}

impl Default for FakeRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRedis").field("store", &self.0.store).field("events", &self.history().len()).finish()
    }
}

/// The embedded store that plays Redis, its nodes, and the history of a test.
struct RedisState {
    store: MemoryStore,
    records: Mutex<Records>,
}

struct Records {
    began: Instant,
    nodes: Vec<Weak<NodeState>>,
    /// The nodes that take part in a lease: its holder, then the nodes that wait, which may include the holder's. An
    /// item is void once its lease has ended.
    participants: HashMap<CacheKey, Vec<usize>>,
    history: Vec<Event>,
}

impl Records {
    fn add(&mut self, node: Option<usize>, key: Option<&CacheKey>, kind: EventKind) {
        self.history.push(Event { at: clock::now() - self.began, node, key: key.cloned(), kind });
    }

    /// Notifies the participants of a lease that has ended.
    fn notify(&mut self, key: &CacheKey, participants: &[usize], invalidated: bool) {
        let [holder, waiting @ ..] = participants else { return };
        // The holder needs no notification, unless an invalidation has ended its lease.
        let holder = Some(holder).filter(|holder| invalidated && !waiting.contains(holder));
        for number in holder.into_iter().chain(waiting) {
            let Some(node) = self.nodes[*number].upgrade().filter(|node| node.receives()) else { continue };
            self.add(Some(*number), Some(key), EventKind::Notified { invalidated });
            if invalidated { node.wakes.invalidated(key.hash()) } else { node.wakes.wake(key.hash()) }
        }
    }
}

/// A node of the fleet: one process, as a store for its guard, with scripted faults. Clones share one node.
///
/// Faults scripted with [`once`](Self::once) and [`times`](Self::times) apply first, in the order of the calls. The
/// fault scripted with [`always`](Self::always) applies afterwards.
///
/// ```
/// # #[cfg(feature = "bincode")]
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), stampede_guard::Error> {
/// use stampede_guard::testing::{FakeRedis, Fault, Operation, Origin};
///
/// let (node, origin) = (FakeRedis::new().node(), Origin::new());
/// let guard = node.guard();
/// node.once(Operation::Fill, Fault::ReplyLost);
/// guard.fetch("k", origin.fetch(1)).await?;
/// guard.drain().await;
/// assert_eq!(node.asked(Operation::Fill), 2); // the second request found the fill stored
/// guard.fetch("k", origin.fetch(1)).await?;
/// origin.assert_fetched_once();
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "bincode"))] fn main() {}
/// ```
#[derive(Clone, Debug)]
pub struct Node(Arc<NodeState>);

#[derive(Debug)]
struct NodeState {
    redis: FakeRedis,
    number: usize,
    /// The waiters of the node, which the server notifies.
    wakes: WakeRegistry,
    script: Mutex<HashMap<Operation, OperationFaults>>,
    /// The last read of each key.
    reads: Mutex<HashMap<CacheKey, SentRead>>,
    dies_leading: AtomicBool,
    is_dead: AtomicBool,
    is_deaf: AtomicBool,
    reconnects: AtomicU64,
}

/// The answer to a read, the number at which it began, and the time at which it was sent.
type SentRead = (WeakShared<Result<Option<Entry>, StoreError>>, u64, Instant);

impl NodeState {
    fn new(redis: FakeRedis, number: usize) -> Self {
        let [dies_leading, is_dead, is_deaf] = [const { AtomicBool::new(false) }; 3];
        let (wakes, script, reads, reconnects) =
            (WakeRegistry::new(), Mutex::default(), Mutex::default(), AtomicU64::new(1));
        Self { redis, number, wakes, script, reads, dies_leading, is_dead, is_deaf, reconnects }
    }

    /// Reports whether the messages of the server arrive.
    fn receives(&self) -> bool {
        !self.is_dead.load(SeqCst) && !self.is_deaf.load(SeqCst)
    }

    /// Returns an error if the node was killed.
    fn check_alive(&self) -> Result<(), StoreError> {
        let is_alive = !self.is_dead.load(SeqCst);
        is_alive.then_some(()).ok_or_else(|| StoreError::disconnected("the node was killed"))
    }

    /// Closes the connection, and returns the error of a request on it.
    fn disconnected(&self) -> StoreError {
        self.reconnects.fetch_add(1, SeqCst);
        StoreError::disconnected("connection closed by a scripted fault")
    }
}

impl Node {
    /// Returns a guard over this node, as `StampedeGuard::new(node.clone())`.
    pub fn guard(&self) -> StampedeGuard {
        StampedeGuard::new(self.clone())
    }

    /// Scripts a fault for the next operation of this kind.
    pub fn once(&self, operation: Operation, fault: Fault) {
        self.times(1, operation, fault);
    }

    /// Scripts a fault for the next `n` operations of this kind.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Fault, Operation, Origin};
    ///
    /// let (node, origin) = (FakeRedis::new().node(), Origin::new());
    /// node.times(2, Operation::Invalidate, Fault::Fails);
    /// let guard = node.guard();
    /// assert!(guard.invalidate("k").await.is_err()); // and sent again in the background
    /// while guard.drain().await > 0 {}
    /// assert_eq!(guard.health().pending_invalidations, 0);
    /// assert_eq!(node.asked(Operation::Invalidate), 3);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn times(&self, n: usize, operation: Operation, fault: Fault) {
        self.0.script.lock().entry(operation).or_default().next.push_back((n, fault));
    }

    /// Scripts a fault for every operation of this kind, until another call of `always` replaces it or
    /// [`heal`](Self::heal) removes it.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Fault, Operation, Origin};
    ///
    /// let (node, origin) = (FakeRedis::new().node(), Origin::new());
    /// let guard = node.guard();
    /// node.always(Operation::Fill, Fault::Fails); // a server that is full
    /// for _ in 0..2 {
    ///     guard.fetch("k", origin.fetch(1)).await?;
    ///     guard.drain().await;
    /// }
    /// assert_eq!(guard.stats().outage_cache_hits, 1); // the value that could not be stored
    /// node.heal();
    /// guard.invalidate("k").await?;
    /// guard.fetch("k", origin.fetch(2)).await?;
    /// guard.drain().await;
    /// assert_eq!(node.guard().fetch("k", origin.fetch(3)).await?, 2);
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.0.script.lock().entry(operation).or_default().always = Some(fault);
    }

    /// Removes all scripted faults, and lets the node receive wake-ups again: see [`always`](Self::always). A killed node
    /// stays killed.
    pub fn heal(&self) {
        self.0.script.lock().values_mut().for_each(OperationFaults::heal);
        self.0.dies_leading.store(false, SeqCst);
        self.0.is_deaf.store(false, SeqCst);
    }

    /// Returns the number of requests for the operation, including failed ones.
    #[must_use]
    pub fn asked(&self, operation: Operation) -> usize {
        self.0.script.lock().get(&operation).map_or(0, |faults| faults.asked)
    }

    /// Kills the node as seen by the other nodes: its requests no longer reach the server, and its leases
    /// expire.
    ///
    /// The tasks of the node keep running without the store. Drop them if the test requires it. Operations on the store
    /// fail at once, and their errors open the circuit breaker only as time passes: see
    /// [`on_store_failure`](StampedeGuard::on_store_failure).
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, stuck, origin) = (FakeRedis::new(), Origin::gated(), Origin::new());
    /// let [a, b] = [server.node(), server.node()];
    /// let leader = tokio::spawn({
    ///     let (guard, fetch) = (a.guard(), stuck.fetch(1));
    ///     async move { guard.fetch("k", fetch).await }
    /// });
    /// stuck.arrived(1).await;
    /// a.kill();
    /// assert_eq!(b.guard().fetch("k", origin.fetch(2)).await?, 2); // after the lease has expired
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn kill(&self) {
        if !self.0.is_dead.swap(true, SeqCst) {
            self.0.redis.record(self.0.number, EventKind::Killed);
        }
    }

    /// [Kills](Self::kill) the node as soon as a lease is granted to it.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    ///
    /// let (server, origin) = (FakeRedis::new(), Origin::new());
    /// let [a, b] = [server.node(), server.node()];
    /// a.kill_once_it_leads();
    /// a.guard().fetch("k", origin.fetch(1)).await?; // its own caller gets the response
    /// assert!(server.is_led("k") && !server.holds("k")); // no other caller does
    ///
    /// let began = Instant::now();
    /// let guard = b.guard().lease_ttl(Duration::from_secs(3));
    /// assert_eq!(guard.fetch("k", origin.fetch(2)).await?, 2);
    /// assert!(began.elapsed() <= Duration::from_millis(3300));
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn kill_once_it_leads(&self) {
        self.0.dies_leading.store(true, SeqCst);
    }

    /// Reconnects a [killed](Self::kill) node, as after a network partition.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, origin) = (FakeRedis::new(), Origin::new());
    /// let [a, b] = [server.node(), server.node()];
    /// a.kill();
    /// assert!(a.guard().invalidate("k").await.is_err());
    /// a.revive();
    /// a.guard().invalidate("k").await?;
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn revive(&self) {
        if self.0.is_dead.swap(false, SeqCst) {
            self.0.reconnects.fetch_add(1, SeqCst);
            self.0.redis.record(self.0.number, EventKind::Revived);
        }
    }

    /// Drops all wake-ups to the node, while the node still expects to receive them.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    /// use std::time::Duration;
    /// use tokio::time::Instant;
    ///
    /// let (server, origin) = (FakeRedis::new(), Origin::new().takes(Duration::from_millis(100)));
    /// let [a, b] = [server.node(), server.node()];
    /// b.lose_wakes();
    /// let began = Instant::now();
    /// let (a, b) = (a.guard(), b.guard());
    /// let (one, other) = tokio::join!(a.fetch("k", origin.fetch(1)), b.fetch("k", origin.fetch(1)));
    /// assert_eq!((one?, other?), (1, 1));
    /// origin.assert_fetched_once();
    /// assert!(began.elapsed() <= Duration::from_millis(3100)); // one lease
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn lose_wakes(&self) {
        self.0.is_deaf.store(true, SeqCst);
    }

    /// Lets the node receive wake-ups again, and wakes all its waiters, as after a reconnect.
    ///
    /// ```
    /// # #[cfg(feature = "bincode")]
    /// # #[tokio::main(flavor = "current_thread", start_paused = true)]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// use stampede_guard::testing::{FakeRedis, Origin};
    ///
    /// let (server, slow) = (FakeRedis::new(), Origin::gated());
    /// let [a, b] = [server.node(), server.node()];
    /// let ask = |node: &stampede_guard::testing::Node| {
    ///     let (guard, fetch) = (node.guard(), slow.fetch(1));
    ///     tokio::spawn(async move { guard.fetch("k", fetch).await })
    /// };
    /// let leader = ask(&a);
    /// slow.arrived(1).await;
    /// b.lose_wakes();
    /// let waiter = ask(&b);
    /// while b.listening() == 0 {
    ///     tokio::task::yield_now().await;
    /// }
    /// slow.open();
    /// leader.await.unwrap()?; // the message about it is lost
    /// b.hear_wakes();
    /// assert_eq!(waiter.await.unwrap()?, 1);
    /// slow.assert_fetched_once();
    /// # Ok(())
    /// # }
    /// # #[cfg(not(feature = "bincode"))] fn main() {}
    /// ```
    pub fn hear_wakes(&self) {
        self.0.is_deaf.store(false, SeqCst);
        self.0.wakes.wake_all();
    }

    /// Returns the number of the node at its server, as in [`Event::node`](super::Event::node): see
    /// [`history`](FakeRedis::history).
    #[must_use]
    pub fn number(&self) -> usize {
        self.0.number
    }

    /// Returns the number of keys that this node leads or waits for: see [`hear_wakes`](Self::hear_wakes).
    #[must_use]
    pub fn listening(&self) -> usize {
        self.0.wakes.keys()
    }

    /// Sends an operation to the server, with its scripted fault.
    fn send<'a, T: Send + 'static>(
        &self,
        operation: Operation,
        execute: impl Fn(&NodeState) -> T + Send + 'static,
    ) -> Answer<'a, T> {
        let node = self.0.clone();
        Box::pin(async move {
            let fault = node.script.lock().entry(operation).or_default().next_fault();
            node.check_alive()?;
            let Some(fault) = fault else { return Ok(execute(&node)) };
            let (executing, connected) = (node.clone(), node.clone());
            let answer = fault.apply(move || execute(&executing), move || connected.disconnected()).await;
            node.check_alive().and(answer)
        })
    }
}

impl Store for Node {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        let key = key.clone();
        self.send(Operation::Get, move |node| {
            node.redis.execute(node.number, &key, |store| {
                let entry = store.read(&key, Timestamp::now());
                (entry.clone(), EventKind::Get(entry))
            })
        })
    }

    /// Shares a read as the store over Redis does: a read belongs to no caller, and goes on until its last caller
    /// leaves.
    fn get_shared<'a>(&'a self, key: &'a CacheKey, terms: ReadTerms<'a>) -> Answer<'a, (Option<Entry>, u64)> {
        let mut reads = self.0.reads.lock();
        let allowed = reads.get(key).filter(|(_, begun, sent_at)| terms.allow(key.into(), *begun, *sent_at));
        let joined = allowed.and_then(|(read, begun, _)| Some((read.upgrade()?, *begun)));
        let (read, begun) = joined.filter(|(read, _)| !read.is_done_and(|_| true)).unwrap_or_else(|| {
            let (node, name, begun) = (self.clone(), key.clone(), terms.now());
            let read = Shared::new(async move { node.get(&name).await });
            reads.insert(key.clone(), (read.downgrade(), begun, clock::now()));
            (read, begun)
        });
        Box::pin(async move { Ok((read.await?, begun)) })
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        let (key, this) = (key.clone(), self.clone());
        self.send(Operation::GetOrLease, move |node| {
            let lead = node.redis.get_or_lease(node.number, &key, request);
            if matches!(lead, LeaseReply::Granted { .. }) && node.dies_leading.swap(false, SeqCst) {
                this.kill();
            }
            lead
        })
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        let key = key.clone();
        self.send(Operation::Fill, move |node| {
            node.redis.execute(node.number, &key, |store| {
                let outcome = store.fill_now(&key, condition, writes.clone(), Timestamp::now());
                (outcome, EventKind::Fill(condition, writes.clone(), outcome))
            })
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        let key = key.clone();
        self.send(Operation::Release, move |node| {
            node.redis.execute(node.number, &key, |store| {
                let status = store.release_now(&key, token, failure_marker.clone(), Timestamp::now());
                (status, EventKind::Release(token, failure_marker.clone(), status))
            })
        })
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        let key = key.clone();
        self.send(Operation::Extend, move |node| {
            node.redis.execute(node.number, &key, |store| {
                let status = store.extend_now(&key, lease, span, Timestamp::now());
                (status, EventKind::Extend(lease, status))
            })
        })
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        let keys = keys.to_vec();
        self.send(Operation::Invalidate, move |node| node.redis.invalidate_for(Some(node.number), &keys, leaves))
    }

    fn connection(&self, _: &CacheKey) -> u64 {
        self.0.reconnects.load(SeqCst)
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.0.wakes.listen(key)
    }
}

/// Capacity of a server in bytes: small, because a simulation creates thousands of servers.
const CAPACITY: u64 = 4 << 20;
