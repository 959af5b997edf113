//! For readers of the node.js post (seed 000): a release with `WATCH`. Prefer [`Lock`](stampede_guard::Lock).
//!
//! Acquired like [`Rename`], released by `WATCH` / `MULTI` / `EXEC`.

use super::{
    optimistic_release::{DedicatedConnections, OptimisticRelease},
    rename::{self, Rename},
};
use crate::guarantees::{Guarantees, LabRecipe, all_except};
use stampede_guard::lock::{
    Recipe,
    recipe::{Acquisition, Attempt, Busy, LockFuture},
};
use std::{sync::Arc, time::Duration};

/// Historical: a lock released by an optimistic transaction on a dedicated connection. Use it if the server forbids
/// scripts; otherwise prefer [`SetPx`](stampede_guard::lock::SetPx).
///
/// Origin: the third recipe of the post on locking with node.js (seed 000), which spins every 500 ms. The post watches
/// the lock from its acquisition on, which takes one connection for every held lock. Here only the release watches the
/// lock and compares its token, as redislock (seed 001) describes, which takes a connection for a short time.
///
/// Known failure: on a shared connection, an `EXEC` of another user ends the watch, and a late holder deletes the lock
/// of its successor. Therefore [`Watch::new`] takes a client, which can open dedicated connections.
///
/// A shared connection is rejected by the compiler:
///
/// ```compile_fail
/// # async fn example(client: stampede_guard::redis::Client) {
/// use lock_table::Watch;
///
/// let shared = client.get_multiplexed_async_connection().await.unwrap();
/// let recipe = Watch::new(shared); // expected `Client`
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Watch {
    connections: Arc<DedicatedConnections>,
}

impl Watch {
    /// Creates the recipe with connections that `client` opens, one for each concurrent operation. The client must lead
    /// to the server of the lock.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self { connections: DedicatedConnections::new(client) }
    }
}

impl Recipe for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn delay(&self, random_unit: f64) -> Duration {
        Rename.delay(random_unit)
    }

    fn attempt(&self, acquisition: Arc<Acquisition>) -> LockFuture<Attempt> {
        let (connections, name) = (self.connections.clone(), acquisition.name("watch"));
        Box::pin(async move {
            let ttl = acquisition.ttl;
            if rename::set_if_absent(&acquisition, &name).await? {
                return Ok(Attempt::acquired(OptimisticRelease { connections, acquisition, name }, ttl));
            }
            Ok(Attempt::Busy(Busy::default()))
        })
    }
}

impl LabRecipe for Watch {
    fn guarantees(&self) -> Guarantees {
        all_except(|guarantees| {
            guarantees.replay_safe = false;
            guarantees.multiplex_safe = false;
        })
    }
}
