//! For readers of the node.js post (seed 000): a temporary key renamed to the lock. Prefer [`Lock`](stampede_guard::Lock).
//!
//! `MULTI`, `SETEX` of a temporary key, `RENAMENX` of it to the lock, `EXEC`: sets the expiry and "only if absent"
//! atomically on servers older than Redis 2.6.12, whose `SET` cannot do both.

use crate::guarantees::{Guarantees, LabRecipe, all_except};
use crate::token_lock::TokenLock;
use redis::Value;
use stampede_guard::{
    lock::{
        LeaseStatus, Recipe,
        recipe::{Acquisition, Attempt, Busy, HeldState, LockFuture, held_if, millis, number, unexpected},
    },
    store::{StoreError, Timestamp},
};
use std::{sync::Arc, time::Duration};

/// Historical: a temporary key with an expiry, renamed to the lock. Use it on servers older than Redis 2.6.12;
/// otherwise prefer [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: the second recipe of the post on locking with node.js (seed 000), which spins every 500 ms. In the post all
/// contenders share one temporary key. Here each attempt has its own key and removes it in the same transaction.
///
/// Known failure: the release relies on the holder's own timer. If the holder is paused between the timer check and its
/// `DEL`, the `DEL` deletes the lock of its successor. As in the post, a release near the end of the ttl (500 ms of
/// 10 s) sends no `DEL` and lets the lock expire.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rename;

impl Recipe for Rename {
    fn name(&self) -> &'static str {
        "rename"
    }

    fn delay(&self, _: f64) -> Duration {
        DELAY
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        Box::pin(async move {
            let (sent_at, name, ttl) = (Timestamp::now(), acquisition.name("rename"), acquisition.ttl);
            if set_if_absent(&acquisition, &name).await? {
                return Ok(Attempt::acquired(TimerLock { acquisition, name, acquired_at: sent_at }, ttl));
            }
            Ok(Attempt::Busy(Busy::default()))
        })
    }
}

impl LabRecipe for Rename {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| {
            guarantees.owner_safe = false;
            guarantees.extendable = false;
            guarantees.replay_safe = false;
        })
    }
}

/// Tries to set the lock, and returns whether it did. Uses `PSETEX` in place of `SETEX`, for a ttl in milliseconds.
pub(super) async fn set_if_absent(acquisition: &Acquisition, name: &str) -> Result<bool, StoreError> {
    let temporary = [name.as_bytes(), b":tmp:", acquisition.token.as_bytes()].concat();
    let mut set = redis::cmd("PSETEX");
    set.arg(&temporary).arg(millis(acquisition.ttl)).arg(acquisition.token.as_bytes());
    let mut rename = redis::cmd("RENAMENX");
    rename.arg(&temporary).arg(name);
    let mut delete = redis::cmd("DEL");
    delete.arg(&temporary);
    let answer = acquisition.client.send_all(&super::transaction([set, rename, delete])).await?;
    match &answer {
        Value::Array(parts) if parts.len() == 3 => Ok(number(&parts[1])? == 1),
        _ => Err(unexpected(&answer)),
    }
}

#[derive(Debug)]
struct TimerLock {
    acquisition: Arc<Acquisition>,
    name: String,
    acquired_at: Timestamp,
}

impl HeldState for TimerLock {
    fn release(&self) -> LockFuture<LeaseStatus> {
        let (acquisition, name, age) =
            (self.acquisition.clone(), self.name.clone(), Timestamp::now().since(self.acquired_at));
        Box::pin(async move {
            if age >= acquisition.ttl {
                return Ok(LeaseStatus::Lost);
            }
            if age >= acquisition.ttl - acquisition.ttl / LATENCY_GUARD {
                return Ok(LeaseStatus::Held); // it expires soon
            }
            Ok(held_if(number(&acquisition.client.send(redis::cmd("DEL").arg(name)).await?)? == 1))
        })
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        TokenLock::new(self.acquisition.clone(), self.name.clone()).check()
    }
}

/// Delay between two attempts, as in the post.
pub(super) const DELAY: Duration = Duration::from_millis(500);
/// Divisor of the ttl: in its last 1/20 (500 ms of 10 s) a release lets the lock expire.
const LATENCY_GUARD: u32 = 20;
