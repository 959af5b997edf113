//! The handle of the crate. Its settings are in settings.rs, its upkeep is in operations.rs.

use crate::{
    clock::{self, Timestamp},
    config::Config,
    engine::{Engine, frontend::Answers, resource::Resource},
    error::Error,
    key::{
        CacheKey, CacheKeyRef, Key,
        to_key::{KeyText, ToKey},
    },
    store::{memory::MemoryStore, port::IntoStore},
    telemetry::FrontEnd,
};
use std::{fmt, sync::Arc};

/// Protects an origin against cache stampedes: on a miss one request in the whole fleet fetches. Other requests wait
/// and are answered from the cache.
///
/// It is a [`Layer`](tower_layer::Layer) for HTTP services. [`fetch`](Self::fetch) wraps any async function, and
/// [`keyed`](Self::keyed) any tower service. Clones are cheap and share the store, the fetches and the statistics. A
/// setter changes its own clone only, so one guard serves routes with different settings:
///
/// ```
/// use stampede_guard::{Policy, StampedeGuard};
/// use std::time::Duration;
///
/// let guard = StampedeGuard::in_memory();
/// let slow = guard.clone().policy(Policy::fresh_for(Duration::from_secs(3600))).fetch_timeout(Duration::from_secs(120));
/// ```
///
/// # Runtime
///
/// A guard can be created anywhere, also outside of a runtime; it connects with the first request. Requests need a
/// tokio runtime with time enabled, and with I/O enabled for Redis.
#[must_use = "a setter changes the guard that it returns"]
pub struct StampedeGuard {
    pub(crate) engine: Arc<Engine>,
    pub(crate) config: Arc<Config>,
}

impl StampedeGuard {
    /// Creates a guard over a store. With a `redis::Client` (preferred) messages wake the waiters; with a connection of
    /// redis-rs the waiters poll. A [`MemoryStore`] works too, and with the feature `unstable` a store of your own.
    ///
    /// It neither connects nor fails. While the store is unavailable, the origin answers, and requests are coalesced
    /// within this process: see [`on_store_failure`](Self::on_store_failure).
    ///
    /// ```
    /// # fn main() -> Result<(), stampede_guard::redis::RedisError> {
    /// use stampede_guard::{MemoryStore, StampedeGuard, redis};
    ///
    /// let guard = StampedeGuard::new(redis::Client::open("redis://127.0.0.1/")?);
    /// let without_redis = StampedeGuard::new(MemoryStore::with_max_bytes(256 << 20));
    /// # Ok(())
    /// # }
    /// ```
    pub fn new(store: impl IntoStore) -> Self {
        let (mut config, store) = (Config::default(), store.into_store());
        config.meter.server = store.host().map(Into::into);
        Self { engine: Engine::new(store, config.meter.named_counters()), config: Arc::new(config) }
    }

    /// Creates a guard over the Redis server of a URL: `redis://` (TCP), `rediss://` (TLS, feature `tls-rustls`) or
    /// `redis+unix://`. The same as [`new`](Self::new) with `redis::Client::open(url)?`, and it connects as late.
    ///
    /// # Errors
    ///
    /// The URL is not one of Redis, or names TLS without the feature.
    ///
    /// ```
    /// use stampede_guard::StampedeGuard;
    ///
    /// let guard = StampedeGuard::connect("redis://user:password@127.0.0.1:6379/0")?;
    /// assert!(StampedeGuard::connect("http://127.0.0.1").is_err());
    /// # Ok::<(), stampede_guard::redis::RedisError>(())
    /// ```
    #[cfg(feature = "redis")]
    pub fn connect(url: &str) -> crate::redis::RedisResult<Self> {
        crate::redis::Client::open(url).map(Self::new)
    }

    /// Creates a guard over a [`MemoryStore`] of its own, for one process.
    pub fn in_memory() -> Self {
        Self::new(MemoryStore::default())
    }

    /// Drops the entry of the key, and refuses the result of every fetch of it that has begun.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), stampede_guard::Error> {
    /// # let guard = stampede_guard::StampedeGuard::in_memory();
    /// guard.fetch("user:42", async || Ok::<_, std::io::Error>("Ann".to_owned())).await?;
    /// // .. the user is renamed in the database, and then:
    /// guard.invalidate("user:42").await?;
    /// let user = guard.fetch("user:42", async || Ok::<_, std::io::Error>("Bob".to_owned())).await?;
    /// assert_eq!(user, "Bob");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// For values. The pages of an HTTP layer have other keys, also in the eyes of a process without the layer:
    /// `invalidate_url` drops them.
    ///
    /// After `Ok`, no result of a fetch that began earlier is stored. Later requests to this guard or its clones do not
    /// get the old value. Another guard, in this process or another, learns of the invalidation by a message to the
    /// leaders and waiters of the key; until then it may join later requests to an old fetch. Requests that were
    /// already waiting may still get the old value. The entries of every [`schema_version`](Self::schema_version) and
    /// [`codec`](Self::codec) are dropped, whichever this guard uses. Another guard may share a read that it has sent before,
    /// at most for its [`store_timeout`](Self::store_timeout), and has what the store could not keep for the
    /// [`ttl`](crate::OutageCacheConfig::ttl) of its outage cache. For its copies see [`near_cache`](Self::near_cache).
    ///
    /// Once polled, the future can be dropped without stopping the invalidation.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Store`](crate::ErrorKind::Store) if the store did not acknowledge in time. The invalidation is then
    /// sent again until the store acknowledges it ([`Health::pending_invalidations`](crate::Health::pending_invalidations)),
    /// also after all clones of the guard were dropped: their connections last as long. Until then this guard serves the
    /// key from no store, and other processes may serve the old value; if this process ends before, for the rest of its
    /// retention.
    ///
    /// With the feature `http`, [`ErrorKind::InvalidUrl`](crate::ErrorKind::InvalidUrl) for a key that begins with `/`,
    /// `http://` or `https://` if a clone of the guard is a layer: its pages have other keys, which `invalidate_url` drops.
    ///
    /// [`ErrorKind::InvalidKey`](crate::ErrorKind::InvalidKey) for an empty key.
    pub async fn invalidate(&self, key: impl ToKey) -> Result<(), Error> {
        let resource = self.resource_of(&KeyText::new("", &key))?;
        #[cfg(feature = "http")]
        self.refuse_url(&resource.key)?;
        resource.invalidate().await
    }

    /// Returns the answer of a fresh entry in this layout, if this process has it.
    pub(crate) fn peek<R>(
        &self,
        front_end: FrontEnd,
        layout: u64,
        key: &Key,
        policy: &impl Answers<R>,
        now: Timestamp,
    ) -> Option<R> {
        self.engine.peek(&self.config, front_end, CacheKeyRef::new(&self.config.namespace, layout, key), policy, now)
    }

    /// Returns the handle of a key whose entries have this layout.
    pub(crate) fn resource_in(&self, front_end: FrontEnd, layout: u64, key: Key) -> Resource {
        let key = CacheKey::of(self.config.namespace.clone(), layout, key);
        let (engine, config) = (self.engine.clone(), self.config.clone());
        let soft_until = config.policy.soft_timeout.map(clock::deadline_after);
        Resource { engine, config, key, front_end, deadline: None, soft_until }
    }

    /// Returns the handle of a key for an invalidation, which drops the entries of all layouts.
    pub(crate) fn resource_of(&self, key: &KeyText) -> Result<Resource, Error> {
        key.check()?;
        Ok(self.resource_in(FrontEnd::Fetch, 0, key.to_key()))
    }

    /// Changes a setting of this clone. Copy on write: other clones keep theirs.
    pub(crate) fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

/// Registers the metrics of the clone, so that the first scrape has them. The settings of a guard that is cloned are
/// complete; a new one may get another namespace.
impl Clone for StampedeGuard {
    fn clone(&self) -> Self {
        self.config.meter.register_metrics();
        Self { engine: self.engine.clone(), config: self.config.clone() }
    }
}

/// Shows the settings in force.
impl fmt::Debug for StampedeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StampedeGuard")
            .field("config", &self.config)
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}
