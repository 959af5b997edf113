//! The known failure of each recipe, as documented in its file in `src/lock`, and the faults that the queue and the
//! lock guard survive.
//!
//! If a lock has to expire during a test, the test expires it on the server with [`expire`]. So no result depends on
//! the load of the machine. Only tests of the holder's own timer wait for a TTL.

mod cancelled;
mod child;
mod guard;
mod messages;
mod queue;
mod replies;
mod server_gone;
mod set_px;
mod turns;

use crate::{
    kit::{ask, expire, holds, key, lock, nothing_left, relay},
    suite::is_free,
    support::{RedisServer, eventually},
};
use redis::Value;

/// Waits until exactly `n` waiters are queued for the lock, all of them reachable by messages.
async fn queued(server: &RedisServer, name: &str, recipe: &str, n: usize) {
    let queue = key(name, recipe) + ":queue";
    let waits = async || {
        let members: Vec<(Value, f64)> = ask(server, format!("ZRANGE {queue} 0 -1 WITHSCORES")).await;
        // The score of a polling waiter ends in half a microsecond.
        members.len() == n && members.iter().all(|(_, came)| came.fract() == 0.0)
    };
    eventually(&format!("{n} wait for {name}"), waits).await;
}
