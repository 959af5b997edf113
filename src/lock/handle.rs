//! The lock as a handle: settings, and the ways to acquire.

use super::{Guarantees, LockError, LockGuard, Recipe, SetPx, hub::Hub, wanted::Wanted};
use crate::{key, wire::IntoServer};
use std::{sync::Arc, time::Duration};

/// A lock over Redis, by itself, for what is not a cache: jobs that must not run twice at once, resources with one user.
///
/// A handle, cheap to clone; each [acquired](Self::acquire) name is a lock of its own. Nothing is sent before the first
/// one is acquired, and none of the setters fails.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use stampede_guard::{Lock, redis};
/// use std::time::Duration;
///
/// let lock = Lock::new(redis::Client::open("redis://127.0.0.1/")?).wait(Duration::from_secs(5));
/// let guard = lock.acquire("nightly-report").await?;
/// // .. nobody else does the same here ..
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// It makes duplicate work unlikely, not impossible: a holder that is paused for longer than its ttl, or a failover, gives
/// the lock to a second one. Where that would do harm, let the resource compare
/// [fencing tokens](LockGuard::fencing_token).
#[derive(Clone, Debug)]
pub struct Lock {
    pub(super) hub: Arc<Hub>,
    pub(super) config: Config,
}

#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) recipe: Arc<dyn Recipe>,
    pub(super) namespace: Arc<str>,
    pub(super) ttl: Duration,
    pub(super) op_timeout: Duration,
    pub(super) max_hold: Duration,
    pub(super) patience: Patience,
    pub(super) delay: Option<Duration>,
    pub(super) fair: bool,
}

/// What is done when the lock is held.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    Retries(u32),
    Wait(Duration),
}

impl Lock {
    /// Over a client or connection of redis-rs. A client dials two connections when they are needed: one for data, one
    /// for messages. A connection cannot be dialled again, so those who wait over it poll every [`delay`](Self::delay),
    /// unless [`Server::wakes_from`](super::Server::wakes_from) names a client; so do those who wait over a cluster.
    #[must_use]
    pub fn new(redis: impl IntoServer) -> Self {
        let config = Config {
            recipe: Arc::new(SetPx),
            namespace: DEFAULT_NAMESPACE.into(),
            ttl: Duration::from_secs(10),
            op_timeout: Duration::from_millis(250),
            max_hold: Duration::from_secs(60),
            patience: Patience::Retries(0),
            delay: None,
            fair: true,
        };
        Self { hub: Arc::new(Hub::new(&redis.into_server())), config }
    }

    /// How to lock. All who share a lock have to use the same recipe. Default: [`SetPx`].
    #[must_use]
    pub fn recipe(self, recipe: impl Recipe) -> Self {
        self.set(|config| config.recipe = Arc::new(recipe))
    }

    /// Keeps locks of different applications apart. Default: `lock`.
    ///
    /// Up to 64 characters of `[A-Za-z0-9_.-]`, as they become part of names in Redis; others are replaced by `_`, and
    /// nothing at all by the default.
    #[must_use]
    pub fn namespace(self, name: impl AsRef<str>) -> Self {
        self.set(|config| config.namespace = key::namespace(name.as_ref(), DEFAULT_NAMESPACE))
    }

    /// How long a lock lives that nobody extends: for so long the others wait in vain for a holder that died. In whole
    /// milliseconds. Default: 10 s. With less than a millisecond nothing can be acquired:
    /// [`Input`](super::LockErrorKind::Input).
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        self.set(|config| config.ttl = ttl)
    }

    /// How many more attempts are made where the first one finds the lock held, [`delay`](Self::delay) apart. Takes the
    /// place of [`wait`](Self::wait). Default: 0.
    #[must_use]
    pub fn retries(self, most: u32) -> Self {
        self.set(|config| config.patience = Patience::Retries(most))
    }

    /// How long is waited where the lock is held. With the recipes
    /// [`SetPx`] and [`Fused`](super::Fused) those who wait are queued and woken by message; with the others they try
    /// again every [`delay`](Self::delay). An operation that is under way then may take its
    /// [`op_timeout`](Self::op_timeout) more. Takes the place of [`retries`](Self::retries).
    #[must_use]
    pub fn wait(self, budget: Duration) -> Self {
        self.set(|config| config.patience = Patience::Wait(budget))
    }

    /// How long to wait between two attempts. Default: what the source of the [recipe](Recipe::delay) says, 50 ms for the
    /// default one. With zero each answer is followed by the next question.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.set(|config| config.delay = Some(delay))
    }

    /// Whether the one who has waited longest is next, as far as those who wait are queued. If not, a released lock is
    /// free for a moment, and whoever comes first has it, which need not be the one who was told: nobody waits for a process
    /// that is slow to wake up, but those who come back often have it more often, and those who were told in vain ask twice.
    /// All who share a lock should say the same. Default: `true`.
    #[must_use]
    pub fn fair(self, fair: bool) -> Self {
        self.set(|config| config.fair = fair)
    }

    /// How long each operation of the server may take, connecting included. Default: 250 ms; at least 1 ms.
    #[must_use]
    pub fn op_timeout(self, most: Duration) -> Self {
        self.set(|config| config.op_timeout = most.max(Duration::from_millis(1)))
    }

    /// For how long [`keep_alive`](LockGuard::keep_alive) keeps a lock, counted from its acquisition, so that a holder
    /// that hangs does not hold it for ever. Default: 60 s.
    #[must_use]
    pub fn max_hold(self, most: Duration) -> Self {
        self.set(|config| config.max_hold = most)
    }

    /// What its recipe promises.
    #[must_use]
    pub fn guarantees(&self) -> Guarantees {
        self.config.recipe.guarantees()
    }

    /// Tries once; `None` if somebody else holds it, or if it was granted, but its time was over before that was heard of.
    ///
    /// # Errors
    ///
    /// [`Store`](super::LockErrorKind::Store) if the server does not answer; [`Input`](super::LockErrorKind::Input) for a name that is
    /// empty, longer than 1 KiB or has control characters, and for a ttl that is less than a millisecond.
    ///
    /// Dropping the future leaves no lock: one that is granted all the same is released behind.
    pub async fn try_acquire(&self, name: &str) -> Result<Option<LockGuard>, LockError> {
        let wanted = Wanted::new(self, name)?;
        Ok(wanted.attempt().await?.ok())
    }

    /// Acquires it, with as many attempts as [`retries`](Self::retries) or as much time as [`wait`](Self::wait) say.
    ///
    /// # Errors
    ///
    /// [`Acquisition`](super::LockErrorKind::Acquisition) if somebody else held it all the time; otherwise as
    /// [`try_acquire`](Self::try_acquire). A server that does not answer is an error at once, but not to those who wait
    /// already: they try again until their time is over.
    ///
    /// Dropping the future leaves neither a lock nor a place in the queue.
    pub async fn acquire(&self, name: &str) -> Result<LockGuard, LockError> {
        Wanted::new(self, name)?.acquire().await
    }

    /// Waits until nobody holds it, this process included: looks every [`delay`](Self::delay), as often as
    /// [`retries`](Self::retries) or as long as [`wait`](Self::wait) say. It acquires nothing, so by then somebody may have
    /// it again.
    ///
    /// # Errors
    ///
    /// [`Held`](super::LockErrorKind::Held) if it was held all the time; otherwise as [`try_acquire`](Self::try_acquire).
    ///
    /// Dropping the future leaves nothing behind.
    pub async fn check(&self, name: &str) -> Result<(), LockError> {
        Wanted::new(self, name)?.check().await
    }

    /// Waits until everything is done that goes on behind: locks whose guard was dropped, acquisitions that were given up,
    /// of this handle and its clones. Before a process ends, so that others need not wait for a ttl. What takes longer than
    /// 2 s is given up, so this takes no longer; guards that exist are not waited for, and the handle can be used afterwards.
    ///
    /// Dropping the future stops the waiting, and nothing else.
    pub async fn shutdown(&self) {
        // For good: it takes on more all the same, and to open it again would be to keep others here who wait.
        self.hub.behind.close();
        self.hub.behind.wait().await;
    }

    fn set(mut self, change: impl FnOnce(&mut Config)) -> Self {
        change(&mut self.config);
        self
    }
}

const DEFAULT_NAMESPACE: &str = "lock";
