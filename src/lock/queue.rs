//! The queue of waiters for a lock, first come, first served: a sorted set in Redis.
//!
//! The script that releases the lock also hands it to the first waiter and notifies that waiter by message. Waiters do
//! not spin, and a later client cannot acquire the lock in between.

use super::{
    attempt::{Acquisition, Attempt, Busy, HeldState, LockFuture, Registration, retry_once_if_disconnected},
    scripts, token_lock,
};
use crate::{
    redis::connection::{
        script::{Script, ScriptCall, millis, number, unexpected},
        subscriber::CHANNEL,
    },
    store::{error::StoreError, lease::LeaseStatus},
};
use redis::Value;
use std::{sync::Arc, time::Duration};

/// The kind of lock that has a queue.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    /// The name of the recipe, part of the lock's name in Redis.
    pub(crate) name: &'static str,
    /// Whether the server's time at the grant follows the token in the lock's value. It serves as the fencing token.
    pub(crate) has_fencing_token: bool,
}

impl Queue {
    pub(crate) fn lock(self, acquisition: &Acquisition) -> String {
        acquisition.name(self.name)
    }

    fn call(self, script: &Script, acquisition: &Acquisition) -> ScriptCall {
        let name = self.lock(acquisition);
        let mut call = script.call(&[&name, &[&name, ":queue"].concat(), &[&name, ":heard"].concat()]);
        call.arg(acquisition.token.as_bytes())
            .arg(flag(self.has_fencing_token))
            .arg(flag(acquisition.fair))
            .arg(CHANNEL);
        call
    }

    /// Acquires the lock, or joins the queue according to `registration`. A queued acquisition keeps its position.
    pub(crate) fn acquire(self, acquisition: Arc<Acquisition>, registration: Registration) -> LockFuture<Attempt> {
        // Sending again is safe: the script recognises the token of the holder and returns the remaining time.
        let again = move |acquisition, before| async move {
            Ok(self.send_acquire(acquisition, registration).await?.begun_earlier(before))
        };
        Box::pin(retry_once_if_disconnected(self.send_acquire(acquisition.clone(), registration), move |before| {
            again(acquisition, before)
        }))
    }

    async fn send_acquire(
        self,
        acquisition: Arc<Acquisition>,
        registration: Registration,
    ) -> Result<Attempt, StoreError> {
        let mut call = self.call(&scripts::QUEUE_ACQUIRE, &acquisition);
        call.arg(millis(acquisition.ttl)).arg(registration_flag(registration));
        let answer = acquisition.client.run(call).await?;
        let Value::Array(parts) = &answer else { return Err(unexpected(&answer)) };
        let [granted, pttl, stamp] = &parts[..] else { return Err(unexpected(&answer)) };
        // A negative reply means that the key has no expiry or no longer exists.
        let remaining = number(pttl).ok().map(Duration::from_millis);
        let granted = number(granted)?;
        if granted != 1 {
            return Ok(Attempt::Busy(Busy { remaining, now: Some(number(stamp)?), is_notified: granted == 2 }));
        }
        let stamp = if self.has_fencing_token { Some(number(stamp)?) } else { None };
        let valid = remaining.unwrap_or_default();
        Ok(Attempt::acquired(QueueLock { queue: self, acquisition, stamp }, valid))
    }

    /// Reports whether a waiter starts with the script. Otherwise it tries a cheaper command first (`SET NX PX`).
    pub(crate) fn begins_with_its_script(self) -> bool {
        self.has_fencing_token
    }

    /// Returns the lock that a message has handed to the acquisition.
    pub(crate) fn handed_over(self, acquisition: Arc<Acquisition>, stamp: u64) -> Arc<dyn HeldState> {
        Arc::new(QueueLock { queue: self, acquisition, stamp: self.has_fencing_token.then_some(stamp) })
    }

    /// Releases the lock if the acquisition holds it, and removes the acquisition from the queue.
    pub(crate) fn leave(self, acquisition: Arc<Acquisition>) -> LockFuture<LeaseStatus> {
        let member = [acquisition.token.as_bytes(), millis(acquisition.ttl).as_bytes()].concat();
        self.release(acquisition, &member)
    }

    /// Releases the lock if the acquisition holds it, handing it to the next waiter. Removes `member` from the queue.
    fn release(self, acquisition: Arc<Acquisition>, member: &[u8]) -> LockFuture<LeaseStatus> {
        let mut call = self.call(&scripts::QUEUE_RELEASE, &acquisition);
        call.arg(member);
        acquisition.run_script(call)
    }
}

/// A held lock with a queue.
pub(crate) struct QueueLock {
    queue: Queue,
    acquisition: Arc<Acquisition>,
    stamp: Option<u64>,
}

impl QueueLock {
    pub(crate) fn new(queue: Queue, acquisition: Arc<Acquisition>) -> Self {
        Self { queue, acquisition, stamp: None }
    }
}

impl HeldState for QueueLock {
    fn release(&self) -> LockFuture<LeaseStatus> {
        self.queue.release(self.acquisition.clone(), b"")
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        token_lock::extend(self.acquisition.clone(), &self.queue.lock(&self.acquisition), ttl)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        token_lock::check_token(self.acquisition.clone(), &self.queue.lock(&self.acquisition))
    }

    fn fencing_token(&self) -> Option<u64> {
        self.stamp
    }
}

fn flag(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

fn registration_flag(registration: Registration) -> &'static str {
    match registration {
        Registration::None => "",
        Registration::Notified => "w",
        Registration::Polling => "p",
    }
}
