//! Acquiring a lock: one attempt, polling, or waiting in the queue.

mod queued_waiter;

use super::{
    attempt::{Acquisition, Attempt, Busy, release_if_acquired},
    client::LockClient,
    config::{Config, WaitPolicy},
    error::{LockError, LockErrorKind},
    guard::{Grant, LockGuard},
    limits::{check_name, check_ttl, with_timeout},
};
use crate::{
    clock::{self, Timestamp},
    key::{CacheKey, Key},
    store::{error::StoreError, lease::LeaseStatus},
    sync::detach::{DetachOnDrop, detach},
};
use std::{sync::Arc, time::Duration};

/// An acquisition of one lock under the settings of its handle.
pub(super) struct Acquire<'a> {
    client: &'a Arc<LockClient>,
    config: &'a Config,
    name: Arc<str>,
    key: CacheKey,
}

impl<'a> Acquire<'a> {
    /// Validates the name and the ttl. Nothing is sent if they are invalid.
    pub(super) fn new(client: &'a Arc<LockClient>, config: &'a Config, name: &str) -> Result<Self, LockError> {
        let shown = check_name(name)?;
        check_ttl(&shown, config.ttl)?;
        let key = CacheKey::new(config.namespace.clone(), 0, Key::from(name));
        Ok(Self { client, config, name: shown, key })
    }

    /// Makes one attempt. The inner error means that another client holds the lock.
    ///
    /// If the future is dropped, the attempt continues in the background, and a granted lock is released.
    pub(super) async fn attempt(&self) -> Result<Result<LockGuard, Busy>, LockError> {
        let (acquisition, sent) = (self.acquisition(), Timestamp::now());
        let token = acquisition.token;
        let operation =
            DetachOnDrop::new(&self.client.background, self.config.recipe.attempt(acquisition), release_if_acquired);
        match with_timeout(self.config.store_timeout, operation).await {
            Ok(Attempt::Acquired { held, valid }) if Timestamp::now() < sent.after(valid) => {
                Ok(Ok(self.guard(Grant { token, held, from: sent, valid })))
            }
            // The reply arrived after the validity had ended, so another client may hold the lock now.
            Ok(Attempt::Acquired { held, .. }) => {
                detach(&self.client.background, async move { drop(held.release().await) });
                Ok(Err(Busy::default()))
            }
            Ok(Attempt::Busy(busy)) => Ok(Err(busy)),
            Err(error) => Err(self.unconfirmed(error)),
        }
    }

    pub(super) async fn acquire(&self) -> Result<LockGuard, LockError> {
        let (wait_policy, queue) = (self.config.wait_policy, self.config.recipe.queue());
        match (wait_policy, queue) {
            (WaitPolicy::Wait(budget), Some(queue)) if queue.begins_with_its_script() => {
                self.wait_in_queue(queue, budget, None).await
            }
            _ => match (self.attempt().await?, wait_policy, queue) {
                (Ok(guard), ..) => Ok(guard),
                (Err(busy), WaitPolicy::Wait(budget), Some(queue)) => {
                    self.wait_in_queue(queue, budget, Some(busy)).await
                }
                _ => self.poll_until_acquired().await,
            },
        }
    }

    pub(super) async fn wait_until_free(&self) -> Result<(), LockError> {
        let mut schedule = self.schedule();
        loop {
            let check = self.config.recipe.check_held(self.acquisition());
            match with_timeout(self.config.store_timeout, check).await {
                Ok(LeaseStatus::Lost) => return Ok(()),
                Ok(LeaseStatus::Held) => {}
                Err(error) => return Err(LockError::store(&self.name, "the server did not confirm its state", error)),
            }
            if !schedule.next().await {
                return Err(LockError::new(LockErrorKind::Held, &self.name, "still held"));
            }
        }
    }

    /// Retries until the limit. The caller has made the first attempt.
    async fn poll_until_acquired(&self) -> Result<LockGuard, LockError> {
        let (mut schedule, mut failed) = (self.schedule(), None);
        while schedule.next().await {
            match self.attempt().await {
                Ok(Ok(guard)) => return Ok(guard),
                Ok(Err(_)) => failed = None,
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.unwrap_or_else(|| self.busy()))
    }

    fn guard(&self, grant: Grant) -> LockGuard {
        LockGuard::new(self.client.clone(), self.config.clone(), self.name.clone(), grant)
    }

    fn acquisition(&self) -> Arc<Acquisition> {
        let (client, config) = (self.client.clone(), self.config);
        let (key, token) = (self.key.clone(), client.token());
        Arc::new(Acquisition { client, key, token, ttl: config.ttl, fair: config.fair })
    }

    fn unconfirmed(&self, error: StoreError) -> LockError {
        LockError::store(&self.name, "the server did not confirm the acquisition", error)
    }

    fn busy(&self) -> LockError {
        let reason = match self.config.wait_policy {
            WaitPolicy::Retries(0) => "held by another client".to_owned(),
            WaitPolicy::Retries(n) => format!("held by another client at {} attempts", n.saturating_add(1)),
            WaitPolicy::Wait(budget) => format!("held by other clients during the wait of {budget:?}"),
        };
        LockError::new(LockErrorKind::Acquisition, &self.name, reason)
    }

    /// Returns the delay before the next attempt.
    fn pause(&self) -> Duration {
        self.config.delay.unwrap_or_else(|| self.config.recipe.delay(clock::random_unit()))
    }

    fn schedule(&self) -> RetrySchedule<'_> {
        let remaining = match self.config.wait_policy {
            WaitPolicy::Retries(n) => Remaining::Retries(n),
            WaitPolicy::Wait(budget) => Remaining::Until(Timestamp::now().after(budget)),
        };
        RetrySchedule { acquire: self, remaining }
    }
}

/// The retry schedule: the pauses between attempts, up to a limit.
struct RetrySchedule<'a> {
    acquire: &'a Acquire<'a>,
    remaining: Remaining,
}

enum Remaining {
    Retries(u32),
    Until(Timestamp),
}

impl RetrySchedule<'_> {
    /// Waits until the next attempt. Returns `false` if the limit is reached.
    async fn next(&mut self) -> bool {
        let mut pause = self.acquire.pause();
        match &mut self.remaining {
            Remaining::Retries(0) => return false,
            Remaining::Retries(n) => *n -= 1,
            Remaining::Until(until) => match until.since(Timestamp::now()) {
                Duration::ZERO => return false,
                left => pause = pause.min(left),
            },
        }
        tokio::time::sleep(pause).await;
        true
    }
}
