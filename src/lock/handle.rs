//! The lock handle and its settings.

use super::{client::LockClient, queue::SetPx, recipe::Recipe};
use crate::{key, redis::connection::endpoint::IntoEndpoint, sync::detach::BACKGROUND_TIMEOUT, telemetry::LockMeter};
use std::{sync::Arc, time::Duration};

/// A distributed lock over Redis, for jobs that must not run concurrently and resources with one user at a time.
///
/// A cheaply cloneable handle. Each name that is [acquired](Self::acquire) is a separate lock. Nothing is sent before
/// the first acquisition, and no setter fails.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = stampede_guard_support::RedisServer::start();
/// # let url = server.url();
/// use stampede_guard::{Lock, redis};
/// use std::time::Duration;
///
/// let lock = Lock::new(redis::Client::open(url)?)
///     .namespace("shop")
///     .ttl(Duration::from_secs(10))            // if this process dies, other clients wait this long
///     .max_hold(Duration::from_secs(3600))     // `keep_alive` extends it no longer, if the work hangs
///     .store_timeout(Duration::from_secs(1));  // for each command
///
/// // A job that another process may be doing already.
/// if let Some(guard) = lock.try_acquire("nightly-report").await? {
///     // .. no other holder runs this section now ..
///     guard.release().await?;
/// }
///
/// // A resource with one user at a time: wait for it, up to five seconds.
/// let patient = lock.wait(Duration::from_secs(5));
/// let guard = patient.acquire("printer").await?;
/// drop(guard);           // releases it in the background
/// patient.drain().await; // before the process ends: waits for that
/// # Ok(())
/// # }
/// ```
///
/// The lock makes duplicate work unlikely, not impossible. If a holder is paused for longer than its ttl, or Redis
/// fails over, a second client acquires the lock. If that would do harm, let the resource compare
/// [fencing tokens](super::LockGuard::fencing_token).
#[derive(Clone, Debug)]
pub struct Lock {
    pub(super) client: Arc<LockClient>,
    pub(super) recipe: Arc<dyn Recipe>,
    pub(super) namespace: Arc<str>,
    pub(super) meter: Arc<LockMeter>,
    pub(super) ttl: Duration,
    pub(super) store_timeout: Duration,
    pub(super) max_hold: Duration,
    pub(super) wait_timeout: Duration,
    pub(super) delay: Option<Duration>,
}

impl Lock {
    /// Creates a lock over a client or connection of redis-rs.
    ///
    /// A client opens two connections when they are needed: one for commands, one for messages. A connection cannot
    /// open a second connection, so its waiters poll every [`delay`](Self::delay), unless
    /// [`RedisEndpoint::subscribe_via`](super::RedisEndpoint::subscribe_via) names a client for messages.
    #[must_use]
    pub fn new(redis: impl IntoEndpoint) -> Self {
        let namespace = Arc::from(DEFAULT_NAMESPACE);
        Self {
            client: Arc::new(LockClient::new(&redis.into_endpoint(), &[])),
            recipe: Arc::new(SetPx),
            meter: meter(&namespace, &SetPx),
            namespace,
            ttl: Duration::from_secs(10),
            store_timeout: Duration::from_millis(250),
            max_hold: Duration::from_secs(60),
            wait_timeout: Duration::ZERO,
            delay: None,
        }
    }

    /// Sets the recipe: [`SetPx`] or [`FencedLock`](super::FencedLock). All clients of a lock must use the same recipe.
    /// Default: [`SetPx`].
    ///
    /// ```
    /// # fn main() -> Result<(), stampede_guard::redis::RedisError> {
    /// use stampede_guard::{lock::{FencedLock, Lock}, redis};
    ///
    /// let lock = Lock::new(redis::Client::open("redis://127.0.0.1/")?).recipe(FencedLock);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn recipe(self, recipe: impl Recipe) -> Self {
        Self { meter: meter(&self.namespace, &recipe), recipe: Arc::new(recipe), ..self }
    }

    /// Sets the namespace, which separates the locks of different applications. Default: `lock`.
    ///
    /// At most 64 characters of `[A-Za-z0-9_.-]`, because the namespace becomes part of names in Redis. Other
    /// characters are replaced by `_`, and an empty namespace by the default.
    #[must_use]
    pub fn namespace(self, name: impl AsRef<str>) -> Self {
        let namespace = key::namespace(name.as_ref(), DEFAULT_NAMESPACE);
        Self { meter: meter(&namespace, &*self.recipe), namespace, ..self }
    }

    /// Sets the time to live of a lock that is not extended. If the holder crashes, other clients wait this long.
    ///
    /// The unit is whole milliseconds. Default: 10 s. With less than 1 ms every acquisition fails with
    /// [`Input`](super::LockErrorKind::Input).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Sets the wait timeout for a lock that is held. Default: zero, [`acquire`](Self::acquire) tries once.
    ///
    /// Waiters are queued and notified by message. A command in progress at the timeout may take up to
    /// [`store_timeout`](Self::store_timeout) longer.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// use stampede_guard::lock::LockErrorKind;
    /// use std::time::Duration;
    ///
    /// let held = lock.acquire("printer").await?;
    /// let patient = lock.wait(Duration::from_millis(60)).delay(Duration::from_millis(20));
    /// let error = patient.acquire("printer").await.unwrap_err();
    /// assert_eq!((error.kind(), error.lock()), (LockErrorKind::Acquisition, "printer"));
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn wait(self, budget: Duration) -> Self {
        Self { wait_timeout: budget, ..self }
    }

    /// Sets the delay between two attempts of a waiter that no message reaches: see [`wait`](Self::wait). Default: the
    /// delay of the recipe, 50 ms for [`SetPx`]. A waiter in a queue waits for one second at most. With zero, each reply is
    /// followed by the next attempt at once.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        Self { delay: Some(delay), ..self }
    }

    /// Sets the maximum duration of each server operation, including the connect. Default: 250 ms; minimum: 1 ms.
    #[must_use]
    pub fn store_timeout(self, most: Duration) -> Self {
        Self { store_timeout: most.max(Duration::from_millis(1)), ..self }
    }

    /// Sets the maximum time for which [`keep_alive`](super::LockGuard::keep_alive) extends a lock, counted from the
    /// acquisition. It limits how long a holder that hangs can keep the lock. Raise it for work that takes longer. An
    /// event at level `WARN` says that it has passed. Default: 60 s.
    #[must_use]
    pub fn max_hold(self, most: Duration) -> Self {
        Self { max_hold: most, ..self }
    }

    /// Waits for the background work of this handle and its clones: releases of dropped guards and of cancelled
    /// or failed acquisitions.
    ///
    /// Call it before the process ends, so that other clients need not wait for a ttl. It waits for at most 5 s. Work that
    /// is not done by then ends within 5 s more, without being waited for. Guards that still exist are not waited for. The
    /// handle can be used afterwards.
    ///
    /// Cancel safe: dropping the future only stops the wait.
    pub async fn drain(&self) {
        // Leave the tracker closed. A closed tracker accepts more tasks; reopening it would block concurrent drains.
        self.client.background.close();
        // A runtime that is not driven does not end its work.
        let _ = tokio::time::timeout(BACKGROUND_TIMEOUT, self.client.background.wait()).await;
    }
}

fn meter(namespace: &Arc<str>, recipe: &dyn Recipe) -> Arc<LockMeter> {
    LockMeter::new(&[namespace, &recipe.name().into()]).into()
}

const DEFAULT_NAMESPACE: &str = "lock";
