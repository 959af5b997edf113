//! For readers of "Redis as a mutex service" (seed 004): a set of held locks. Prefer [`Lock`](stampede_guard::Lock).
//!
//! `SADD` adds a lock to the set of all held locks, `SREM` removes it.

mod member;

use crate::guarantees::{Guarantees, LabRecipe, all_except};
use member::{SetMember, SetMemberWithExpiry};
use redis::Value;
use stampede_guard::lock::{
    Recipe,
    recipe::{Acquisition, Attempt, Busy, LockFuture, millis, number, unexpected},
};
use std::{sync::Arc, time::Duration};

/// Historical: a set with the names of all held locks. Prefer [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: "Redis as a mutex service" (seed 004), which spins every 100 ms.
///
/// Known failure: a member has no expiry. A holder that crashes blocks all other clients forever. A lost reply blocks
/// all clients, including the holder. [`with_expiry`](SetMembership::with_expiry) adds a companion key with an expiry
/// and a token: the companion is then the lock, and the set is a list of held locks. In both variants all locks share
/// one set, which in a cluster is one slot. Deleting the set frees all locks without expiry.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMembership {
    expires: bool,
}

impl SetMembership {
    /// Creates the recipe with a companion key for each member. The companion has the ttl and the token, so that a
    /// crash frees the lock, and only its holder can release it.
    #[must_use]
    pub fn with_expiry() -> Self {
        Self { expires: true }
    }
}

impl Recipe for SetMembership {
    fn name(&self) -> &'static str {
        if self.expires { "set-membership+expiry" } else { "set-membership" }
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(100)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let (member, expires) = (SetMember::of(acquisition.clone()), self.expires);
        Box::pin(async move {
            if !expires {
                return match number(&acquisition.client.send(&member.cmd("SADD")).await?)? {
                    1 => Ok(Attempt::acquired(member, Duration::MAX)),
                    _ => Ok(Attempt::Busy(Busy::default())),
                };
            }
            let mut set = redis::cmd("SET");
            set.arg(&member.companion).arg(acquisition.token.as_bytes()).arg("NX");
            set.arg("PX").arg(millis(acquisition.ttl));
            let answer = acquisition.client.send_all(&super::transaction([member.cmd("SADD"), set])).await?;
            let Value::Array(parts) = &answer else { return Err(unexpected(&answer)) };
            // Only the companion decides, because a holder that crashed leaves a member without a companion.
            match parts[..] {
                [_, Value::Okay] => Ok(Attempt::acquired(SetMemberWithExpiry(member), acquisition.ttl)),
                [_, Value::Nil] => Ok(Attempt::Busy(Busy::default())),
                _ => Err(unexpected(&answer)),
            }
        })
    }
}

impl LabRecipe for SetMembership {
    fn guarantees(&self) -> Guarantees {
        let companion = self.expires;
        all_except(|guarantees| {
            guarantees.crash_frees = companion;
            guarantees.owner_safe = companion;
            guarantees.extendable = companion;
            guarantees.fenceable = companion;
            guarantees.replay_safe = false;
            guarantees.one_slot = false;
        })
    }
}
