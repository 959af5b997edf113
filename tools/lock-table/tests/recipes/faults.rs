//! The known failure of each recipe, as documented in its file in `src/historical`, and the faults that it survives.
//!
//! If a lock has to expire during a test, the test expires it on the server with [`expire`]. So no result depends on
//! the load of the machine. Only tests of the holder's own timer wait for a TTL.

mod child;
mod counter;
mod exists_setex;
mod getset;
mod held_back;
mod redlock;
mod rename;
mod set_membership;
mod setnx_expire;
mod watch;

use crate::{
    kit::{answer_unexpectedly, ask, drop_attempts_at_random, expire, holds, key, lock, relay},
    support::{RedisServer, herd},
};
use lock_table::{ExistsSetex, Redlock, Rename, SetMembership};
use stampede_guard::{Lock, LockGuard};

/// Runs 32 contenders at once over eight connections, and returns the guards of the winners.
async fn contend(server: &RedisServer, name: &'static str, with: impl Fn(Lock) -> Lock) -> Vec<LockGuard> {
    let locks: Vec<_> = (0..8).map(|_| with(lock(server.client()))).collect();
    let contender = |i: usize| {
        let lock = locks[i % 8].clone();
        async move { lock.try_acquire(name).await.expect("an answer") }
    };
    herd(32, contender).await.into_iter().flatten().collect()
}

/// Recipes of each kind: a script, a transaction, and a transaction with two keys.
const OF_EACH_KIND: [fn(Lock) -> Lock; 3] =
    [|lock| lock.recipe(ExistsSetex), |lock| lock.recipe(Rename), |lock| lock.recipe(SetMembership::with_expiry())];

/// Seen to fail if an attempt does not continue in the background.
#[tokio::test(flavor = "multi_thread")]
async fn attempt_dropped_at_random_leaves_no_lock() {
    drop_attempts_at_random(&OF_EACH_KIND).await;
}

/// Seen to fail if every reply other than nil is a grant.
#[tokio::test]
async fn unexpected_reply_grants_nothing() {
    answer_unexpectedly(&OF_EACH_KIND).await;
    answer_unexpectedly(&[|lock| lock.recipe(Redlock::with::<redis::Client>([]))]).await;
}
