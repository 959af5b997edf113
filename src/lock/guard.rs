//! A lock that is held.

use super::{
    Lock, LockError, LockErrorKind,
    behind::{self, Behind},
    recipe::{Doing, Held, give_back, or_again},
    registry::Listed,
    tenure::{Heartbeat, Tenure},
    wanted::{accept_ttl, within},
};
use crate::{
    clock::Timestamp,
    lease::{Hold, Token},
};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

/// A lock, for as long as it is held: until it is [released](Self::release) or dropped, or its time is over.
///
/// Its time is counted here from *before* the request that acquired or extended it was sent, so this side believes itself
/// to hold it no longer than the server does, as long as the two clocks run at about the same speed.
///
/// # Dropping
///
/// Dropping it releases it in a task of the runtime: best effort. Outside of a runtime, or if that shuts down, the lock
/// ends with its ttl. [`release`](Self::release) says what became of it.
#[must_use = "the lock is released when this is dropped"]
pub struct LockGuard {
    lock: Lock,
    name: Arc<str>,
    token: Token,
    held: Arc<dyn Held>,
    acquired: Timestamp,
    tenure: Tenure,
    heartbeat: Mutex<Option<AbortOnDropHandle<()>>>,
    released: bool,
    _listed: Listed,
}

/// What a recipe has granted.
pub(super) struct Granted {
    pub(super) token: Token,
    pub(super) held: Arc<dyn Held>,
    /// Since then,
    pub(super) from: Timestamp,
    /// and for so long.
    pub(super) valid: Duration,
}

impl LockGuard {
    pub(super) fn new(lock: &Lock, name: Arc<str>, granted: Granted) -> Self {
        let Granted { token, held, from, valid } = granted;
        let listed = Listed::new(&name, &lock.config.namespace, lock.config.recipe.name(), held.fencing_token());
        Self {
            lock: lock.clone(),
            name,
            token,
            held,
            acquired: from,
            tenure: Tenure::new(from, valid),
            heartbeat: Mutex::new(None),
            released: false,
            _listed: listed,
        }
    }

    /// The name by which it was acquired.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What identifies this acquisition: no other one ever has the same. Recipes that are
    /// [fenceable](super::Guarantees::fenceable) store it.
    #[must_use]
    pub fn token(&self) -> Token {
        self.token
    }

    /// A number that is larger than those of all who held this lock before, for resources that refuse smaller ones than
    /// they have seen. Of [`Fused`](super::Fused) only: the server's clock in microseconds, which holds as long as that is
    /// not set back.
    #[must_use]
    pub fn fencing_token(&self) -> Option<u64> {
        self.held.fencing_token()
    }

    /// How much of its time is left, as far as is known here: zero if it is lost, `None` if it does not end by itself.
    #[must_use]
    pub fn remaining(&self) -> Option<Duration> {
        self.tenure.remaining()
    }

    /// Prolongs it to `ttl` from now, or shortens it; in whole milliseconds. [`keep_alive`](Self::keep_alive) goes on with
    /// the ttl of the [`Lock`](super::Lock::ttl).
    ///
    /// # Errors
    ///
    /// [`Extend`](LockErrorKind::Extend) if it had expired or was taken over; [`Recipe`](LockErrorKind::Recipe) if the
    /// recipe is not [extendable](super::Guarantees::extendable); [`Input`](LockErrorKind::Input) for a ttl of less
    /// than a millisecond; [`Store`](LockErrorKind::Store) if the server did not say, and then it may be extended or not.
    ///
    /// Dropping the future may or may not extend it. As long as that is not known, and of several extensions at once, the
    /// shorter time is what [remains](Self::remaining).
    pub async fn extend(&self, ttl: Duration) -> Result<(), LockError> {
        self.extendable()?;
        accept_ttl(&self.name, ttl)?;
        let doing = or_again(self.held.extend(ttl), |_| self.held.extend(ttl));
        let extension = self.tenure.ask(ttl.saturating_sub(self.held.margin(ttl)));
        match within(self.lock.config.op_timeout, doing).await {
            Ok(Hold::Held) => {
                self.tenure.extended(&extension);
                Ok(())
            }
            Ok(Hold::Lost) => {
                self.tenure.end();
                Err(self.error(LockErrorKind::Extend, "not extended: it had expired, or was taken over"))
            }
            Err(error) => Err(LockError::store(&self.name, "the server did not say whether it was extended", error)),
        }
    }

    /// Asks the server whether it is still held. Where it is not, it is [lost](Self::lost) from then on.
    ///
    /// # Errors
    ///
    /// [`Store`](LockErrorKind::Store) if the server does not answer.
    ///
    /// Dropping the future loses nothing.
    pub async fn check(&self) -> Result<Hold, LockError> {
        match within(self.lock.config.op_timeout, self.held.check()).await {
            Ok(Hold::Lost) => {
                self.tenure.end();
                Ok(Hold::Lost)
            }
            Ok(Hold::Held) => Ok(Hold::Held),
            Err(error) => Err(LockError::store(&self.name, "the server did not say whether it is still held", error)),
        }
    }

    /// Releases it.
    ///
    /// # Errors
    ///
    /// [`Release`](LockErrorKind::Release) if it had expired or was taken over: somebody else may have held it while the
    /// work was done. [`Store`](LockErrorKind::Store) if the server did not say.
    ///
    /// Dropping the future releases it all the same, behind.
    pub async fn release(mut self) -> Result<(), LockError> {
        let doing = self.give_back();
        let doing = Behind::new(&self.lock.hub.behind, doing, |_| None);
        match within(self.lock.config.op_timeout, doing).await {
            Ok(Hold::Held) => Ok(()),
            Ok(Hold::Lost) => Err(self.error(LockErrorKind::Release, "it had expired, or was taken over")),
            Err(error) => Err(LockError::store(&self.name, "the server did not say whether it was released", error)),
        }
    }

    /// Extends it from now on to the [ttl](super::Lock::ttl) of its lock, every third of that, and sooner where less is
    /// left of it, until it is released, dropped or [lost](Self::lost), or has been held for
    /// [`max_hold`](super::Lock::max_hold); then it ends with its ttl. Once is enough.
    ///
    /// # Errors
    ///
    /// [`Recipe`](LockErrorKind::Recipe) if the recipe is not [extendable](super::Guarantees::extendable);
    /// [`Extend`](LockErrorKind::Extend) outside of a tokio runtime, where nothing can be done later.
    pub fn keep_alive(&self) -> Result<(), LockError> {
        self.extendable()?;
        let Ok(runtime) = Handle::try_current() else {
            return Err(self.error(LockErrorKind::Extend, "outside of a tokio runtime nothing can extend it"));
        };
        let heartbeat = Heartbeat {
            held: self.held.clone(),
            tenure: self.tenure.clone(),
            ttl: self.lock.config.ttl,
            op_timeout: self.lock.config.op_timeout,
            until: self.acquired.after(self.lock.config.max_hold),
        };
        let task = AbortOnDropHandle::new(runtime.spawn(heartbeat.beat()));
        *self.heartbeat.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
        Ok(())
    }

    /// Waits until it is lost: its time is over, or the server has said so to a heartbeat, an extension or a check. Never,
    /// for a recipe whose locks do not end by themselves, unless the server says so.
    ///
    /// Dropping the future loses nothing.
    ///
    /// ```no_run
    /// # async fn example(guard: stampede_guard::LockGuard, work: impl Future<Output = ()>) {
    /// guard.keep_alive().expect("the recipe can extend");
    /// tokio::select! {
    ///     () = work => {}
    ///     () = guard.lost() => eprintln!("stopped: somebody else may be at work"),
    /// }
    /// # }
    /// ```
    pub async fn lost(&self) {
        self.tenure.ended().await;
    }

    /// What releases it, once. From here on dropping this does not.
    fn give_back(&mut self) -> Doing<Hold> {
        self.released = true;
        *self.heartbeat.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        let owner_safe = self.lock.config.recipe.guarantees().owner_safe;
        give_back(self.held.release(), owner_safe.then(|| self.held.release()))
    }

    fn extendable(&self) -> Result<(), LockError> {
        if self.lock.config.recipe.guarantees().extendable {
            return Ok(());
        }
        let recipe = self.lock.config.recipe.name();
        let reason = format!("the recipe {recipe} cannot extend a lock: take another one, or a longer ttl");
        Err(LockError::new(LockErrorKind::Recipe, &self.name, reason))
    }

    fn error(&self, kind: LockErrorKind, reason: &'static str) -> LockError {
        LockError::new(kind, &self.name, reason)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.released {
            let doing = self.give_back();
            behind::spawn(&self.lock.hub.behind, async move { drop(doing.await) });
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name)
            .field("recipe", &self.lock.config.recipe.name())
            .field("fencing_token", &self.fencing_token())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
