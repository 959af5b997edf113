//! The fake Redis server that the nodes of a test share.

use super::{event::Event, node::Node, redis_state::RedisState};
use crate::{clock::Timestamp, key::Key};
use std::{fmt, sync::Arc};

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
        Self(Arc::new(RedisState::new()))
    }

    /// Adds a node with a connection of its own. Nodes are numbered from 0.
    #[must_use]
    pub fn node(&self) -> Node {
        Node::new(self.0.clone())
    }

    /// Expires the leases of the key now, as if the holder had not extended them. No node is notified.
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
    pub fn expire_lease(&self, key: impl Into<Key>) {
        self.0.expire_leases(&key.into());
    }

    /// Evicts the entries of the key. Their leases stay.
    pub fn evict(&self, key: impl Into<Key>) {
        self.0.evict(&key.into());
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
        self.0.flush();
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
    pub fn invalidate(&self, key: impl Into<Key>) {
        let key = key.into();
        self.0.invalidate_by(None, &self.0.store.cache_keys(|stored| key.names(stored.key())));
    }

    /// Reports whether an entry of the key is stored. A hit-for-pass marker counts.
    #[must_use]
    pub fn holds(&self, key: impl Into<Key>) -> bool {
        let (key, now) = (key.into(), Timestamp::now());
        self.0.store.any_entry(|stored, entry| key.names(stored.key()) && entry.is_retained(now))
    }

    /// Returns the number of leases held now.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.0.store.leases(|_| true, Timestamp::now())
    }

    /// Reports whether a node holds a valid lease of the key.
    #[must_use]
    pub fn is_led(&self, key: impl Into<Key>) -> bool {
        let key = key.into();
        self.0.store.leases(|known| key.names(known.key()), Timestamp::now()) > 0
    }

    /// Returns all events in order. Print them when a test fails.
    #[must_use]
    pub fn history(&self) -> Vec<Event> {
        self.0.history()
    }
}

impl Default for FakeRedis {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FakeRedis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeRedis").field("store", &self.0.store).field("events", &self.0.history().len()).finish()
    }
}
