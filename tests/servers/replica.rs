//! Locks whose messages arrive by way of a replica, which the `PUBLISH` of the master does not count as a receiver.

use crate::{
    MS, SECOND,
    failover::Name,
    kit::{command, replicate},
    locks::everything,
    support::{RedisServer, eventually},
};
use futures_util::StreamExt;
use redis::Client;
use stampede_guard::{
    Lock,
    lock::{FencedLock, IntoEndpoint},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};
use tokio::task::JoinSet;

async fn master_and_replica() -> (RedisServer, RedisServer) {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replicate(&replica, &master, master.port()).await;
    (master, replica)
}

/// Returns a lock on the master that receives its messages from another client.
async fn lock(master: &RedisServer, messages: Client) -> Lock {
    let data = master.connection().await.into_endpoint();
    Lock::new(data.subscribe_via(messages)).store_timeout(20 * SECOND).ttl(60 * SECOND).wait(60 * SECOND)
}

/// Seen to fail (43 of 80 holders held the lock together with a second holder) if a message is sent to a waiter that is
/// then passed over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_with_messages_by_replica_has_one_holder() {
    let (master, replica) = master_and_replica().await;
    for recipe in [|lock: Lock| lock, |lock: Lock| lock.recipe(FencedLock)] {
        let (inside, overlaps) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut holders = JoinSet::new();
        for _ in 0..4 {
            let lock = recipe(lock(&master, replica.client()).await);
            let (inside, overlaps) = (inside.clone(), overlaps.clone());
            holders.spawn(async move {
                for _ in 0..10 {
                    let guard = lock.acquire("replica").await.expect("in time");
                    overlaps.fetch_add(inside.fetch_add(1, SeqCst), SeqCst);
                    tokio::time::sleep(10 * MS).await; // messages to other waiters arrive meanwhile
                    inside.fetch_sub(1, SeqCst);
                    let _ = guard.release().await;
                }
            });
        }
        holders.join_all().await;
        assert_eq!(overlaps.load(SeqCst), 0, "holders beside another one");
    }
}

#[tokio::test]
async fn lock_waiters_with_messages_by_replica_keep_order() {
    let (master, replica) = master_and_replica().await;
    let redis = master.connection().await;
    everything(lock(&master, replica.client()).await, 4, redis.clone()).await;
    everything(lock(&master, replica.client()).await.recipe(FencedLock), 4, redis).await;
}

/// Reports for each waiter whether it polls: its score then ends in half a microsecond.
async fn polling(master: &RedisServer) -> Vec<bool> {
    let waiters: Vec<(String, f64)> = command(master, "ZRANGE {lock:rmoved}:fused:queue 0 -1 WITHSCORES").await;
    waiters.iter().map(|(_, came)| came.fract() != 0.0).collect()
}

/// The host name of the client for messages changes to a replica, and the connection breaks.
///
/// Seen to fail if the script registers the waiter without asking for subscribers.
#[tokio::test]
async fn lock_waiter_polls_after_its_subscriber_moved_to_replica() {
    let (master, replica) = master_and_replica().await;
    let name = Name::of(&master).await;
    let lock = lock(&master, name.client()).await.recipe(FencedLock);
    let guard = lock.acquire("moved").await.expect("free");
    let waiting = tokio::spawn(async move { lock.acquire("moved").await.expect("in time") });
    eventually("the waiter is registered for messages", async || polling(&master).await == [false]).await;
    name.follow(&replica);
    command::<()>(&master, "CLIENT KILL TYPE pubsub").await;
    eventually("the waiter subscribes at the replica", async || {
        !command::<String>(&replica, "CLIENT LIST TYPE pubsub").await.is_empty()
    })
    .await;
    let requests = async || {
        let stats: String = command(&master, "INFO commandstats").await;
        let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
        calls.map_or(0, |calls| calls.parse::<u64>().expect("a number"))
    };
    let before = requests().await;
    eventually("the waiter asks again", async || requests().await > before + 3).await;
    assert_eq!(polling(&master).await, [true]);
    guard.release().await.expect("held");
    waiting.await.expect("no panic").release().await.expect("held");
}

/// A waiter is registered for messages, but its subscriber has moved to a replica since its last request.
///
/// Seen to fail if the message is sent before its receivers are counted: it arrives, and the waiter takes the lock for
/// its own although another waiter has it.
#[tokio::test]
async fn passed_over_waiter_receives_no_message_by_replica() {
    let (master, replica) = master_and_replica().await;
    let lock = lock(&master, master.client()).await.recipe(FencedLock);
    let guard = lock.acquire("moved").await.expect("free");
    let mut messages = replica.client().get_async_pubsub().await.expect("the server is up");
    messages.subscribe("stampede-guard:inboxabc").await.expect("subscribed");
    let (seconds, micros): (u64, u64) = command(&master, "TIME").await;
    let queue = format!("ZADD {{lock:rmoved}}:fused:queue {seconds}{micros:06} inboxabcabcdefgh60000");
    assert_eq!(command::<i64>(&master, &queue).await, 1);
    let next = lock.clone();
    let next = tokio::spawn(async move { next.acquire("moved").await.expect("in time") });
    eventually("both wait", async || polling(&master).await.len() == 2).await;
    guard.release().await.expect("held");
    next.await.expect("no panic").release().await.expect("held");
    command::<()>(&master, "PUBLISH stampede-guard:inboxabc last").await;
    let first = messages.on_message().next().await.expect("connected");
    assert_eq!(first.get_payload_bytes(), b"last");
}
