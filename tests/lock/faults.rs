//! How each recipe fails, as its file in `src/lock` says, and what the queue and the guard of a lock stand.
//!
//! A lock whose time is to be over during a test is made to expire ([`expire`]), unless it is about the holder's own
//! timer: nothing depends on how busy the machine is.

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
    lock::{Hold, IntoServer, LockErrorKind, LockGuard},
};

/// One that takes its time: a busy machine is no fault of the server's.
fn lock(redis: impl IntoServer) -> Lock {
    Lock::new(redis).op_timeout(20 * SECOND).ttl(60 * SECOND).delay(3 * MS)
}

/// What the lock of that name has in Redis for its recipe.
fn key(name: &str, of: &str) -> String {
    format!("{{lock:r{name}}}:{of}")
}

/// Words that a person would type.
async fn ask<T: FromRedisValue>(server: &RedisServer, words: impl AsRef<str>) -> T {
    let mut words = words.as_ref().split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    for word in words {
        cmd.arg(word);
    }
    cmd.query_async(&mut server.connection().await).await.expect("the server does as it is told")
}

/// As if the time of that lock were over, for the server.
async fn expire(server: &RedisServer, key: &str) {
    let expiring: i64 = ask(server, format!("PEXPIRE {key} 1")).await;
    assert_eq!(expiring, 1, "{key} is there");
    eventually("it expires", async || ask::<i64>(server, format!("EXISTS {key}")).await == 0).await;
}

/// Those of 32 contenders who got it, at one moment, over eight connections.
async fn contend(server: &RedisServer, name: &'static str, with: impl Fn(Lock) -> Lock) -> Vec<LockGuard> {
    let locks: Vec<_> = (0..8).map(|_| with(lock(server.client()))).collect();
    let contender = |i: usize| {
        let lock = locks[i % 8].clone();
        async move { lock.try_acquire(name).await.expect("an answer") }
    };
    herd(32, contender).await.into_iter().flatten().collect()
}

async fn is_free(lock: &Lock, name: &str) -> bool {
    lock.check(name).await.map_err(|error| assert_eq!(error.kind(), LockErrorKind::Held, "{error}")).is_ok()
}

/// What the server says.
async fn holds(guard: &LockGuard) -> bool {
    guard.check().await.expect("an answer") == Hold::Held
}

async fn relay(server: &RedisServer) -> Relay {
    Relay::to(([127, 0, 0, 1], server.port()).into()).await
}

/// Until so many wait for the lock of that name and recipe, and messages reach them all.
async fn queued(server: &RedisServer, name: &str, recipe: &str, n: usize) {
    let queue = key(name, recipe) + ":queue";
    let waits = async || {
        let members: Vec<(Value, f64)> = ask(server, format!("ZRANGE {queue} 0 -1 WITHSCORES")).await;
        // Those who poll came half a microsecond later.
        members.len() == n && members.iter().all(|(_, came)| came.fract() == 0.0)
    };
    eventually(&format!("{n} wait for {name}"), waits).await;
}
