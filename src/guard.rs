//! The handle that everything starts from.

use crate::{
    config::{AfterWait, Config, Outage},
    engine::{Engine, Place},
    error::Error,
    key::{self, Address, Key},
    policy::Policy,
    store::{IntoStore, MemoryStore},
    telemetry::Report,
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::Semaphore;

/// Protects what is expensive to compute against a stampede: on a miss, one request in the whole fleet computes, the
/// others wait and are answered from the cache.
///
/// It is a [`Layer`](tower_layer::Layer) for HTTP services, wraps any async [`fetch`](Self::fetch), and any tower
/// service through [`keyed`](Self::keyed). Clones are cheap and share everything that runs; a setter changes its own
/// clone only, so one guard serves routes with different settings:
///
/// ```
/// use stampede_guard::{Policy, StampedeGuard};
/// use std::time::Duration;
///
/// let guard = StampedeGuard::in_memory();
/// let slow = guard.clone().policy(Policy::fresh_for(Duration::from_secs(3600))).max_fetch(Duration::from_secs(120));
/// ```
///
/// # Runtime
///
/// Made anywhere, also outside of a runtime; it connects with the first request. Asking it needs a tokio runtime with
/// time enabled (and I/O, over Redis), as everything of tokio's does.
#[derive(Clone)]
pub struct StampedeGuard {
    engine: Arc<Engine>,
    config: Arc<Config>,
}

impl StampedeGuard {
    /// A guard over a store: a `redis::Client` (best: it is woken by message), a connection of redis-rs (it polls),
    /// a [`MemoryStore`], or a [`Store`](crate::store::Store) of one's own.
    ///
    /// Neither connects nor fails. While the store does not answer, requests are answered by the origin, coalesced
    /// within this process.
    #[must_use]
    pub fn new(store: impl IntoStore) -> Self {
        Self { engine: Engine::new(store.into_store()), config: Arc::default() }
    }

    /// A guard over an embedded [`MemoryStore`] of its own, for one process.
    #[must_use]
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::default())
    }

    /// Keeps keys of different applications, or of different tests, apart. Default: `sg`.
    ///
    /// Up to 64 characters of `[A-Za-z0-9_.-]`, as they become part of key names; others are replaced by `_`, and
    /// nothing at all by the default.
    #[must_use]
    pub fn namespace(self, name: impl AsRef<str>) -> Self {
        let name = key::namespace(name.as_ref(), DEFAULT_NAMESPACE);
        self.set(|config| config.namespace = name)
    }

    /// The version of the stored types. Entries of another schema are a miss, while both share leases: raise it when a
    /// type changes, and old and new processes of a rolling deploy do not overwrite each other. Default: 0.
    #[must_use]
    pub fn schema(self, number: u32) -> Self {
        self.set(|config| config.schema = number)
    }

    /// How typed values are encoded. Default: [`Codec::default`](crate::Codec).
    #[cfg(feature = "_typed")]
    #[must_use]
    pub fn codec(self, codec: crate::Codec) -> Self {
        self.set(|config| config.codec = codec)
    }

    /// For how long an answer is used. Default: [`Policy::default`].
    #[must_use]
    pub fn policy(self, policy: Policy) -> Self {
        self.set(|config| config.policy = policy)
    }

    /// How long a lease lives when its process has died: for so long others wait for it in vain. A living process
    /// extends it every third of that. Default: 3 s; from 10 ms to an hour, values outside are clamped.
    #[must_use]
    pub fn lease(self, span: Duration) -> Self {
        self.set(|config| config.lease = span.clamp(Duration::from_millis(10), HOUR))
    }

    /// How long a request waits for the computation of another one, 20 % more or less at random. Then it gets the stale
    /// value, if the policy forgives errors for so long, or what [`after_wait`](Self::after_wait) says. Default: 10 s; at
    /// most an hour.
    #[must_use]
    pub fn wait(self, budget: Duration) -> Self {
        self.set(|config| config.wait = budget.min(HOUR))
    }

    /// What a request gets that has waited for its wait budget in vain. Default: [`AfterWait::Fetch`], a computation of
    /// its own, which is not stored; those of one process that have waited enough share one, however long that takes.
    #[must_use]
    pub fn after_wait(self, then: AfterWait) -> Self {
        self.set(|config| config.after_wait = then)
    }

    /// At most so many requests wait for one computation in a process. Those beyond are refused at once, with
    /// [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response 503. Default: 10,000; at least 1.
    #[must_use]
    pub fn max_waiters(self, most: usize) -> Self {
        self.set(|config| config.max_waiters = most.max(1))
    }

    /// By when whoever asks this clone needs an answer: it waits no longer for others, and not at all if the last
    /// computation of the key took longer than what is left. It gets the stale value, if the policy forgives errors for
    /// so long, else [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response 503. Its own computation goes
    /// on for others. Default: none; for HTTP requests see [`http::Deadline`](crate::http::Deadline).
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// use std::time::{Duration, Instant};
    ///
    /// let soon = Instant::now() + Duration::from_millis(200);
    /// let answer = guard.clone().deadline(soon).fetch("report:7", async || Ok::<_, std::io::Error>(7)).await?;
    /// # assert_eq!(answer, 7); Ok(()) }
    /// ```
    #[must_use]
    pub fn deadline(self, at: Instant) -> Self {
        self.set(|config| config.deadline = Some(at))
    }

    /// After this time a fetch is aborted, and counts as failed. Default: 60 s; from 1 ms to a day.
    #[must_use]
    pub fn max_fetch(self, limit: Duration) -> Self {
        self.set(|config| config.max_fetch = limit.clamp(Duration::from_millis(1), 24 * HOUR))
    }

    /// The largest payload that is stored, in bytes; larger ones are handed through. Default: 1 MiB; at most 16 MiB,
    /// since everything else on the connection waits behind it.
    #[must_use]
    pub fn max_payload(self, bytes: usize) -> Self {
        self.set(|config| config.max_payload = bytes.min(16 << 20))
    }

    /// How long one operation of the store may take before the guard goes on without. Default: 250 ms; from 1 ms to
    /// an hour.
    #[must_use]
    pub fn op_timeout(self, limit: Duration) -> Self {
        self.set(|config| config.op_timeout = limit.clamp(Duration::from_millis(1), HOUR))
    }

    /// After a failed fetch nobody tries again for this long, doubling from failure to failure up to ten times as
    /// long; those who ask meanwhile are told so at once. Zero turns it off. Default: 1 s; at most a minute.
    #[must_use]
    pub fn tombstone(self, first: Duration) -> Self {
        self.set(|config| config.tombstone = first.min(Duration::from_secs(60)))
    }

    /// For how long it is remembered that the answer for a key may not be shared, so that nobody waits for it. Zero
    /// turns that off. Default: 60 s; at most a day.
    #[must_use]
    pub fn pass_for(self, span: Duration) -> Self {
        self.set(|config| config.pass_for = span.min(24 * HOUR))
    }

    /// What is done while the store does not answer. Default: [`Outage::FailOpen`].
    ///
    /// The first operation that takes longer than [`op_timeout`](Self::op_timeout) opens a circuit breaker, and so do
    /// five errors in a row. From then on nobody waits for the store; it is tried behind every 0.5 to 1 s, and asked
    /// again as soon as it answers. [`invalidate`](Self::invalidate) always asks it. Clones with different operation
    /// timeouts have breakers of their own.
    #[must_use]
    pub fn outage(self, outage: Outage) -> Self {
        self.set(|config| config.outage = outage)
    }

    /// How many keys are computed at once while the store does not answer. Others queue for the wait budget, then they
    /// are refused with [`ErrorKind::Overloaded`](crate::ErrorKind::Overloaded) or a response 503. What is computed for
    /// another computation does not queue. Default: 64; at least 1.
    ///
    /// The places belong to this clone and to those that are made of it afterwards.
    #[must_use]
    pub fn bulkhead(self, places: usize) -> Self {
        let places = places.clamp(1, Semaphore::MAX_PERMITS);
        self.set(|config| config.bulkhead = Arc::new(Semaphore::new(places)))
    }

    /// Keeps copies in this process of what it reads from a store outside: a hit of one costs no round trip, and no
    /// decoding where the value is shared. Default: none.
    ///
    /// ```
    /// # fn example(redis: stampede_guard::redis::Client) {
    /// use stampede_guard::{NearCache, StampedeGuard};
    /// use std::time::Duration;
    ///
    /// let guard = StampedeGuard::new(redis).near_cache(NearCache::bytes(64 << 20).max_age(Duration::from_secs(1)));
    /// # }
    /// ```
    ///
    /// Over a `redis::Client` a copy is dropped in every process as soon as its entry is filled anew, invalidated, deleted
    /// or evicted, by whomever: the server tells each process that has read it (`CLIENT TRACKING`, from Redis 6 on). While
    /// it cannot, and over anything else, a copy lives for [`max_age`](crate::NearCache::max_age) after it was read.
    /// Either way no process serves a copy longer than that after an invalidation.
    ///
    /// What this guard or its clones invalidate is dropped before [`invalidate`](Self::invalidate) returns. Only what is
    /// fresh is served; all else goes to the store. Memory and connection belong to this clone and to those that are made of it
    /// afterwards. Over a [`MemoryStore`] it does nothing.
    #[must_use]
    pub fn near_cache(self, settings: crate::NearCache) -> Self {
        let near = self.engine.near_cache(settings);
        self.set(|config| config.near = near)
    }

    /// How the HTTP layer treats what HTTP leaves to a cache. Default: see [`Rules`](crate::http::Rules).
    #[cfg(feature = "http")]
    #[must_use]
    pub fn http(self, rules: crate::http::Rules) -> Self {
        self.set(|config| config.rules = rules)
    }

    /// Drops the entry of the key, and refuses every computation of it that has begun.
    ///
    /// When this has returned `Ok`, no fill that began before will land, and nobody who asks this guard or its clones
    /// gets the old value. Neither does anybody who asks another guard, in this process or another one, once that has
    /// been told: a message is on its way to those that compute or wait for the key. Requests that were waiting
    /// already may still get it.
    ///
    /// Dropping the future does not stop the invalidation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if the store did not acknowledge in time. It is tried again
    /// behind for about ten seconds; until it gets through, the old value may be served for the rest of its retention.
    pub async fn invalidate(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.place(key.into()).invalidate().await
    }

    /// Waits until all computations, refreshes, fills and invalidations that are under way have ended: call it after
    /// the server has stopped, so that no leader is cut off. The guard can be used again afterwards.
    pub async fn shutdown(&self) {
        self.engine.shutdown().await;
    }

    /// What this guard and its clones have done so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.engine.stats.report()
    }

    /// Questions under way in this process, each counted once however many wait for it. Zero when nobody asks.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.engine.in_flight()
    }

    pub(crate) fn config(&self) -> &Arc<Config> {
        &self.config
    }

    pub(crate) fn place(&self, key: Key) -> Place {
        let at = Address::new(self.config.namespace.clone(), self.config.schema, key);
        let deadline = self.config.deadline.map(Into::into);
        Place { engine: self.engine.clone(), config: self.config.clone(), at, deadline }
    }

    /// Copy on write: other clones keep their settings.
    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

/// With the settings in force.
impl fmt::Debug for StampedeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StampedeGuard")
            .field("config", &self.config)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

const DEFAULT_NAMESPACE: &str = "sg";
const HOUR: Duration = Duration::from_secs(3600);
