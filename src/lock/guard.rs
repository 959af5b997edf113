//! The guard of a held lock.

use super::{
    attempt::{HeldState, LockFuture, release_with_retry, retry_once_if_disconnected},
    client::LockClient,
    config::Config,
    error::{LockError, LockErrorKind},
    limits::{check_ttl, with_timeout},
    registry::RegistryEntry,
    validity::{Heartbeat, Validity},
};
use crate::{
    clock::Timestamp,
    store::{lease::LeaseStatus, token::Token},
    sync::{
        detach::{DetachOnDrop, detach},
        mutex::Mutex,
    },
};
use std::{fmt, sync::Arc, time::Duration};
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
#[must_use = "the lock is released when this is dropped"]
pub struct LockGuard {
    client: Arc<LockClient>,
    config: Config,
    name: Arc<str>,
    token: Token,
    held: Arc<dyn HeldState>,
    acquired: Timestamp,
    validity: Validity,
    heartbeat: Mutex<Option<AbortOnDropHandle<()>>>,
    released: bool,
    _entry: RegistryEntry,
}

/// A lock that a recipe has granted.
pub(super) struct Grant {
    pub(super) token: Token,
    pub(super) held: Arc<dyn HeldState>,
    /// Start of the validity.
    pub(super) from: Timestamp,
    /// Duration of the validity, from `from`.
    pub(super) valid: Duration,
}

impl LockGuard {
    pub(super) fn new(client: Arc<LockClient>, config: Config, name: Arc<str>, grant: Grant) -> Self {
        let Grant { token, held, from, valid } = grant;
        let entry = RegistryEntry::new(&name, &config.namespace, config.recipe.name(), held.fencing_token());
        Self {
            client,
            config,
            name,
            token,
            held,
            acquired: from,
            validity: Validity::new(from, valid),
            heartbeat: Mutex::new(None),
            released: false,
            _entry: entry,
        }
    }

    /// Returns the name that the lock was acquired by.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the token of this acquisition, which is unique. [Fenceable](super::Guarantees::fenceable) recipes store
    /// it in Redis.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// Returns the fencing token: a number larger than that of every earlier holder. The protected resource should
    /// refuse a smaller number than the largest one it has seen.
    ///
    /// `None` unless the recipe is [`FencedLock`](super::FencedLock). The number is the server's clock in
    /// microseconds, so it grows only while that clock is not set back.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.held.fencing_token()
    }

    /// Returns the time left, as known by this process: zero if the lock is lost, `None` if it does not expire.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.validity.remaining()
    }

    /// Sets the expiry to `ttl` from now, which may shorten the lock. The unit is whole milliseconds.
    ///
    /// [`keep_alive`](Self::keep_alive) still extends to the [ttl](super::Lock::ttl) of the `Lock`.
    ///
    /// # Errors
    ///
    /// - [`Extend`](LockErrorKind::Extend) if the lock had expired or was taken over.
    /// - [`Recipe`](LockErrorKind::Recipe) if the recipe is not [extendable](super::Guarantees::extendable).
    /// - [`Input`](LockErrorKind::Input) if the ttl is less than 1 ms.
    /// - [`Store`](LockErrorKind::Store) if the server did not confirm the extension. It may have been executed.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the extension may or may not be executed. While the result of an extension is unknown,
    /// or several run concurrently, [`remaining`](Self::remaining) reports the shortest time.
    pub async fn extend(&self, ttl: Duration) -> Result<(), LockError> {
        self.extendable()?;
        check_ttl(&self.name, ttl)?;
        let operation = retry_once_if_disconnected(self.held.extend(ttl), |_| self.held.extend(ttl));
        let extension = self.validity.begin_extension(ttl.saturating_sub(self.held.margin(ttl)));
        match with_timeout(self.config.store_timeout, operation).await {
            Ok(LeaseStatus::Held) => {
                self.validity.confirm_extension(&extension);
                Ok(())
            }
            Ok(LeaseStatus::Lost) => {
                self.validity.mark_lost();
                Err(self.error(LockErrorKind::Extend, "not extended: the lock expired or was taken over"))
            }
            Err(error) => Err(LockError::store(&self.name, "the server did not confirm the extension", error)),
        }
    }

    /// Asks the server whether this guard still holds the lock. If not, the guard is [lost](Self::lost) from then on.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Store`](LockErrorKind::Store) if the server does not reply or refuses the command.
    pub async fn check(&self) -> Result<LeaseStatus, LockError> {
        match with_timeout(self.config.store_timeout, self.held.check()).await {
            Ok(LeaseStatus::Lost) => {
                self.validity.mark_lost();
                Ok(LeaseStatus::Lost)
            }
            Ok(LeaseStatus::Held) => Ok(LeaseStatus::Held),
            Err(error) => Err(LockError::store(&self.name, "the server did not confirm that it is held", error)),
        }
    }

    /// Releases the lock.
    ///
    /// If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    ///
    /// - [`Release`](LockErrorKind::Release) if the lock had expired or was taken over. Another client may have held it
    ///   before the work was done.
    /// - [`Store`](LockErrorKind::Store) if the server did not confirm the release.
    pub async fn release(mut self) -> Result<(), LockError> {
        let release = self.start_release();
        let release = DetachOnDrop::new(&self.client.background, release, |_| None);
        match with_timeout(self.config.store_timeout, release).await {
            Ok(LeaseStatus::Held) => Ok(()),
            Ok(LeaseStatus::Lost) => Err(self.error(LockErrorKind::Release, "the lock expired or was taken over")),
            Err(error) => Err(LockError::store(&self.name, "the server did not confirm the release", error)),
        }
    }

    /// Starts a heartbeat that extends the lock to the [ttl](super::Lock::ttl) of the `Lock` every third of that ttl.
    ///
    /// If less time is left, the heartbeat extends sooner. It stops when the lock is released, dropped or
    /// [lost](Self::lost), and [`max_hold`](super::Lock::max_hold) after the acquisition. The lock then ends with its
    /// ttl. One call suffices; a second call restarts the heartbeat.
    ///
    /// # Errors
    ///
    /// - [`Recipe`](LockErrorKind::Recipe) if the recipe is not [extendable](super::Guarantees::extendable).
    /// - [`Extend`](LockErrorKind::Extend) outside of a tokio runtime, because the heartbeat needs a task.
    pub fn keep_alive(&self) -> Result<(), LockError> {
        self.extendable()?;
        let Ok(runtime) = Handle::try_current() else {
            return Err(self.error(LockErrorKind::Extend, "`keep_alive` needs a tokio runtime for its heartbeat"));
        };
        let heartbeat = Heartbeat {
            held: self.held.clone(),
            validity: self.validity.clone(),
            ttl: self.config.ttl,
            store_timeout: self.config.store_timeout,
            until: self.acquired.after(self.config.max_hold),
        };
        let task = AbortOnDropHandle::new(runtime.spawn(heartbeat.run()));
        *self.heartbeat.lock() = Some(task);
        Ok(())
    }

    /// Waits until the lock is lost: its time is over, or a heartbeat, an extension or a check found that the server no
    /// longer has it.
    ///
    /// With a recipe whose locks do not expire, only a check can end the wait. Cancel safe.
    ///
    /// ```no_run
    /// # async fn example(guard: stampede_guard::LockGuard, work: impl Future<Output = ()>) {
    /// guard.keep_alive().expect("the recipe can extend");
    /// tokio::select! {
    ///     () = work => {}
    ///     () = guard.lost() => eprintln!("stopped: another client may hold the lock"),
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) {
        self.validity.ended().await;
    }

    /// Returns the future that releases the lock, and disarms the release on drop.
    fn start_release(&mut self) -> LockFuture<LeaseStatus> {
        self.released = true;
        *self.heartbeat.get_mut() = None;
        let owner_safe = self.config.recipe.guarantees().owner_safe;
        release_with_retry(self.held.release(), owner_safe.then(|| self.held.release()))
    }

    fn extendable(&self) -> Result<(), LockError> {
        if self.config.recipe.guarantees().extendable {
            return Ok(());
        }
        let recipe = self.config.recipe.name();
        let reason = format!("the recipe {recipe} cannot extend a lock: use another recipe or a longer ttl");
        Err(LockError::new(LockErrorKind::Recipe, &self.name, reason))
    }

    fn error(&self, kind: LockErrorKind, reason: &'static str) -> LockError {
        LockError::new(kind, &self.name, reason)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            let release = self.start_release();
            detach(&self.client.background, async move { drop(release.await) });
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name)
            .field("recipe", &self.config.recipe.name())
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
