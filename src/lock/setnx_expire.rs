//! `SETNX`, then `EXPIRE`; a contender that finds a lock without expiry gives it one. Released by `WATCH`.

use super::{
    Guarantees, Recipe,
    recipe::{Attempt, Busy, Claim, Doing, Sealed},
    watched::{Exclusive, Watched},
};
use crate::wire::millis;
use redis::{Cmd, Value};
use std::{sync::Arc, time::Duration};

/// The first lock of Redis in Action.
///
/// Origin: Redis in Action, listing 11.4 (seed 002), the lock before it was rewritten in Lua; tries again after 1 ms.
///
/// Known failure: the window between the two commands. A holder that crashes in it leaves a lock without expiry, which
/// stands until a contender comes and repairs it, and a whole ttl longer. A holder that is merely slow in it may find its
/// lock repaired, expired and taken, and believe that it has it.
#[derive(Clone, Debug)]
pub struct SetnxExpire {
    exclusive: Arc<Exclusive>,
}

impl SetnxExpire {
    /// With connections that this client makes, one for each release at a time, as [`Watch`](super::Watch) has them.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self { exclusive: Exclusive::new(client) }
    }
}

impl Sealed for SetnxExpire {}

impl Recipe for SetnxExpire {
    fn name(&self) -> &'static str {
        "setnx-expire"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { replay_safe: false, multiplex_safe: false, ..Guarantees::ALL }
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(1)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let (exclusive, name) = (self.exclusive.clone(), claim.name("setnx-expire"));
        Box::pin(async move {
            if claim.hub.send(redis::cmd("SETNX").arg(&name).arg(claim.token.as_bytes())).await? == Value::Int(1) {
                claim.hub.send(&expire(&claim, &name)).await?;
                let ttl = claim.ttl;
                return Ok(Attempt::acquired(Watched { exclusive, claim, name }, ttl));
            }
            let remaining = match claim.hub.send(redis::cmd("PTTL").arg(&name)).await? {
                Value::Int(-1) => {
                    claim.hub.send(&expire(&claim, &name)).await?;
                    Some(claim.ttl)
                }
                Value::Int(left) => u64::try_from(left).ok().map(Duration::from_millis),
                _ => None,
            };
            Ok(Attempt::Busy(Busy { remaining, now: None }))
        })
    }
}

fn expire(claim: &Claim, name: &str) -> Cmd {
    let mut cmd = redis::cmd("PEXPIRE");
    cmd.arg(name).arg(millis(claim.ttl));
    cmd
}
