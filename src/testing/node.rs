//! A node of the fleet in a test: a process with a connection of its own.

use super::{
    event::EventKind,
    fault::{Fault, FaultScript, Operation},
    redis_state::{NodeConnection, RedisState},
};
use crate::{
    guard::StampedeGuard,
    key::CacheKey,
    store::{
        entry::Entry,
        error::{Answer, StoreError},
        lease::{FailureMarker, FillOutcome, Lease, LeaseReply, LeaseRequest, LeaseStatus},
        port::{FillCondition, Store, Write},
        token::Token,
        wake::Listener,
    },
    sync::mutex::Mutex,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

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
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    redis: Arc<RedisState>,
    connection: Arc<NodeConnection>,
    script: Mutex<FaultScript>,
    dies_leading: AtomicBool,
    reconnects: AtomicU64,
}

impl Node {
    pub(super) fn new(redis: Arc<RedisState>) -> Self {
        Self(Arc::new(Inner {
            connection: redis.connect(),
            redis,
            script: Mutex::default(),
            dies_leading: AtomicBool::new(false),
            reconnects: AtomicU64::new(0),
        }))
    }

    /// Returns a guard over this node, as `StampedeGuard::new(node.clone())`.
    #[must_use]
    pub fn guard(&self) -> StampedeGuard {
        StampedeGuard::new(self.clone())
    }

    /// Scripts a fault for the next operation of this kind.
    pub fn once(&self, operation: Operation, fault: Fault) {
        self.times(1, operation, fault);
    }

    /// Scripts a fault for the next `n` operations of this kind.
    pub fn times(&self, n: usize, operation: Operation, fault: Fault) {
        self.0.script.lock().times(n, operation, fault);
    }

    /// Scripts a fault for every operation of this kind, until another call of `always` replaces it or
    /// [`heal`](Self::heal) removes it.
    pub fn always(&self, operation: Operation, fault: Fault) {
        self.0.script.lock().always(operation, fault);
    }

    /// Removes all scripted faults, and lets the node receive wake-ups again. A killed node stays killed.
    pub fn heal(&self) {
        self.0.script.lock().heal();
        self.0.dies_leading.store(false, SeqCst);
        self.0.connection.is_deaf.store(false, SeqCst);
    }

    /// Returns the number of requests for the operation, including failed ones.
    #[must_use]
    pub fn asked(&self, operation: Operation) -> usize {
        self.0.script.lock().asked(operation)
    }

    /// Kills the node as seen by the other nodes: its requests no longer reach the server, and its leases
    /// expire.
    ///
    /// The tasks of the node keep running without the store. Drop them if the test requires it.
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
        if !self.0.connection.is_dead.swap(true, SeqCst) {
            self.0.redis.record_of(self.0.connection.number, EventKind::Killed);
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
    pub fn revive(&self) {
        if self.0.connection.is_dead.swap(false, SeqCst) {
            self.0.reconnects.fetch_add(1, SeqCst);
            self.0.redis.record_of(self.0.connection.number, EventKind::Revived);
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
        self.0.connection.is_deaf.store(true, SeqCst);
    }

    /// Lets the node receive wake-ups again, and wakes all its waiters, as after a reconnect.
    pub fn hear_wakes(&self) {
        self.0.connection.is_deaf.store(false, SeqCst);
        self.0.connection.wakes.wake_all();
    }

    /// Returns the number of the node at its server, as in [`Event::node`](super::Event::node).
    #[must_use]
    pub fn number(&self) -> usize {
        self.0.connection.number
    }

    /// Returns the number of keys that this node leads or waits for.
    #[must_use]
    pub fn listening(&self) -> usize {
        self.0.connection.wakes.keys()
    }

    /// Sends an operation to the server, with its scripted fault.
    fn send<'a, T: Send + 'static>(
        &self,
        operation: Operation,
        execute: impl Fn(&Inner) -> T + Send + 'static,
    ) -> Answer<'a, T> {
        let inner = self.0.clone();
        Box::pin(async move {
            let fault = inner.script.lock().next_fault(operation);
            if inner.connection.is_dead() {
                return Err(StoreError::disconnected("the node was killed"));
            }
            match fault {
                None => Ok(execute(&inner)),
                Some(fault) => {
                    let (executing, connected) = (inner.clone(), inner.clone());
                    let answer = fault.apply(move || execute(&executing), move || connected.disconnected()).await;
                    if inner.connection.is_dead() {
                        Err(StoreError::disconnected("the node was killed"))
                    } else {
                        answer
                    }
                }
            }
        })
    }
}

impl Inner {
    fn disconnected(&self) -> StoreError {
        self.reconnects.fetch_add(1, SeqCst);
        StoreError::disconnected("connection closed by a scripted fault")
    }
}

impl Store for Node {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        let key = key.clone();
        self.send(Operation::Get, move |inner| inner.redis.get_by(inner.connection.number, &key))
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        let (key, node) = (key.clone(), self.clone());
        self.send(Operation::GetOrLease, move |inner| {
            let lead = inner.redis.get_or_lease_by(inner.connection.number, &key, request);
            if matches!(lead, LeaseReply::Granted { .. }) && inner.dies_leading.swap(false, SeqCst) {
                node.kill();
            }
            lead
        })
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        let key = key.clone();
        self.send(Operation::Fill, move |inner| {
            inner.redis.fill_by(inner.connection.number, &key, condition, writes.clone())
        })
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        let key = key.clone();
        self.send(Operation::Release, move |inner| {
            inner.redis.release_by(inner.connection.number, &key, token, failure_marker.clone())
        })
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        let key = key.clone();
        self.send(Operation::Extend, move |inner| inner.redis.extend_by(inner.connection.number, &key, lease, span))
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, ()> {
        let keys = keys.to_vec();
        self.send(Operation::Invalidate, move |inner| inner.redis.invalidate_by(Some(inner.connection.number), &keys))
    }

    fn epoch(&self) -> u64 {
        self.0.reconnects.load(SeqCst)
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.0.connection.wakes.listen(key)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("number", &self.0.connection.number)
            .field("is_dead", &self.0.connection.is_dead)
            .field("is_deaf", &self.0.connection.is_deaf)
            .field("script", &*self.0.script.lock())
            .field("wakes", &self.0.connection.wakes)
            .finish_non_exhaustive()
    }
}
