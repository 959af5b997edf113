//! The guard of a held lock, and the list of the locks that this process holds.

use super::{
    attempt::{HeldState, LockFuture, check_ttl, with_timeout},
    error::{LockError, LockErrorKind},
    handle::Lock,
    validity::ValidLock,
};
use crate::{
    clock::Timestamp,
    store::{lease::LeaseStatus, token::Token},
    sync::{
        detach::{DetachOnDrop, detach},
        mutex::Mutex,
    },
    telemetry::{self, Timed},
};
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// A held lock. It ends when it is [released](Self::release) or dropped, or when its time is over.
///
/// The guard counts its time from *before* the request that acquired or extended the lock was sent. It therefore ends
/// no later than the lock on the server, provided that both clocks run at about the same speed.
///
/// # Dropping
///
/// Dropping the guard releases the lock in a task of the tokio runtime: best effort. Outside of a runtime, or if the
/// runtime shuts down, the lock ends with its ttl. [`release`](Self::release) reports the result.
///
/// # Example
///
/// ```
/// # async fn rebuild_index() {}
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = stampede_guard_support::RedisServer::start();
/// # let lock = stampede_guard::Lock::new(server.client());
/// use stampede_guard::lock::{LockErrorKind, held_locks};
///
/// let guard = lock.acquire("index").await?;
/// guard.keep_alive()?; // a heartbeat, for work that takes longer than the ttl
/// for held in held_locks() {
///     println!("{} for {:?}", held.name, held.held_for);
/// }
/// tokio::select! {
///     () = rebuild_index() => {}
///     () = guard.lost() => return Err("stopped: another client may hold the lock".into()),
/// }
/// match guard.release().await {
///     Err(error) if error.kind() == LockErrorKind::Release => eprintln!("it was lost before the end: {error}"),
///     released => released?,
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released when this is dropped"]
pub struct LockGuard {
    token: Token,
    valid_lock: Arc<ValidLock>,
    acquired: Timestamp,
    heartbeat: Mutex<Option<AbortOnDropHandle<()>>>,
    is_released: bool,
    /// The number in the list of [`held_locks`].
    number: u64,
    _timed: Timed,
}

impl LockGuard {
    /// Creates the guard of a lock that is valid for `valid`, counted from `from`.
    pub(super) fn new(
        lock: Lock,
        name: Arc<str>,
        token: Token,
        held: Arc<dyn HeldState>,
        from: Timestamp,
        valid: Duration,
    ) -> Self {
        let entry = HeldLock {
            name: name.clone(),
            namespace: lock.namespace.clone(),
            recipe: lock.recipe.name(),
            token,
            fencing_token: held.fencing_token(),
            held_for: Duration::ZERO,
        };
        let mut held_locks = HELD.lock();
        let number = held_locks.last_key_value().map_or(0, |(last, _)| last + 1);
        held_locks.insert(number, (entry, Timestamp::now()));
        drop(held_locks);
        telemetry::lock_acquired(&lock.meter, &name, token);
        let (heartbeat, _timed) = (Mutex::new(None), telemetry::lock_holding(&lock.meter));
        let valid_lock = Arc::new(ValidLock::new(lock, name, held, from, valid));
        Self { token, valid_lock, acquired: from, heartbeat, is_released: false, number, _timed }
    }

    /// Returns the name that the lock was acquired by.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// let guard = lock.acquire("index").await?;
    /// println!("{} is held under the token {:?}", guard.name(), guard.token());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn name(&self) -> &str {
        &self.valid_lock.name
    }

    /// Returns the token of this acquisition, which is unique. It is stored in Redis.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// let (index, printer) = (lock.acquire("index").await?, lock.acquire("printer").await?);
    /// assert_ne!(index.token(), printer.token());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the fencing token: a number larger than that of every earlier holder. The protected resource should
    /// refuse a smaller number than the largest one it has seen.
    ///
    /// `None` unless the recipe is [`FencedLock`](super::FencedLock). The number is the server's clock in
    /// microseconds, so it grows only while that clock is not set back.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let client = server.client();
    /// use stampede_guard::lock::{FencedLock, Lock};
    ///
    /// let guard = Lock::new(client).recipe(FencedLock).acquire("report").await?;
    /// let number = guard.fencing_token().ok_or("the recipe has none")?;
    /// let update = format!("UPDATE report SET body = $1, fence = {number} WHERE fence < {number}");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.valid_lock.held.fencing_token()
    }

    /// Returns the time left, as known by this process: zero if the lock is lost, `None` if it does not expire.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// use std::time::Duration;
    ///
    /// let guard = lock.ttl(Duration::from_secs(10)).acquire("index").await?;
    /// if guard.remaining().is_some_and(|left| left < Duration::from_secs(5)) {
    ///     guard.extend(Duration::from_secs(10)).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.valid_lock.remaining()
    }

    /// Sets the expiry to `ttl` from now, which may shorten the lock. The unit is whole milliseconds.
    ///
    /// [`keep_alive`](Self::keep_alive) still extends to the [ttl](super::Lock::ttl) of the `Lock`.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// use std::time::Duration;
    ///
    /// let guard = lock.acquire("import").await?;
    /// for batch in ["a-f", "g-m", "n-z"] {
    ///     guard.extend(Duration::from_secs(30)).await?; // an error stops the import: the lock may be lost
    ///     println!("importing {batch}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Extend`](LockErrorKind::Extend) if the lock had expired or was taken over.
    /// - [`Input`](LockErrorKind::Input) if the ttl is less than 1 ms.
    /// - [`Store`](LockErrorKind::Store) if the server did not confirm the extension. It may have been executed.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the extension may or may not be executed. While the result of an extension is unknown,
    /// or several run concurrently, [`remaining`](Self::remaining) reports the shortest time.
    pub async fn extend(&self, ttl: Duration) -> Result<(), LockError> {
        let ttl = check_ttl(&self.valid_lock.name, ttl)?;
        match self.valid_lock.extend(ttl).await {
            Ok(LeaseStatus::Held) => Ok(()),
            Ok(LeaseStatus::Lost) => {
                Err(self.error(LockErrorKind::Extend, "not extended: the lock expired or was taken over"))
            }
            Err(error) => {
                Err(LockError::store(&self.valid_lock.name, "the server did not confirm the extension", error))
            }
        }
    }

    /// Asks the server whether this guard still holds the lock. If not, the guard is [lost](Self::lost) from then on.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// use stampede_guard::lock::LeaseStatus;
    ///
    /// let guard = lock.acquire("payout").await?;
    /// // Before a step that must not happen twice. Another client can still acquire the lock after the reply.
    /// assert_eq!(guard.check().await?, LeaseStatus::Held);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Store`](LockErrorKind::Store) if the server does not reply or refuses the command.
    pub async fn check(&self) -> Result<LeaseStatus, LockError> {
        let unconfirmed =
            |error| LockError::store(&self.valid_lock.name, "the server did not confirm that it is held", error);
        self.valid_lock.check().await.map_err(unconfirmed)
    }

    /// Releases the lock.
    ///
    /// If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    ///
    /// - [`Release`](LockErrorKind::Release) if the lock had expired or was taken over, or if the time of the guard was
    ///   over. Another client may have held it before the work was done. If the connection breaks during the release,
    ///   only the time of the guard decides, because the server may have executed the release.
    /// - [`Store`](LockErrorKind::Store) if the server did not confirm the release.
    pub async fn release(mut self) -> Result<(), LockError> {
        let was_over = self.remaining() == Some(Duration::ZERO);
        let release = self.start_release();
        let Lock { client, store_timeout, .. } = &self.valid_lock.lock;
        match with_timeout(*store_timeout, DetachOnDrop::new(&client.background, release)).await {
            Ok(LeaseStatus::Held) if !was_over => Ok(()),
            Ok(_) => {
                self.valid_lock.lost_by_server();
                Err(self.error(LockErrorKind::Release, "the lock expired or was taken over"))
            }
            Err(error) => Err(LockError::store(&self.valid_lock.name, "the server did not confirm the release", error)),
        }
    }

    /// Starts a heartbeat that extends the lock to the [ttl](super::Lock::ttl) of the `Lock` every third of that ttl.
    ///
    /// If less time is left, the heartbeat extends sooner. It stops when the lock is released, dropped or
    /// [lost](Self::lost). If a reply comes after the time of the lock is over, and shows that the lock is held, the
    /// heartbeat goes on. It also stops 60 s after the acquisition: set [`max_hold`](super::Lock::max_hold) to more than
    /// the work takes. The lock then ends with its ttl, and an event at level `WARN` says so. One call suffices; a second
    /// call restarts the heartbeat.
    ///
    /// # Errors
    ///
    /// [`Extend`](LockErrorKind::Extend) outside of a tokio runtime, because the heartbeat needs a task.
    pub fn keep_alive(&self) -> Result<(), LockError> {
        let Ok(runtime) = Handle::try_current() else {
            return Err(self.error(LockErrorKind::Extend, "`keep_alive` needs a tokio runtime for its heartbeat"));
        };
        let Lock { max_hold, ttl, .. } = self.valid_lock.lock;
        let task = runtime.spawn(self.valid_lock.clone().keep_alive(ttl, self.acquired.after(max_hold)));
        *self.heartbeat.lock() = Some(AbortOnDropHandle::new(task));
        Ok(())
    }

    /// Waits until the lock is lost: its time is over, or a heartbeat, an extension or a check found that the server no
    /// longer has it.
    ///
    /// With a recipe whose locks do not expire, only a check can end the wait. Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// # let (guard, work) = (lock.acquire("work").await?, async {});
    /// guard.keep_alive().expect("the recipe can extend");
    /// tokio::select! {
    ///     () = work => {}
    ///     () = guard.lost() => eprintln!("stopped: another client may hold the lock"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn lost(&self) {
        self.valid_lock.ended().await;
    }

    /// Returns the future that releases the lock, and disarms the release on drop.
    fn start_release(&mut self) -> LockFuture<LeaseStatus> {
        self.valid_lock.report_loss();
        self.is_released = true;
        *self.heartbeat.lock() = None;
        self.valid_lock.held.release()
    }

    fn error(&self, kind: LockErrorKind, reason: &'static str) -> LockError {
        LockError::new(kind, &self.valid_lock.name, reason)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        HELD.lock().remove(&self.number);
        if !self.is_released {
            let release = self.start_release();
            detach(&self.valid_lock.lock.client.background, async move { drop(release.await) });
        }
        telemetry::lock_released(self.name(), Timestamp::now().since(self.acquired));
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("recipe", &self.valid_lock.lock.recipe.name())
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// A lock that this process holds, as listed by [`held_locks`].
///
/// ```
/// use stampede_guard::lock::{HeldLock, held_locks};
///
/// let busiest: Option<HeldLock> = held_locks().into_iter().max_by_key(|held| held.held_for);
/// # assert!(busiest.is_none());
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The name that the lock was acquired by.
    pub name: Arc<str>,
    /// The [namespace](super::Lock::namespace) of the name.
    pub namespace: Arc<str>,
    /// The name of the recipe.
    pub recipe: &'static str,
    /// The [token](super::LockGuard::token) of the acquisition, as in [`Lock::holder`](super::Lock::holder).
    pub token: Token,
    /// The [fencing token](super::LockGuard::fencing_token), if the recipe has one.
    pub fencing_token: Option<u64>,
    /// The time since the lock was acquired.
    pub held_for: Duration,
}

/// Returns the locks that this process holds, of all handles and servers, in the order of their acquisition.
///
/// A lock is listed while its [`LockGuard`](super::LockGuard) exists, even if it has been
/// [lost](super::LockGuard::lost). Equivalent to `getAcquiredLocks` of redislock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = stampede_guard_support::RedisServer::start();
/// # let lock = stampede_guard::Lock::new(server.client());
/// use stampede_guard::lock::held_locks;
///
/// let _guard = lock.acquire("index").await?;
/// let names: Vec<String> = held_locks().iter().map(|held| held.name.to_string()).collect();
/// assert_eq!(names, ["index"]);
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn held_locks() -> Vec<HeldLock> {
    let now = Timestamp::now();
    HELD.lock().values().map(|(held, since)| HeldLock { held_for: now.since(*since), ..held.clone() }).collect()
}

static HELD: Mutex<BTreeMap<u64, (HeldLock, Timestamp)>> = Mutex::new(BTreeMap::new());
