//! Acquiring a lock: one attempt, polling, or waiting in the queue.

use super::{
    attempt::{Acquisition, Attempt, Busy, check_ttl, with_timeout},
    client::{Notification, Registration},
    error::{LockError, LockErrorKind},
    guard::LockGuard,
    handle::Lock,
    recipe::Queue,
};
use crate::{
    clock::{self, Timestamp},
    key::{CacheKey, Key},
    store::{error::StoreError, token::Token},
    sync::detach::{DetachOnDrop, detach},
    telemetry,
};
use std::{sync::Arc, time::Duration};
use tokio::time::{sleep, timeout};

impl Lock {
    /// Tries once to acquire the lock. Returns `None` if another client holds it, or if the grant had expired before
    /// its reply arrived.
    ///
    /// Cancel safe: a lock that is granted after the future was dropped is released in the background.
    ///
    /// # Errors
    ///
    /// - [`Store`](super::LockErrorKind::Store) if the server does not reply or refuses the command.
    /// - [`Input`](super::LockErrorKind::Input) if the name is empty, longer than 1 KiB or contains control characters,
    ///   or if the ttl is less than 1 ms.
    pub async fn try_acquire(&self, name: &str) -> Result<Option<LockGuard>, LockError> {
        let _timed = telemetry::lock_acquiring(&self.meter);
        Acquire::new(self, name)?.first_attempt().await
    }

    /// Acquires the lock: at once, or within the time of [`wait`](Self::wait).
    ///
    /// Cancel safe: a dropped future leaves neither a lock nor a waiter in the queue.
    ///
    /// # Errors
    ///
    /// [`Acquisition`](super::LockErrorKind::Acquisition) if other clients held the lock until the limit; otherwise as
    /// [`try_acquire`](Self::try_acquire). If the server fails during the first attempt, the error is returned at once.
    /// A caller that already waits retries until the limit.
    pub async fn acquire(&self, name: &str) -> Result<LockGuard, LockError> {
        let _timed = telemetry::lock_acquiring(&self.meter);
        Acquire::new(self, name)?.acquire().await
    }

    /// Returns the [token](LockGuard::token) of the holder, in whichever process it is. `None` if the lock is free.
    ///
    /// For operators: the lock may have another holder when the answer arrives. In the process of the holder the list of
    /// [`held_locks`](super::held_locks) and the event "lock acquired" have the token too. Cancel safe.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let lock = stampede_guard::Lock::new(server.client());
    /// use stampede_guard::lock::held_locks;
    ///
    /// let guard = lock.acquire("nightly-report").await?;
    /// let holder = lock.holder("nightly-report").await?;
    /// assert_eq!(holder, Some(guard.token()));
    /// let is_in_this_process = held_locks().iter().any(|held| Some(held.token) == holder);
    /// assert!(is_in_this_process);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`try_acquire`](Self::try_acquire). Also [`Store`](super::LockErrorKind::Store) with a recipe of your own.
    pub async fn holder(&self, name: &str) -> Result<Option<Token>, LockError> {
        let acquire = Acquire::new(self, name)?;
        let unknown = |error| LockError::store(&acquire.name, "the server did not tell the holder", error);
        let queue = self.recipe.queue().ok_or_else(|| StoreError::refused("this recipe does not tell it"));
        let holder = queue.map_err(unknown)?.holder(acquire.acquisition());
        with_timeout(self.store_timeout, holder).await.map_err(unknown)
    }
}

/// An acquisition of one lock under the settings of its handle.
struct Acquire {
    lock: Lock,
    name: Arc<str>,
    key: CacheKey,
}

impl Acquire {
    /// Validates the name and the ttl. Nothing is sent if they are invalid.
    fn new(lock: &Lock, name: &str) -> Result<Self, LockError> {
        let key = CacheKey::new(lock.namespace.clone(), 0, Key::from(name));
        let name = check_name(name)?;
        let lock = Lock { ttl: check_ttl(&name, lock.ttl)?, ..lock.clone() };
        Ok(Self { lock, name, key })
    }

    /// Makes the first attempt, and counts a lock that is held.
    async fn first_attempt(&self) -> Result<Option<LockGuard>, LockError> {
        let guard = self.attempt().await?;
        if guard.is_none() {
            telemetry::lock_contended(&self.lock.meter, &self.name);
        }
        Ok(guard)
    }

    /// Makes one attempt. Returns `None` if another client holds the lock.
    ///
    /// If the future is dropped, the attempt continues in the background, and a granted lock is released. So is a lock
    /// whose grant has no reply, because [`PendingAcquisition`] is dropped.
    async fn attempt(&self) -> Result<Option<LockGuard>, LockError> {
        let (acquisition, sent) = (self.acquisition(), Timestamp::now());
        let (lock, name, token) = (self.lock.clone(), self.name.clone(), acquisition.token);
        let operation = async move {
            let mut pending = PendingAcquisition { queue: lock.recipe.queue(), acquisition: acquisition.clone() };
            let attempt = lock.recipe.attempt(acquisition).await?;
            pending.queue = None; // the outcome is known
            Ok(match attempt {
                Attempt::Acquired { held, valid } => Some(LockGuard::new(lock, name, token, held, sent, valid)),
                Attempt::Busy(_) => None,
            })
        };
        let operation = DetachOnDrop::new(&self.lock.client.background, Box::pin(operation));
        let guard = with_timeout(self.lock.store_timeout, operation).await.map_err(|error| self.unconfirmed(error))?;
        // If the reply arrived after the validity had ended, another client may hold the lock now.
        Ok(guard.filter(|guard| guard.remaining() != Some(Duration::ZERO)))
    }

    async fn acquire(&self) -> Result<LockGuard, LockError> {
        let queue = self.lock.recipe.queue().filter(|_| !self.lock.wait_timeout.is_zero());
        // `FencedLock` begins with the script of the queue, other recipes with a cheaper command (`SET NX PX`).
        let begins_in_queue = queue.is_some_and(|queue| queue.has_fencing_token);
        if !begins_in_queue && let Some(guard) = self.first_attempt().await? {
            return Ok(guard);
        }
        match queue {
            Some(queue) => self.wait_in_queue(queue, !begins_in_queue).await,
            None => self.poll_until_acquired().await,
        }
    }

    /// Retries until the wait timeout. The caller has made the first attempt.
    async fn poll_until_acquired(&self) -> Result<LockGuard, LockError> {
        let (until, mut failed) = (Timestamp::now().after(self.lock.wait_timeout), None);
        loop {
            let left = until.since(Timestamp::now());
            if left.is_zero() {
                return Err(failed.unwrap_or_else(|| self.busy()));
            }
            sleep(self.delay().min(left)).await;
            match self.attempt().await {
                Ok(Some(guard)) => return Ok(guard),
                Ok(None) => failed = None,
                Err(error) => failed = Some(error),
            }
        }
    }

    /// Waits in the queue. `has_replied` is set if the server replied to a first attempt that another client holds the
    /// lock.
    ///
    /// Cancel safe: the drop of [`PendingAcquisition`] leaves the queue, and releases a lock that was handed over in
    /// between.
    async fn wait_in_queue(&self, queue: Queue, has_replied: bool) -> Result<LockGuard, LockError> {
        let until = Timestamp::now().after(self.lock.wait_timeout);
        let acquisition = self.acquisition();
        let (token, ttl) = (acquisition.token, acquisition.ttl);
        // Before the first request, so that no message is missed.
        let mut handle = self.lock.client.register_waiter(token);
        let lock = acquisition.name("");
        let mut pending = PendingAcquisition { queue: Some(queue), acquisition: acquisition.clone() };
        // The last reply of the server, and the time at which its request was sent.
        let mut last_reply = has_replied.then(|| (Timestamp::now(), Busy::default()));
        loop {
            let registration = self.lock.client.registration(&lock).await;
            let (sent, mut failed) = (Timestamp::now(), None);
            let attempt = queue.acquire(acquisition.clone(), registration);
            match with_timeout(self.lock.store_timeout, attempt).await {
                Ok(Attempt::Acquired { held, valid }) if Timestamp::now() < sent.after(valid) => {
                    pending.queue = None;
                    return Ok(LockGuard::new(self.lock.clone(), self.name.clone(), token, held, sent, valid));
                }
                // The reply arrived after the validity had ended.
                Ok(Attempt::Acquired { .. }) => last_reply = Some((sent, Busy::default())),
                Ok(Attempt::Busy(busy)) => {
                    if last_reply.is_none() {
                        telemetry::lock_contended(&self.lock.meter, &self.name);
                    }
                    last_reply = Some((sent, busy));
                }
                Err(error) => failed = Some(self.unconfirmed(error)),
            }
            let left = until.since(Timestamp::now());
            // An error before the first reply ends the wait. A later one is retried until the timeout.
            let Some((requested, busy)) = last_reply.filter(|_| !left.is_zero()) else {
                return Err(failed.unwrap_or_else(|| self.busy()));
            };
            let pause = self.pause_in_queue(registration, busy).min(left);
            let notification = timeout(pause, handle.notified()).await;
            if let Ok(Notification::HandedOver { stamp }) = notification
                && let Some(from) = valid_from(stamp, requested, busy, Timestamp::now(), ttl)
            {
                pending.queue = None;
                let held = queue.held(acquisition, stamp);
                return Ok(LockGuard::new(self.lock.clone(), self.name.clone(), token, held, from, ttl));
            }
        }
    }

    /// Returns the pause before the next request, unless a message arrives earlier.
    fn pause_in_queue(&self, registration: Registration, last_reply: Busy) -> Duration {
        let pause = match (registration, last_reply) {
            (Registration::Notified, Busy { is_notified: true, remaining, .. }) => {
                remaining.map_or(MAX_POLL_INTERVAL, |remaining| remaining.saturating_add(jitter()))
            }
            _ => self.delay(),
        };
        pause.min(MAX_POLL_INTERVAL)
    }

    /// Returns the delay before the next attempt.
    fn delay(&self) -> Duration {
        self.lock.delay.unwrap_or_else(|| self.lock.recipe.delay(clock::random_unit()))
    }

    fn acquisition(&self) -> Arc<Acquisition> {
        let Lock { client, ttl, .. } = &self.lock;
        let (client, key, token) = (client.clone(), self.key.clone(), client.token());
        Arc::new(Acquisition { client, key, token, ttl: *ttl })
    }

    fn unconfirmed(&self, error: StoreError) -> LockError {
        LockError::store(&self.name, "the server did not confirm the acquisition", error)
    }

    fn busy(&self) -> LockError {
        let reason = match self.lock.wait_timeout {
            Duration::ZERO => "held by another client".to_owned(),
            waited => format!("held by other clients during the wait of {waited:?}"),
        };
        LockError::new(LockErrorKind::Acquisition, &self.name, reason)
    }
}

/// An acquisition that the server may have queued or granted. Dropping it leaves the queue and releases the lock.
struct PendingAcquisition {
    /// `None` if there is no queue, and once the outcome is known.
    queue: Option<Queue>,
    acquisition: Arc<Acquisition>,
}

impl Drop for PendingAcquisition {
    fn drop(&mut self) {
        let (Some(queue), acquisition) = (self.queue, self.acquisition.clone()) else { return };
        detach(&self.acquisition.client.background, async move {
            // After the loss of a connection, the next one may need a while. A replica may become a master.
            while queue.leave(&acquisition).await.is_err_and(|error| !error.is_misconfigured()) {
                sleep(LEAVE_PAUSE).await;
            }
        });
    }
}

/// Returns the start of the validity of a lock that the server handed over at `stamp`. `None` if the validity has ended,
/// or if the message is about an earlier hand-over. `busy` is the last reply of the server, to a request sent at `sent`.
fn valid_from(stamp: u64, sent: Timestamp, busy: Busy, received: Timestamp, ttl: Duration) -> Option<Timestamp> {
    let now = busy.now?;
    // The server read `now` after `sent`, so `sent + (stamp - now)` is not later than the hand-over.
    // The minimum with `received` covers a server clock that was set forward between the two readings.
    let from = sent.after(Duration::from_micros(stamp.saturating_sub(now))).min(received);
    // A stamp before `now` belongs to an earlier hand-over: the server has since replied that another client holds the
    // lock.
    (stamp >= now && received < from.after(ttl)).then_some(from)
}

/// Returns a random pause of 1 ms to 11 ms, so that the waiters of a crashed holder do not retry at the same time.
fn jitter() -> Duration {
    Duration::from_millis(1) + Duration::from_millis(10).mul_f64(clock::random_unit())
}

/// Returns the name, or an error if it is invalid. The error truncates a name that is too long.
fn check_name(name: &str) -> Result<Arc<str>, LockError> {
    let (shown, reason) = match name.len() {
        0 => (name.into(), "the lock needs a name"),
        1..=MAX_NAME if !name.chars().any(char::is_control) => return Ok(name.into()),
        1..=MAX_NAME => (name.into(), "a lock name must not contain control characters"),
        length => {
            let begin: String = name.chars().take(32).collect();
            (format!("{begin}.. ({length} bytes)").into(), "a lock name has 1,024 bytes at most")
        }
    };
    Err(LockError::new(LockErrorKind::Input, &shown, reason))
}

/// Maximum time between two requests of a waiter, and so the maximum delay after a lost message. `hand_over.lua` skips
/// a waiter that has sent no request for three times as long (`stale_us`).
const MAX_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Pause after a request to leave the queue that has failed. Short enough for some requests within the time of
/// background work, and long enough that many failed acquisitions do not flood a server that is down or refuses them.
const LEAVE_PAUSE: Duration = Duration::from_millis(500);
/// Maximum length of a lock name, in bytes.
const MAX_NAME: usize = 1024;
