//! The recipes with a queue: [`SetPx`], the default, and [`FencedLock`].
//!
//! The queue of waiters is a sorted set in Redis: first come, first served. The script that releases the lock also hands
//! it to the first waiter and notifies that waiter by message. Waiters do not spin, and a later client cannot acquire
//! the lock in between.

use super::{
    attempt::{
        Acquisition, Attempt, Busy, HeldState, LockFuture, held_if, release_with_retry, retry_once_if_disconnected,
    },
    client::{QUEUE_ACQUIRE, QUEUE_EXTEND, QUEUE_RELEASE, Registration},
    recipe::{Queue, Recipe},
};
use crate::{
    redis::connection::{
        script::{Script, ScriptCall, millis, number, unexpected},
        subscriber::CHANNEL,
    },
    store::{error::StoreError, lease::LeaseStatus, token::Token},
};
use redis::Value;
use std::{sync::Arc, time::Duration};

/// `SET NX PX`, released by compare-and-delete: the default recipe of [`Lock`](super::Lock).
///
/// Use it for work that must not run twice at once, unless you need the fencing token of
/// [`FencedLock`].
///
/// Origin: the fourth recipe of the post on locking with node.js (seed 000), redislock (seed 001), and the
/// recommendation of the page of `SETNX` (seed 003). The seeds spin, every 500 ms and every 50 ms. Here a waiter with a
/// [wait timeout](super::Lock::wait) is queued and notified.
///
/// Known failure: a failover before the lock was replicated, or a pause of the holder for longer than the ttl, grants
/// the lock to a second holder. The recipe can prevent neither. If that would do harm, let the resource compare the
/// token.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetPx;

impl Recipe for SetPx {
    fn name(&self) -> &'static str {
        "SetPx"
    }

    fn queue(&self) -> Option<Queue> {
        Some(SET_PX)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        Box::pin(async move {
            let Acquisition { client, token, ttl, .. } = &*acquisition;
            let held = SET_PX.held(acquisition.clone(), 0);
            let mut cmd = redis::cmd("SET");
            cmd.arg(acquisition.name(SET_PX.name)).arg(token.as_bytes()).arg("NX").arg("PX").arg(millis(*ttl));
            let (reply, is_repeated) = match client.send(&cmd).await {
                Err(error) if error.is_disconnected() => (client.send(&cmd).await?, true),
                reply => (reply?, false),
            };
            let is_held = match reply {
                Value::Okay => true,
                // The first command, whose reply was lost, may have set the key.
                Value::Nil => is_repeated && held.check().await? == LeaseStatus::Held,
                other => return Err(unexpected(&other)),
            };
            Ok(if is_held { Attempt::Acquired { held, valid: *ttl } } else { Attempt::Busy(Busy::default()) })
        })
    }
}

/// A lock with a fencing token, handed over to the waiter that has waited longest.
///
/// Use it if the resource that the holder writes to can compare a number, or if many clients wait for the same lock.
///
/// Origin: this project. The stamp is the server's time at the grant. It grows from grant to grant, so it serves as a
/// fencing token.
///
/// Known failure: a failover before the lock was replicated grants it to a second holder. If the server's clock is set
/// back, fencing tokens stop growing until the clock has caught up.
#[derive(Clone, Copy, Debug, Default)]
pub struct FencedLock;

impl Recipe for FencedLock {
    fn name(&self) -> &'static str {
        "FencedLock"
    }

    fn queue(&self) -> Option<Queue> {
        Some(FENCED)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        FENCED.acquire(acquisition, Registration::None)
    }
}

impl Queue {
    fn call(self, script: &Script, acquisition: &Acquisition) -> ScriptCall {
        let name = acquisition.name(self.name);
        let mut call = script.call(&[&name, &[&name, ":queue"].concat(), &[&name, ":heard"].concat()]);
        call.arg(acquisition.token.as_bytes()).arg(if self.has_fencing_token { "1" } else { "0" }).arg(CHANNEL);
        call
    }

    /// Acquires the lock, or joins the queue according to `registration`. A queued acquisition keeps its position.
    pub(super) fn acquire(self, acquisition: Arc<Acquisition>, registration: Registration) -> LockFuture<Attempt> {
        let registration = match registration {
            Registration::None => "",
            Registration::Notified => "w",
            Registration::Polling => "p",
        };
        Box::pin(async move {
            let send = || {
                let mut call = self.call(&QUEUE_ACQUIRE, &acquisition);
                call.arg(millis(acquisition.ttl)).arg(registration);
                acquisition.client.run(call)
            };
            // Sending again is safe: the script recognises the token of the holder and returns the remaining time.
            let answer = retry_once_if_disconnected(send(), send).await?;
            let Value::Array(parts) = &answer else { return Err(unexpected(&answer)) };
            let [granted, pttl, stamp] = &parts[..] else { return Err(unexpected(&answer)) };
            // A negative reply means that the key has no expiry or no longer exists.
            let remaining = number(pttl).ok().map(Duration::from_millis);
            let granted = number(granted)?;
            if granted != 1 {
                return Ok(Attempt::Busy(Busy { remaining, now: Some(number(stamp)?), is_notified: granted == 2 }));
            }
            let stamp = if self.has_fencing_token { number(stamp)? } else { 0 };
            Ok(Attempt::Acquired { held: self.held(acquisition, stamp), valid: remaining.unwrap_or_default() })
        })
    }

    /// Returns the lock that the acquisition holds since `stamp`.
    pub(super) fn held(self, acquisition: Arc<Acquisition>, stamp: u64) -> Arc<dyn HeldState> {
        Arc::new(QueueLock { queue: self, acquisition, stamp })
    }

    /// Returns the holder of the lock.
    pub(super) async fn holder(self, acquisition: Arc<Acquisition>) -> Result<Option<Token>, StoreError> {
        match acquisition.client.send(redis::cmd("GET").arg(acquisition.name(self.name))).await? {
            Value::BulkString(value) => Ok(value.first_chunk().copied().map(Token::from_bytes)),
            Value::Nil => Ok(None),
            other => Err(unexpected(&other)),
        }
    }

    /// Releases the lock if the acquisition holds it, and removes the acquisition from the queue.
    pub(super) fn leave(self, acquisition: &Arc<Acquisition>) -> LockFuture<LeaseStatus> {
        self.release(acquisition, &millis(acquisition.ttl).to_string())
    }

    /// Releases the lock if the acquisition holds it, handing it to the next waiter. With the `ttl` of a waiter, the
    /// acquisition also leaves the queue.
    fn release(self, acquisition: &Arc<Acquisition>, ttl: &str) -> LockFuture<LeaseStatus> {
        let release = || {
            let mut call = self.call(&QUEUE_RELEASE, acquisition);
            call.arg(ttl);
            acquisition.clone().run_script(call)
        };
        release_with_retry(release(), release())
    }
}

/// A held lock with a queue: the value of its key begins with the token of the acquisition.
#[derive(Debug)]
struct QueueLock {
    queue: Queue,
    acquisition: Arc<Acquisition>,
    stamp: u64,
}

impl HeldState for QueueLock {
    fn release(&self) -> LockFuture<LeaseStatus> {
        self.queue.release(&self.acquisition, "")
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        let mut call = QUEUE_EXTEND.call(&[self.acquisition.name(self.queue.name)]);
        call.arg(self.acquisition.token.as_bytes()).arg(millis(ttl));
        self.acquisition.clone().run_script(call)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        let (holder, token) = (self.queue.holder(self.acquisition.clone()), self.acquisition.token);
        Box::pin(async move { Ok(held_if(holder.await? == Some(token))) })
    }

    fn fencing_token(&self) -> Option<u64> {
        self.queue.has_fencing_token.then_some(self.stamp)
    }
}

const SET_PX: Queue = Queue { name: "set-px", has_fencing_token: false };
const FENCED: Queue = Queue { name: "fused", has_fencing_token: true };
