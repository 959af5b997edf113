//! The known failure of each recipe, as documented in its file in `src/lock`, and the faults that the queue and the
//! lock guard survive.
//!
//! If a lock has to expire during a test, the test expires it on the server with [`expire`]. So no result depends on
//! the load of the machine. Only tests of the holder's own timer wait for a TTL.

mod cancelled;
mod child;
mod counter;
mod exists_setex;
mod getset;
mod guard;
mod held_back;
mod messages;
mod queue;
mod redlock;
mod rename;
mod replies;
mod server_gone;
mod set_membership;
mod set_px;
mod setnx_expire;
mod turns;
mod watch;

use crate::support::{MS, RedisServer, Relay, SECOND, eventually, herd};
use redis::{FromRedisValue, Value};
use stampede_guard::{
    Lock,
    lock::{IntoEndpoint, LeaseStatus, LockErrorKind, LockGuard},
};

/// Returns a lock with long timeouts, so that a busy machine does not look like a failed server.
fn lock(redis: impl IntoEndpoint) -> Lock {
    Lock::new(redis).store_timeout(20 * SECOND).ttl(60 * SECOND).delay(3 * MS)
}

/// Returns the Redis key of a lock for a recipe.
fn key(name: &str, of: &str) -> String {
    format!("{{lock:r{name}}}:{of}")
}

/// Sends a command line, split at spaces, and returns the reply.
async fn ask<T: FromRedisValue>(server: &RedisServer, words: impl AsRef<str>) -> T {
    let mut words = words.as_ref().split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    for word in words {
        cmd.arg(word);
    }
    cmd.query_async(&mut server.connection().await).await.expect("the server accepts the command")
}

/// Expires a key on the server, as if its TTL were over.
async fn expire(server: &RedisServer, key: &str) {
    let expiring: i64 = ask(server, format!("PEXPIRE {key} 1")).await;
    assert_eq!(expiring, 1, "{key} exists");
    eventually("the key expires", async || ask::<i64>(server, format!("EXISTS {key}")).await == 0).await;
}

/// Runs 32 contenders at once over eight connections, and returns the guards of the winners.
async fn contend(server: &RedisServer, name: &'static str, with: impl Fn(Lock) -> Lock) -> Vec<LockGuard> {
    let locks: Vec<_> = (0..8).map(|_| with(lock(server.client()))).collect();
    let contender = |i: usize| {
        let lock = locks[i % 8].clone();
        async move { lock.try_acquire(name).await.expect("an answer") }
    };
    herd(32, contender).await.into_iter().flatten().collect()
}

async fn is_free(lock: &Lock, name: &str) -> bool {
    lock.wait_until_free(name).await.map_err(|error| assert_eq!(error.kind(), LockErrorKind::Held, "{error}")).is_ok()
}

/// Reports whether the server still has this holder's lock.
async fn holds(guard: &LockGuard) -> bool {
    guard.check().await.expect("an answer") == LeaseStatus::Held
}

async fn relay(server: &RedisServer) -> Relay {
    Relay::to(([127, 0, 0, 1], server.port()).into()).await
}

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
