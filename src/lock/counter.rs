//! `INCR`: who gets 1 holds the lock; all others, and the holder when it is done, `DECR`.

use super::{
    Guarantees, Recipe,
    recipe::{Attempt, Busy, Claim, Doing, Held, Sealed, held_if},
};
use crate::lease::Hold;
use redis::Value;
use std::{sync::Arc, time::Duration};

/// A counter that is 1 while the lock is held, unless something went wrong.
///
/// Origin: the afterthought of "Redis as a mutex service" (seed 004).
///
/// Known failure: the count drifts. A holder that crashes, a contender that crashes between its two commands, a reply that
/// is lost: each leaves the count one too high, and nobody ever gets 1 again. An expiry would make it worse, since the
/// `DECR` of a late holder then takes the lock from its successor. And under contention the losers' own counts keep a free
/// lock from being seen as free.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counter;

impl Sealed for Counter {}

impl Recipe for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            crash_frees: false,
            owner_safe: false,
            extendable: false,
            fenceable: false,
            replay_safe: false,
            ..Guarantees::ALL
        }
    }

    /// As the spinlock of the same post.
    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(100)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let count = Count { name: claim.name("counter"), claim };
        Box::pin(async move {
            if tell(&count.claim, "INCR", &count.name).await? == 1 {
                return Ok(Attempt::acquired(count, Duration::MAX));
            }
            tell(&count.claim, "DECR", &count.name).await?;
            Ok(Attempt::Busy(Busy::default()))
        })
    }

    fn look(&self, claim: Arc<Claim>) -> Doing<Hold> {
        Count { name: claim.name("counter"), claim }.check()
    }
}

struct Count {
    claim: Arc<Claim>,
    name: String,
}

impl Held for Count {
    fn release(&self) -> Doing<Hold> {
        let (claim, name) = (self.claim.clone(), self.name.clone());
        // Less than nobody: it was reset meanwhile.
        Box::pin(async move { Ok(held_if(tell(&claim, "DECR", &name).await? >= 0)) })
    }

    fn check(&self) -> Doing<Hold> {
        let (claim, name) = (self.claim.clone(), self.name.clone());
        Box::pin(async move { Ok(held_if(tell(&claim, "GET", &name).await? > 0)) })
    }
}

/// The count after that command; a key that is not there counts nobody.
async fn tell(claim: &Claim, command: &str, name: &str) -> Result<i64, crate::store::StoreError> {
    match claim.hub.send(redis::cmd(command).arg(name)).await? {
        Value::Int(count) => Ok(count),
        Value::BulkString(digits) => Ok(std::str::from_utf8(&digits).ok().and_then(|d| d.parse().ok()).unwrap_or(0)),
        _ => Ok(0),
    }
}
