//! Use it for work that must not run twice at once: the default recipe.
//!
//! `SET name token NX PX ttl`, and compare-and-delete in a script.

use super::{
    attempt::{Acquisition, Attempt, Busy, LockFuture, Registration, retry_once_if_disconnected},
    guarantees::Guarantees,
    queue::{Queue, QueueLock},
    recipe::Recipe,
};
use crate::redis::connection::script::{millis, unexpected};
use redis::Value;
use std::sync::Arc;

/// `SET NX PX`, released by compare-and-delete: the default recipe of [`Lock`](super::Lock).
///
/// Use it for work that must not run twice at once, unless you need the fencing token of
/// [`FencedLock`](crate::lock::FencedLock).
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
        "set-px"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn queue(&self) -> Option<Queue> {
        Some(QUEUE)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let mut cmd = redis::cmd("SET");
        cmd.arg(QUEUE.lock(&acquisition))
            .arg(acquisition.token.as_bytes())
            .arg("NX")
            .arg("PX")
            .arg(millis(acquisition.ttl));
        let set = async move |acquisition: Arc<Acquisition>| match acquisition.client.send(&cmd).await? {
            Value::Nil => Ok(Attempt::Busy(Busy::default())),
            Value::Okay => Ok(Attempt::acquired(QueueLock::new(QUEUE, acquisition.clone()), acquisition.ttl)),
            other => Err(unexpected(&other)),
        };
        // Sending again is safe: the script recognises the token of the holder.
        let again = |acquisition, before| async move {
            Ok(QUEUE.acquire(acquisition, Registration::None).await?.begun_earlier(before))
        };
        Box::pin(async move {
            retry_once_if_disconnected(set(acquisition.clone()), |before| again(acquisition, before)).await
        })
    }
}

const QUEUE: Queue = Queue { name: "set-px", has_fencing_token: false };
