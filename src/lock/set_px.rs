//! `SET name token NX PX ttl`, and compare-and-delete in a script.

use super::{
    Guarantees, Recipe,
    queue::{Queue, Queued},
    recipe::{Attempt, Busy, Claim, Doing, Place, Sealed, or_again},
};
use crate::wire::{millis, unexpected};
use redis::Value;
use std::sync::Arc;

/// `SET NX PX`, released by compare-and-delete. The default of [`Lock`](super::Lock).
///
/// Origin: the fourth recipe of the post on locking with node.js (seed 000), redislock (seed 001), and what the page of
/// `SETNX` recommends (seed 003). The seeds spin, every 500 ms and every 50 ms; here who waits for a
/// [budget](super::Lock::wait) is queued and woken.
///
/// Known failure: a failover before the lock was replicated gives it to a second holder, and so does a pause of the holder
/// for longer than the ttl. Nothing here can prevent either; compare the token where it matters.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetPx;

impl Sealed for SetPx {}

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

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let mut cmd = redis::cmd("SET");
        cmd.arg(QUEUE.lock(&claim)).arg(claim.token.as_bytes()).arg("NX").arg("PX").arg(millis(claim.ttl));
        let set = async move |claim: Arc<Claim>| match claim.hub.send(&cmd).await? {
            Value::Nil => Ok(Attempt::Busy(Busy::default())),
            Value::Okay => Ok(Attempt::acquired(Queued::new(QUEUE, claim.clone()), claim.ttl)),
            other => Err(unexpected(&other)),
        };
        // The script knows its token again.
        let again = |claim, before| async move { Ok(QUEUE.acquire(claim, Place::None).await?.begun_earlier(before)) };
        Box::pin(async move { or_again(set(claim.clone()), |before| again(claim, before)).await })
    }
}

const QUEUE: Queue = Queue { name: "set-px", stamped: false };
