//! Acquired like [`Rename`], released by `WATCH` / `MULTI` / `EXEC`.

use super::{
    Guarantees, Recipe, Rename,
    recipe::{Attempt, Busy, Claim, Doing, Sealed},
    rename,
    watched::{Exclusive, Watched},
};
use std::{sync::Arc, time::Duration};

/// Released by an optimistic transaction, on a connection of its own.
///
/// Origin: the third recipe of the post on locking with node.js (seed 000), which spins every 500 ms. The post watches the
/// lock from its acquisition on, which takes a connection for every lock that is held; here it is watched when it is
/// released and its token is compared, as redislock (seed 001) describes the same, which takes one for a moment.
///
/// Known failure: over a connection that others use, their `EXEC` ends the watch, and a late holder deletes the lock of its
/// successor. So it cannot be made of one: [`Watch::new`] takes a client.
///
/// A connection that others share does not do:
///
/// ```compile_fail
/// # async fn example(client: stampede_guard::redis::Client) {
/// use stampede_guard::lock::Watch;
///
/// let shared = client.get_multiplexed_async_connection().await.unwrap();
/// let recipe = Watch::new(shared); // expected `Client`
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Watch {
    exclusive: Arc<Exclusive>,
}

impl Watch {
    /// With connections that this client makes, one for each operation at a time. It has to lead to the same server as the
    /// lock's own.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self { exclusive: Exclusive::new(client) }
    }
}

impl Sealed for Watch {}

impl Recipe for Watch {
    fn name(&self) -> &'static str {
        "watch"
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { replay_safe: false, multiplex_safe: false, ..Guarantees::ALL }
    }

    fn delay(&self, draw: f64) -> Duration {
        Rename.delay(draw)
    }

    fn attempt(&self, claim: Arc<Claim>) -> Doing<Attempt> {
        let (exclusive, name) = (self.exclusive.clone(), claim.name("watch"));
        Box::pin(async move {
            let ttl = claim.ttl;
            if rename::place(&claim, &name).await? {
                return Ok(Attempt::acquired(Watched { exclusive, claim, name }, ttl));
            }
            Ok(Attempt::Busy(Busy::default()))
        })
    }
}
