//! For readers of "Redis in Action", listings 11.5 and 11.6 (seed 002): the Lua lock. Prefer [`Lock`](stampede_guard::Lock).
//!
//! One script runs `EXISTS` and, if the key does not exist, `SETEX`. A second script runs compare-and-delete.

use crate::guarantees::{Guarantees, LabRecipe, all_except};
use crate::token_lock::TokenLock;
use redis::Value;
use stampede_guard::lock::{
    Recipe,
    recipe::{Acquisition, Attempt, Busy, LockFuture, Script, millis, unexpected},
};
use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

/// Historical: the Lua lock of "Redis in Action". Use it to share locks with an old client; otherwise prefer
/// [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: "Redis in Action", listings 11.5 and 11.6 (seed 002), which retry after 1 ms.
///
/// Known failure: a holder whose reply was lost treats its own lock as held by another client until the lock expires.
/// Every contender sends a thousand requests per second.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExistsSetex;

impl Recipe for ExistsSetex {
    fn name(&self) -> &'static str {
        "exists-setex"
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(1)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        Box::pin(async move {
            let name = acquisition.name("exists-setex");
            let mut call = ACQUIRE.call(&[&name]);
            call.arg(millis(acquisition.ttl)).arg(acquisition.token.as_bytes());
            let ttl = acquisition.ttl;
            match acquisition.client.run(call).await? {
                Value::Okay => Ok(Attempt::acquired(TokenLock::new(acquisition, name), ttl)),
                Value::Nil => Ok(Attempt::Busy(Busy::default())),
                other => Err(unexpected(&other)),
            }
        })
    }
}

impl LabRecipe for ExistsSetex {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| guarantees.replay_safe = false)
    }
}

static ACQUIRE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("exists_setex/acquire.lua")));
