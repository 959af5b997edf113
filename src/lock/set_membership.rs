//! `SADD` into one set of all locks that are held, `SREM` out of it.

mod member;

use super::{
    Guarantees, Recipe, owned,
    recipe::{Attempt, Busy, Claim, Doing, Held, Sealed},
};
use crate::{
    lease::Hold,
    wire::{millis, number, unexpected},
};
use member::{Accompanied, Member};
use redis::Value;
use std::{sync::Arc, time::Duration};

/// A set of the names of all locks that are held.
///
/// Origin: "Redis as a mutex service" (seed 004), which spins every 100 ms.
///
/// Known failure: a member has no expiry. A holder that crashes locks the others out for ever, and a reply that is lost
/// locks out everybody, the holder included. [`with_expiry`](SetMembership::with_expiry) adds a companion key that has one,
/// and a token: then the companion is the lock, and the set a list of what is held. Either way all locks share one key,
/// which in a cluster is one slot, and who deletes it frees them all.
#[derive(Clone, Copy, Debug, Default)]
pub struct SetMembership {
    expires: bool,
}

impl SetMembership {
    /// With a companion key for each member, which has the ttl and a token: a crash frees the lock, and only its owner
    /// releases it.
    #[must_use]
    pub fn with_expiry() -> Self {
        Self { expires: true }
    }
}

impl Sealed for SetMembership {}

impl Recipe for SetMembership {
    fn name(&self) -> &'static str {
        if self.expires { "set-membership+expiry" } else { "set-membership" }
    }

    fn guarantees(&self) -> Guarantees {
        let companion = self.expires;
        Guarantees {
            crash_frees: companion,
            owner_safe: companion,
            extendable: companion,
            fenceable: companion,
            replay_safe: false,
            one_slot: false,
            ..Guarantees::ALL
        }
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(100)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let (member, expires) = (Member::of(claim.clone()), self.expires);
        Box::pin(async move {
            if !expires {
                return match number(&claim.hub.send(&member.cmd("SADD")).await?)? {
                    1 => Ok(Attempt::acquired(member, Duration::MAX)),
                    _ => Ok(Attempt::Busy(Busy::default())),
                };
            }
            let mut both = redis::pipe();
            both.atomic().cmd("SADD").arg(&member.set).arg(&member.name);
            both.cmd("SET")
                .arg(&member.companion)
                .arg(claim.token.as_bytes())
                .arg("NX")
                .arg("PX")
                .arg(millis(claim.ttl));
            let answer = claim.hub.transact(&both).await?;
            let Value::Array(parts) = &answer else { return Err(unexpected(&answer)) };
            // The companion alone decides: a member without one was left by a holder that died.
            match parts[..] {
                [_, Value::Okay] => Ok(Attempt::acquired(Accompanied(member), claim.ttl)),
                [_, Value::Nil] => Ok(Attempt::Busy(Busy::default())),
                _ => Err(unexpected(&answer)),
            }
        })
    }

    fn look(&self, claim: Arc<Claim>) -> Doing<Hold> {
        let member = Member::of(claim);
        if self.expires { owned::look(member.claim.clone(), &member.companion) } else { member.check() }
    }
}
