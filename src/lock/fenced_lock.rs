//! Use it if the protected resource can compare a fencing token, or if many clients wait for the same lock.
//!
//! The lease of the guard as a lock: its value is a token and a stamp. Scripts grant it, hand it over and release it.

use super::{
    attempt::{Acquisition, Attempt, LockFuture, Registration},
    guarantees::Guarantees,
    queue::Queue,
    recipe::Recipe,
};
use std::sync::Arc;

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
        "fused"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn queue(&self) -> Option<Queue> {
        Some(QUEUE)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        QUEUE.acquire(acquisition, Registration::None)
    }
}

const QUEUE: Queue = Queue { name: "fused", has_fencing_token: true };
