//! For readers of the `SETNX` page (seed 003): a GETSET lock with a timestamp as value. Prefer [`Lock`](stampede_guard::Lock).
//!
//! `SETNX` stores the time at which the lock ends, by the holder's clock. `GETSET` takes over an expired lock.

mod timestamp_lock;
mod wall_clock;

use crate::guarantees::{Guarantees, LabRecipe, all_except};
use redis::Value;
use stampede_guard::lock::{
    Recipe,
    recipe::{Acquisition, Attempt, Busy, LockFuture, number},
};
use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use timestamp_lock::TimestampLock;
use wall_clock::{WallClock, millis};

/// Historical: a lock whose value is its expiry timestamp. Use it to share locks with an old client; otherwise prefer
/// [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: the page of `SETNX` (seed 003) and the first recipe of the post on locking with node.js (seed 000), which
/// spins every 500 ms.
///
/// Known failure: it compares the clocks of hosts. A host whose clock is 5 s fast takes over a lock with 5 s left, and
/// then two clients hold it. A host with a slow clock waits for a lock that has expired. A timestamp does not identify
/// the holder, and contenders that lose the race overwrite it with `GETSET`. A release therefore deletes the key,
/// regardless of its holder.
#[derive(Clone)]
pub struct GetSet {
    clock: WallClock,
}

impl GetSet {
    /// Creates the recipe with the clock of this host.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(|| SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// Creates the recipe with the given clock, which returns the time since 1970: shows the effect of clocks that
    /// differ.
    #[must_use]
    pub fn with_clock(now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self { clock: Arc::new(now) }
    }
}

impl Default for GetSet {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for GetSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GetSet")
    }
}

impl Recipe for GetSet {
    fn name(&self) -> &'static str {
        "getset"
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(500)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let (name, clock) = (acquisition.name("getset"), self.clock.clone());
        Box::pin(async move {
            let ends = || millis(clock().saturating_add(acquisition.ttl));
            let mut until = ends();
            if acquisition.client.send(redis::cmd("SETNX").arg(&name).arg(until)).await? == Value::Int(0) {
                let Some(current) = time(&acquisition.client.send(redis::cmd("GET").arg(&name)).await?) else {
                    return Ok(Attempt::Busy(Busy::default())); // released between `SETNX` and `GET`
                };
                let left = current.saturating_sub(millis(clock()));
                if left > 0 {
                    return Ok(Attempt::Busy(Busy { remaining: Some(Duration::from_millis(left)), ..Busy::default() }));
                }
                until = ends();
                let before = acquisition.client.send(redis::cmd("GETSET").arg(&name).arg(until)).await?;
                // Nil: the holder released the lock after `GET`, and no other client has taken it since.
                if before != Value::Nil && time(&before) != Some(current) {
                    return Ok(Attempt::Busy(Busy::default())); // lost the race; this `GETSET` overwrote the time
                }
            }
            let ttl = acquisition.ttl;
            Ok(Attempt::acquired(TimestampLock { acquisition, name, clock, until }, ttl))
        })
    }
}

impl LabRecipe for GetSet {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| {
            guarantees.owner_safe = false;
            guarantees.extendable = false;
            guarantees.fenceable = false;
            guarantees.replay_safe = false;
            guarantees.clock_free = false;
        })
    }
}

fn time(value: &Value) -> Option<u64> {
    number(value).ok()
}
