//! For readers of "Redis in Action", listing 11.4 (seed 002): the lock before Lua. Prefer [`Lock`](stampede_guard::Lock).
//!
//! `SETNX`, then `EXPIRE`. A contender that finds a lock without expiry sets one. The release uses `WATCH`.

use super::optimistic_release::{DedicatedConnections, OptimisticRelease};
use crate::guarantees::{Guarantees, LabRecipe, all_except};
use redis::{Cmd, Value};
use stampede_guard::lock::{
    Recipe,
    recipe::{Acquisition, Attempt, Busy, LockFuture, millis},
};
use std::{sync::Arc, time::Duration};

/// Historical: the lock of "Redis in Action" with `SETNX` and `EXPIRE`. Prefer [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: "Redis in Action", listing 11.4 (seed 002), the version before the Lua rewrite. It retries after 1 ms.
///
/// Known failure: the window between the two commands. A holder that crashes in it leaves a lock without expiry. The
/// lock then ends one ttl after a contender has set its expiry. If the holder is paused in the window, a contender may
/// set the expiry, the lock may expire, and another client may acquire it. The paused holder still believes that it
/// holds the lock.
#[derive(Clone, Debug)]
pub struct SetnxExpire {
    connections: Arc<DedicatedConnections>,
}

impl SetnxExpire {
    /// Creates the recipe with connections that `client` opens: one for each concurrent release or extension, as in
    /// [`Watch`](super::watch::Watch). The client must lead to the server of the lock.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self { connections: DedicatedConnections::new(client) }
    }
}

impl Recipe for SetnxExpire {
    fn name(&self) -> &'static str {
        "setnx-expire"
    }

    fn delay(&self, _: f64) -> Duration {
        Duration::from_millis(1)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let (connections, name) = (self.connections.clone(), acquisition.name("setnx-expire"));
        Box::pin(async move {
            if acquisition.client.send(redis::cmd("SETNX").arg(&name).arg(acquisition.token.as_bytes())).await?
                == Value::Int(1)
            {
                acquisition.client.send(&expire(&acquisition, &name)).await?;
                let ttl = acquisition.ttl;
                return Ok(Attempt::acquired(OptimisticRelease { connections, acquisition, name }, ttl));
            }
            let remaining = match acquisition.client.send(redis::cmd("PTTL").arg(&name)).await? {
                Value::Int(-1) => {
                    acquisition.client.send(&expire(&acquisition, &name)).await?;
                    Some(acquisition.ttl)
                }
                Value::Int(left) => u64::try_from(left).ok().map(Duration::from_millis),
                _ => None,
            };
            Ok(Attempt::Busy(Busy { remaining, ..Busy::default() }))
        })
    }
}

impl LabRecipe for SetnxExpire {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| {
            guarantees.replay_safe = false;
            guarantees.multiplex_safe = false;
        })
    }
}

fn expire(acquisition: &Acquisition, name: &str) -> Cmd {
    let mut cmd = redis::cmd("PEXPIRE");
    cmd.arg(name).arg(millis(acquisition.ttl));
    cmd
}
