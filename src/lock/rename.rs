//! `MULTI`, `SETEX` of a temporary key, `RENAMENX` of it to the lock, `EXEC`: expiry and "only if absent" in one step, from
//! a time when `SET` could not do both.

use super::{
    Guarantees, Recipe, owned,
    recipe::{Attempt, Busy, Claim, Doing, Held, Sealed, held_if},
};
use crate::{
    clock::Timestamp,
    lease::Hold,
    store::StoreError,
    wire::{millis, number, unexpected},
};
use redis::Value;
use std::{sync::Arc, time::Duration};

/// A temporary key with an expiry, renamed to the lock.
///
/// Origin: the second recipe of the post on locking with node.js (seed 000), which spins every 500 ms. There all contenders
/// share one temporary key; here each attempt has its own, and removes it in the same transaction.
///
/// Known failure: the release goes by the holder's own timer. A holder that is paused between looking at it and its `DEL`
/// deletes the lock of its successor. As in the post, it does not even try near the end (500 ms of 10 s), and lets the
/// lock expire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rename;

impl Sealed for Rename {}

impl Recipe for Rename {
    fn name(&self) -> &'static str {
        "rename"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { owner_safe: false, extendable: false, replay_safe: false, ..Guarantees::ALL }
    }

    fn delay(&self, _: f64) -> Duration {
        DELAY
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        Box::pin(async move {
            let (placed, name, ttl) = (Timestamp::now(), claim.name("rename"), claim.ttl);
            if place(&claim, &name).await? {
                return Ok(Attempt::acquired(Timed { claim, name, placed }, ttl));
            }
            Ok(Attempt::Busy(Busy::default()))
        })
    }
}

/// Whether the lock was put there. `SETEX` counts in milliseconds here.
pub(super) async fn place(claim: &Claim, name: &str) -> Result<bool, StoreError> {
    let temporary = [name.as_bytes(), b":tmp:", claim.token.as_bytes()].concat();
    let mut steps = redis::pipe();
    steps.atomic().cmd("PSETEX").arg(&temporary).arg(millis(claim.ttl)).arg(claim.token.as_bytes());
    steps.cmd("RENAMENX").arg(&temporary).arg(name);
    steps.cmd("DEL").arg(&temporary);
    let answer = claim.hub.transact(&steps).await?;
    match &answer {
        Value::Array(parts) if parts.len() == 3 => Ok(number(&parts[1])? == 1),
        _ => Err(unexpected(&answer)),
    }
}

struct Timed {
    claim: Arc<Claim>,
    name: String,
    placed: Timestamp,
}

impl Held for Timed {
    fn release(&self) -> Doing<Hold> {
        let (claim, name, age) = (self.claim.clone(), self.name.clone(), Timestamp::now().since(self.placed));
        Box::pin(async move {
            if age >= claim.ttl {
                return Ok(Hold::Lost);
            }
            if age >= claim.ttl - claim.ttl / LATENCY_GUARD {
                return Ok(Hold::Held); // it expires in a moment
            }
            Ok(held_if(number(&claim.hub.send(redis::cmd("DEL").arg(name)).await?)? == 1))
        })
    }

    fn check(&self) -> Doing<Hold> {
        owned::check(self.claim.clone(), &self.name)
    }
}

pub(super) const DELAY: Duration = Duration::from_millis(500);
/// The last part of the ttl in which the lock is left to expire: 500 ms of 10 s.
const LATENCY_GUARD: u32 = 20;
