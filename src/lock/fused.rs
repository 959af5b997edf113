//! The lease of the guard as a lock: token and stamp, granted, handed over and released by scripts.

use super::{
    Guarantees, Recipe,
    queue::Queue,
    recipe::{Attempt, Claim, Doing, Place, Sealed},
};
use std::sync::Arc;

/// A lease with a fencing token, handed over to who has waited longest.
///
/// Origin: this project. The stamp is the server's time at the grant, which grows from grant to grant: a fencing token
/// for whatever the holder writes to.
///
/// Known failure: a failover before the lock was replicated gives it to a second holder; and if the server's clock is set
/// back, fencing tokens stop growing until it has caught up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Fused;

impl Sealed for Fused {}

impl Recipe for Fused {
    fn name(&self) -> &'static str {
        "fused"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees::ALL
    }

    fn queue(&self) -> Option<Queue> {
        Some(QUEUE)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        QUEUE.acquire(claim, Place::None)
    }
}

const QUEUE: Queue = Queue { name: "fused", stamped: true };
