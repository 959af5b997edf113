//! Invalidations, replicas and failovers: what a failover loses, and for how long.

use crate::{
    Down, SECOND,
    failover::Name,
    kit::{command, recovers, replicate},
    never,
    support::{CLOSED_PORT, RedisServer, eventually},
};
use stampede_guard::{IntoStore, Policy, StampedeGuard};
use std::time::Duration;

async fn master_and_replica() -> (RedisServer, RedisServer) {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replicate(&replica, &master, master.port()).await;
    (master, replica)
}

/// Returns a guard whose values stay fresh for longer than a test takes.
fn guard(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).store_timeout(30 * SECOND).policy(Policy::fresh_for(600 * SECOND))
}

/// Stores `old` for the key, and waits until the server has it.
async fn store_old(guard: &StampedeGuard, key: &str, server: &RedisServer) {
    guard.fetch(key.to_owned(), async || Ok::<_, Down>("old".to_owned())).await.expect("an answer");
    guard.drain().await;
    eventually("the replica has the entry", async || has_entry(server, key).await).await;
}

async fn has_entry(server: &RedisServer, key: &str) -> bool {
    command::<i64>(server, &format!("EXISTS {{sg:r{key}}}:v3.6")).await == 1
}

/// Fetches the key, whose value at the origin is `new` by now.
async fn value(guard: &StampedeGuard, key: &str) -> String {
    guard.fetch(key.to_owned(), async || Ok::<_, Down>("new".to_owned())).await.expect("an answer")
}

/// Cuts the replica off its master: it keeps its data, and gets nothing more.
async fn cut_off(replica: &RedisServer) {
    command::<()>(replica, &format!("REPLICAOF 127.0.0.1 {CLOSED_PORT}")).await;
}

/// Lets the master die, and the replica take its place.
async fn fail_over(master: &RedisServer, replica: &RedisServer, name: &Name) {
    master.kill();
    command::<()>(replica, "REPLICAOF NO ONE").await;
    name.follow(replica);
}

/// Two guards, as two processes, find the master by a name, and its replica has lost an invalidation of one of them.
async fn lost_invalidation(value_lives: Duration) -> (RedisServer, Name, [StampedeGuard; 2]) {
    let (master, replica) = master_and_replica().await;
    let name = Name::of(&master).await;
    let policy = Policy::fresh_for(value_lives).jitter(0.0);
    let guards = [(); 2].map(|()| guard(name.client()).policy(policy));
    store_old(&guards[0], "k", &replica).await;
    assert_eq!(value(&guards[1], "k").await, "old");
    cut_off(&replica).await;
    guards[0].invalidate("k").await.expect("acknowledged by the master");
    fail_over(&master, &replica, &name).await;
    (replica, name, guards)
}

/// The failover loses an invalidation, and the process that has requested it is alive: its first command at the new
/// master sends the invalidation again. Until then the old value is a hit in other processes.
///
/// Seen to fail without the repetition of recent invalidations.
#[tokio::test]
async fn invalidation_lost_by_failover_ends_with_its_process_alive() {
    let (_replica, _name, [writer, reader]) = lost_invalidation(600 * SECOND).await;
    recovers(&reader).await;
    assert_eq!(reader.fetch("k", never::<String>).await.expect("a hit"), "old", "the failover lost the invalidation");
    recovers(&writer).await;
    eventually("the invalidation is sent again", async || value(&reader, "k").await == "new").await;
}

/// The process that has requested the invalidation is gone as well. Only the end of its lifetime ends the old value.
#[tokio::test]
async fn invalidation_lost_with_its_process_ends_with_the_value() {
    let (replica, _name, [writer, reader]) = lost_invalidation(10 * SECOND).await;
    drop(writer);
    recovers(&reader).await;
    assert_eq!(reader.fetch("k", never::<String>).await.expect("a hit"), "old", "the failover lost the invalidation");
    let left: i64 = command(&replica, "PTTL {sg:rk}:v3.6").await;
    assert!((0..=10_000).contains(&left), "the old value outlives its lifetime: {left} ms");
    eventually("the old value has ended", async || value(&reader, "k").await == "new").await;
}
