//! `SETNX` of the time at which the lock ends, by the clock of the holder; `GETSET` to take an expired one over.

mod stamped;

use super::{
    Guarantees, Recipe,
    recipe::{Attempt, Busy, Claim, Doing, Sealed, held_if},
};
use crate::{clock, lease::Hold, wire::number};
use redis::Value;
use stamped::Stamped;
use std::{
    fmt,
    sync::Arc,
    time::{Duration, UNIX_EPOCH},
};

/// A time stamp for a lock, taken over when it has passed.
///
/// Origin: the page of `SETNX` (seed 003) and the first recipe of the post on locking with node.js (seed 000), which
/// spins every 500 ms.
///
/// Known failure: it compares the clocks of hosts. One that is 5 s ahead takes over a lock that has 5 s to go, and then
/// two hold it; one that is behind leaves a dead lock standing. A value that is only a time identifies nobody, and those
/// who come too late with `GETSET` overwrite it, so a release deletes what is there, whoever holds it.
#[derive(Clone)]
pub struct GetSet {
    clock: Clock,
}

type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

impl GetSet {
    /// By the clock of this host.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(|| clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default())
    }

    /// By that clock, which says how much time has passed since 1970: to see what happens when two disagree.
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

impl Sealed for GetSet {}

impl Recipe for GetSet {
    fn name(&self) -> &'static str {
        "getset"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            owner_safe: false,
            extendable: false,
            fenceable: false,
            replay_safe: false,
            clock_free: false,
            ..Guarantees::ALL
        }
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(500)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let (name, clock) = (claim.name("getset"), self.clock.clone());
        Box::pin(async move {
            let ends = || millis(clock().saturating_add(claim.ttl));
            let mut until = ends();
            if claim.hub.send(redis::cmd("SETNX").arg(&name).arg(until)).await? == Value::Int(0) {
                let Some(current) = time(&claim.hub.send(redis::cmd("GET").arg(&name)).await?) else {
                    return Ok(Attempt::Busy(Busy::default())); // released just now
                };
                let left = current.saturating_sub(millis(clock()));
                if left > 0 {
                    return Ok(Attempt::Busy(Busy { remaining: Some(Duration::from_millis(left)), now: None }));
                }
                until = ends();
                let before = claim.hub.send(redis::cmd("GETSET").arg(&name).arg(until)).await?;
                // Nil: its holder released it late, and nobody else was there.
                if before != Value::Nil && time(&before) != Some(current) {
                    return Ok(Attempt::Busy(Busy::default())); // somebody was faster; their time is overwritten by ours
                }
            }
            let ttl = claim.ttl;
            Ok(Attempt::acquired(Stamped { claim, name, clock, until }, ttl))
        })
    }

    fn look(&self, claim: Arc<Claim>) -> Doing<Hold> {
        let (name, clock) = (claim.name("getset"), self.clock.clone());
        Box::pin(async move {
            let until = time(&claim.hub.send(redis::cmd("GET").arg(&name)).await?);
            Ok(held_if(until.is_some_and(|until| until > millis(clock()))))
        })
    }
}

fn time(value: &Value) -> Option<u64> {
    number(value).ok()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
