//! `EXISTS`, and if it does not, `SETEX`, in one script; compare-and-delete in another.

use super::{
    Guarantees, Recipe,
    owned::Owned,
    recipe::{Attempt, Busy, Claim, Doing, Sealed},
};
use crate::wire::{Script, millis, unexpected};
use redis::Value;
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// The lock of Redis in Action, in Lua.
///
/// Origin: Redis in Action, listings 11.5 and 11.6 (seed 002), which try again after 1 ms.
///
/// Known failure: a holder whose reply was lost takes its own lock for somebody else's until it expires, and every
/// contender asks a thousand times a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExistsSetex;

impl Sealed for ExistsSetex {}

impl Recipe for ExistsSetex {
    fn name(&self) -> &'static str {
        "exists-setex"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { replay_safe: false, ..Guarantees::ALL }
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(1)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        Box::pin(async move {
            let name = claim.name("exists-setex");
            let mut call = ACQUIRE.call(&[&name]);
            call.arg(millis(claim.ttl)).arg(claim.token.as_bytes());
            let ttl = claim.ttl;
            match claim.hub.run(call).await? {
                Value::Okay => Ok(Attempt::acquired(Owned::new(claim, name), ttl)),
                Value::Nil => Ok(Attempt::Busy(Busy::default())),
                other => Err(unexpected(&other)),
            }
        })
    }
}

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("exists_setex/acquire.lua")));
