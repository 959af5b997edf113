//! Invalidations, replicas and failovers: what a failover loses, for how long, and what `invalidations_reach` does about
//! it.

use crate::{
    Down, MS, SECOND,
    failover::Name,
    kit::{command, documented, recovers, replicate},
    never,
    support::{RedisServer, eventually, free_port, herd},
};
use stampede_guard::{IntoEndpoint, Policy, StampedeGuard, redis::Client, store::IntoStore};
use std::{error::Error as _, time::Duration};

async fn master_and_replica() -> (RedisServer, RedisServer) {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replicate(&replica, &master, master.port()).await;
    (master, replica)
}

/// Returns a guard whose values stay fresh for longer than a test takes.
fn guard(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).store_timeout(30 * SECOND).policy(Policy::fresh_for(600 * SECOND))
}

/// Returns a guard whose invalidations reach this number of replicas.
fn confirmed(client: Client, replicas: usize, within: Duration) -> StampedeGuard {
    guard(client.into_endpoint().invalidations_reach(replicas, within).expect("one server"))
}

/// Stores `old` for the key, and waits until the server has it.
async fn store_old(guard: &StampedeGuard, key: &str, server: &RedisServer) {
    guard.fetch(key.to_owned(), async || Ok::<_, Down>("old".to_owned())).await.expect("an answer");
    guard.drain().await;
    eventually("the replica has the entry", async || has_entry(server, key).await).await;
}

async fn has_entry(server: &RedisServer, key: &str) -> bool {
    command::<i64>(server, &format!("EXISTS {{sg:r{key}}}:v3.8")).await == 1
}

/// Fetches the key, whose value at the origin is `new` by now.
async fn value(guard: &StampedeGuard, key: &str) -> String {
    guard.fetch(key.to_owned(), async || Ok::<_, Down>("new".to_owned())).await.expect("an answer")
}

/// Returns what the store has said about an invalidation of the key.
async fn refusal(guard: &StampedeGuard, key: &str) -> Option<String> {
    let error = guard.invalidate(key.to_owned()).await.err()?;
    Some(error.source()?.to_string())
}

/// Cuts the replica off its master: it keeps its data, and gets nothing more.
async fn cut_off(replica: &RedisServer) {
    command::<()>(replica, &format!("REPLICAOF 127.0.0.1 {}", free_port())).await;
}

/// Lets the master die, and the replica take its place.
async fn fail_over(master: &RedisServer, replica: &RedisServer, name: &Name) {
    master.kill();
    command::<()>(replica, "REPLICAOF NO ONE").await;
    name.follow(replica);
}

/// Seen to fail without `WAIT`: the invalidation is acknowledged although the replica hangs.
#[tokio::test]
async fn invalidation_fails_until_the_replica_has_it() {
    let (master, replica) = master_and_replica().await;
    let guard = confirmed(master.client(), 1, 50 * MS);
    store_old(&guard, "k", &replica).await;
    replica.pause();
    let refused = refusal(&guard, "k").await.expect("refused");
    assert!(refused.contains("0 of 1 replicas confirmed the invalidation within 50ms"), "{refused}");
    assert!(!has_entry(&master, "k").await);
    replica.resume();
    eventually("the invalidation is acknowledged", async || guard.invalidate("k").await.is_ok()).await;
    assert!(!has_entry(&replica, "k").await);
    assert_eq!(guard.stats().breaker_opened, 0, "a replica that hangs is no failure of the master");
}

#[tokio::test]
async fn documented_invalidation_reaches_the_replica() -> redis::RedisResult<()> {
    let (master, replica) = master_and_replica().await;
    let server = master.client();
    documented! {
        let endpoint = server.into_endpoint().invalidations_reach(1, Duration::from_millis(100))?;
        let guard = StampedeGuard::new(endpoint).store_timeout(Duration::from_millis(500));
    }
    let guard = guard.store_timeout(30 * SECOND);
    store_old(&guard, "k", &replica).await;
    eventually("the invalidation is acknowledged", async || guard.invalidate("k").await.is_ok()).await;
    assert!(!has_entry(&replica, "k").await);
    Ok(())
}

/// The retries in the background reach the replica too.
#[tokio::test]
async fn invalidation_is_retried_until_the_replica_has_it() {
    let (master, replica) = master_and_replica().await;
    let guard = confirmed(master.client(), 1, 50 * MS);
    store_old(&guard, "k", &replica).await;
    replica.pause();
    guard.invalidate("k").await.expect_err("the replica hangs");
    replica.resume();
    eventually("the replica has the invalidation", async || !has_entry(&replica, "k").await).await;
}

#[tokio::test]
async fn invalidation_names_the_number_of_missing_replicas() {
    let (master, _replica) = master_and_replica().await;
    let guard = confirmed(master.client(), 2, 200 * MS);
    eventually("the replica confirms in time", async || {
        let refused = refusal(&guard, "k").await.expect("refused");
        assert!(refused.contains("invalidations_reach"), "{refused}");
        refused.contains("1 of 2 replicas confirmed the invalidation within 200ms")
    })
    .await;
}

/// Seen to fail (time-outs, and the breaker opens) if each invalidation sends a `WAIT` of its own: one connection
/// executes them one after the other.
#[tokio::test]
async fn invalidations_share_the_wait_for_a_hung_replica() {
    let (master, replica) = master_and_replica().await;
    let guard = confirmed(master.client(), 1, 500 * MS).store_timeout(10 * SECOND);
    replica.pause();
    let refusals = herd(40, |i| {
        let guard = guard.clone();
        async move { refusal(&guard, &format!("k{i}")).await }
    });
    for refused in refusals.await {
        assert!(refused.as_ref().is_some_and(|refused| refused.contains("0 of 1 replicas")), "{refused:?}");
    }
    assert_eq!(guard.stats().breaker_opened, 0);
}

/// The master has nothing left to drop, but the replica does not know it yet. Seen to fail on Redis 8.2 and Valkey 9.1
/// without a write between the script and `WAIT`.
#[tokio::test]
async fn invalidation_of_a_dropped_entry_waits_for_replicas_too() {
    let (master, replica) = master_and_replica().await;
    let (plain, guard) = (guard(master.client()), confirmed(master.client(), 1, 20 * MS));
    store_old(&plain, "k", &replica).await;
    replica.pause();
    plain.invalidate("k").await.expect("acknowledged by the master");
    let refused = refusal(&guard, "k").await.expect("refused");
    assert!(refused.contains("0 of 1 replicas"), "{refused}");
    replica.resume();
}

/// The host name leads to another master, and only the data connection has broken: the old master still answers on the
/// connection for `WAIT`.
///
/// Seen to fail if only a break replaces that connection and the script runs there alone: the entry stays.
#[tokio::test]
async fn confirmed_invalidation_follows_the_data_connection() {
    let ((old, _old_replica), (new, replica)) = (master_and_replica().await, master_and_replica().await);
    let name = Name::of(&old).await;
    let guard = confirmed(name.client(), 1, SECOND);
    eventually("the invalidation is acknowledged", async || guard.invalidate("k").await.is_ok()).await;
    name.follow(&new);
    let clients: String = command(&old, "CLIENT LIST TYPE normal").await;
    for client in clients.lines().filter(|client| !client.contains("cmd=wait") && !client.contains("cmd=client")) {
        let id = client.split(' ').next().expect("words").trim_start_matches("id=");
        command::<i64>(&old, &format!("CLIENT KILL ID {id}")).await;
    }
    recovers(&guard).await;
    store_old(&guard, "k", &replica).await;
    eventually("the invalidation is acknowledged", async || guard.invalidate("k").await.is_ok()).await;
    for server in [&new, &replica] {
        assert!(!has_entry(server, "k").await);
    }
}

/// A `WAIT` holds up no other request: it has a connection of its own.
#[tokio::test]
async fn reads_do_not_wait_for_replicas() {
    let (master, replica) = master_and_replica().await;
    let guard = confirmed(master.client(), 1, 20 * SECOND);
    store_old(&guard, "read", &replica).await;
    replica.pause();
    let waiting = tokio::spawn({
        let guard = guard.clone();
        async move { guard.invalidate("k").await }
    });
    eventually("the connection is blocked by WAIT", async || {
        command::<String>(&master, "INFO clients").await.contains("blocked_clients:1")
    })
    .await;
    assert_eq!(guard.fetch("read", never::<String>).await.expect("a hit"), "old");
    assert!(!waiting.is_finished());
    replica.resume();
    waiting.await.expect("no panic").expect("acknowledged");
}

#[test]
fn invalidations_reach_refuses_clusters_and_no_replicas() {
    let nodes = ["redis://127.0.0.1:1"];
    let client = redis::cluster::ClusterClient::new(nodes).expect("a client");
    let cluster = stampede_guard::RedisEndpoint::cluster(nodes).expect("an endpoint");
    for endpoint in [client.into_endpoint(), cluster] {
        let error = endpoint.invalidations_reach(1, SECOND).expect_err("a cluster");
        assert!(
            error.to_string().contains("`invalidations_reach` works over a `redis::Client` or sentinels"),
            "{error}"
        );
    }
    let server = Client::open(nodes[0]).expect("a client").into_endpoint();
    let error = server.invalidations_reach(0, SECOND).expect_err("no replica");
    assert!(error.to_string().contains("at least one replica"), "{error}");
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
    let left: i64 = command(&replica, "PTTL {sg:rk}:v3.8").await;
    assert!((0..=10_000).contains(&left), "the old value outlives its lifetime: {left} ms");
    eventually("the old value has ended", async || value(&reader, "k").await == "new").await;
}

/// With `invalidations_reach` the failover loses only what was an error for its caller.
#[tokio::test]
async fn failover_loses_no_invalidation_that_replicas_confirmed() {
    let (master, replica) = master_and_replica().await;
    let name = Name::of(&master).await;
    let [writer, reader] = [(); 2].map(|()| confirmed(name.client(), 1, 100 * MS));
    store_old(&writer, "lost", &replica).await;
    store_old(&writer, "kept", &replica).await;
    eventually("master and replica acknowledge it", async || writer.invalidate("kept").await.is_ok()).await;
    cut_off(&replica).await;
    writer.invalidate("lost").await.expect_err("only the master has it");
    drop(writer);
    fail_over(&master, &replica, &name).await;
    recovers(&reader).await;
    assert_eq!(value(&reader, "kept").await, "new");
}
