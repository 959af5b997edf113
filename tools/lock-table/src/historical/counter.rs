//! For readers of "Redis as a mutex service" (seed 004): a lock that counts with `INCR`. Prefer [`Lock`](stampede_guard::Lock).
//!
//! A client whose `INCR` returns 1 holds the lock. Every other client, and the holder on release, sends `DECR`.

use crate::guarantees::{Guarantees, LabRecipe, all_except};
use redis::Value;
use stampede_guard::{
    lock::{
        LeaseStatus, Recipe,
        recipe::{Acquisition, Attempt, Busy, HeldState, LockFuture, held_if},
    },
    store::StoreError,
};
use std::{sync::Arc, time::Duration};

/// Historical: a counter that is 1 while the lock is held. Prefer [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: the variant that "Redis as a mutex service" (seed 004) mentions last.
///
/// Known failure: the count drifts. A holder that crashes, a contender that crashes between its two commands, and a
/// lost reply each leave the count one too high. After that, no client gets 1 again. An expiry would make it worse,
/// because the `DECR` of a late holder would then take the lock from its successor. Under contention, the increments of
/// losing contenders make a free lock look held.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter;

impl Recipe for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    /// Returns the interval of the spinlock in the same post.
    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(100)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let count = Count { name: acquisition.name("counter"), acquisition };
        Box::pin(async move {
            if send(&count.acquisition, "INCR", &count.name).await? == 1 {
                return Ok(Attempt::acquired(count, Duration::MAX));
            }
            send(&count.acquisition, "DECR", &count.name).await?;
            Ok(Attempt::Busy(Busy::default()))
        })
    }
}

impl LabRecipe for Counter {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| {
            guarantees.crash_frees = false;
            guarantees.owner_safe = false;
            guarantees.extendable = false;
            guarantees.fenceable = false;
            guarantees.replay_safe = false;
        })
    }
}

#[derive(Debug)]
struct Count {
    acquisition: Arc<Acquisition>,
    name: String,
}

impl HeldState for Count {
    fn release(&self) -> LockFuture<LeaseStatus> {
        let (acquisition, name) = (self.acquisition.clone(), self.name.clone());
        // A negative count means that the counter was reset after the acquisition.
        Box::pin(async move { Ok(held_if(send(&acquisition, "DECR", &name).await? >= 0)) })
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        let (acquisition, name) = (self.acquisition.clone(), self.name.clone());
        Box::pin(async move { Ok(held_if(send(&acquisition, "GET", &name).await? > 0)) })
    }
}

/// Sends the command and returns the count afterwards: 0 if the key does not exist.
async fn send(acquisition: &Acquisition, command: &str, name: &str) -> Result<i64, StoreError> {
    match acquisition.client.send(redis::cmd(command).arg(name)).await? {
        Value::Int(count) => Ok(count),
        Value::BulkString(digits) => Ok(std::str::from_utf8(&digits).ok().and_then(|d| d.parse().ok()).unwrap_or(0)),
        _ => Ok(0),
    }
}
