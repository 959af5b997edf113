//! The queue of waiters: order, cancellation, and the keys that it leaves.

use super::{ask, expire, key, lock, nothing_left, queued};
use crate::support::{MS, RedisServer, SECOND, eventually, herd};
use stampede_guard::{
    Lock,
    lock::{FencedLock, LockErrorKind, SetPx},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Counts the holders and panics at the second one.
#[derive(Clone, Default)]
pub(super) struct Room(Arc<AtomicUsize>);

pub(super) struct Inside(Arc<AtomicUsize>);

impl Room {
    pub(super) fn enter(&self) -> Inside {
        assert_eq!(self.0.fetch_add(1, SeqCst), 0, "two holders");
        Inside(self.0.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Returns both recipes that have a queue, each over `handles` connections.
pub(super) fn queueing(server: &RedisServer, handles: usize) -> [(&'static str, Vec<Lock>); 2] {
    let some = |with: fn(Lock) -> Lock| (0..handles).map(|_| with(lock(server.client())).wait(60 * SECOND)).collect();
    [("set-px", some(|lock| lock.recipe(SetPx))), ("fused", some(|lock| lock.recipe(FencedLock)))]
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_leaves_no_keys_after_all_waiters_acquired() {
    let server = RedisServer::start();
    for (_, locks) in queueing(&server, 4) {
        let (room, name) = (Room::default(), "left");
        herd(40, |i| {
            let (lock, room) = (locks[i % 4].clone(), room.clone());
            async move {
                for _ in 0..10 {
                    let guard = lock.acquire(name).await.expect("in time");
                    let inside = room.enter();
                    tokio::task::yield_now().await;
                    drop(inside);
                    guard.release().await.expect("held");
                }
            }
        })
        .await;
        nothing_left(&server, name).await;
    }
}

/// Seen to fail if a waiter that gives up does not leave the queue.
#[tokio::test]
async fn queue_leaves_no_keys_after_all_waiters_gave_up() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("given-up").await.expect("free");
        let impatient = lock.clone().wait(50 * MS);
        for given_up in herd(20, |_| {
            let lock = impatient.clone();
            async move { lock.acquire("given-up").await }
        })
        .await
        {
            assert_eq!(given_up.expect_err("held").kind(), LockErrorKind::Acquisition);
        }
        lock.drain().await;
        queued(&server, "given-up", recipe, 0).await;
        guard.release().await.expect("held");
        nothing_left(&server, "given-up").await;
    }
}

/// Seen to fail if a cancelled waiter does not leave the queue: the lock is handed to it.
#[tokio::test]
async fn cancelled_waiter_leaves_queue_and_next_waiter_acquires() {
    let server = RedisServer::shared();
    for (recipe, locks) in queueing(server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("goes").await.expect("free");
        let wait = || {
            let lock = lock.clone();
            tokio::spawn(async move { lock.acquire("goes").await.expect("in time") })
        };
        let first = wait();
        queued(server, "goes", recipe, 1).await;
        let second = wait();
        queued(server, "goes", recipe, 2).await;
        first.abort();
        assert!(first.await.expect_err("aborted").is_cancelled());
        queued(server, "goes", recipe, 1).await;
        guard.release().await.expect("held");
        second.await.expect("no panic").release().await.expect("held");
    }
}

/// A lock has several keys in Redis, which a server that is short of memory evicts one by one. A waiter takes a place
/// in the queue again.
///
/// Seen to fail if a waiter does not rejoin because another key still lists it as queued.
#[tokio::test]
async fn waiter_rejoins_queue_after_queue_key_was_evicted() {
    let server = RedisServer::shared();
    for (recipe, locks) in queueing(server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("evicted").await.expect("free");
        let wait = |lock: Lock| tokio::spawn(async move { lock.acquire("evicted").await.expect("in time") });
        let first = wait(lock.clone());
        queued(server, "evicted", recipe, 1).await;
        let queue = key("evicted", recipe) + ":queue";
        let _: i64 = ask(server, format!("DEL {queue}")).await;
        let positions = async || ask::<i64>(server, format!("EXISTS {queue}")).await;
        eventually("the waiter has a place again", async || positions().await == 1).await;
        guard.release().await.expect("held");
        first.await.expect("no panic").release().await.expect("held");
    }
}

/// Returns the waiters in order of arrival, each with its time of arrival.
async fn positions(server: &RedisServer, name: &str, recipe: &str) -> Vec<(String, f64)> {
    ask(server, format!("ZRANGE {}:queue 0 -1 WITHSCORES", key(name, recipe))).await
}

/// Moves the arrival of the first waiter by that many microseconds.
async fn later(server: &RedisServer, name: &str, recipe: &str, by: f64) {
    let first = positions(server, name, recipe).await.swap_remove(0).0;
    let _: f64 = ask(server, format!("ZINCRBY {}:queue {by} {first}", key(name, recipe))).await;
}

/// Seen to fail if the time of the last request is not recorded: the waiter is passed over.
#[tokio::test]
async fn long_waiter_that_asks_again_keeps_its_turn() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("long").await.expect("free");
        let order = Arc::new(AtomicUsize::new(0));
        let wait = |turn: usize| {
            let (lock, order) = (lock.clone(), order.clone());
            tokio::spawn(async move {
                let guard = lock.acquire("long").await.expect("in time");
                assert_eq!(order.fetch_add(1, SeqCst), turn);
                guard.release().await.expect("held");
            })
        };
        let first = wait(0);
        queued(&server, "long", recipe, 1).await;
        later(&server, "long", recipe, -10e6).await;
        let second = wait(1);
        queued(&server, "long", recipe, 2).await;
        let heard = async || ask::<i64>(&server, format!("HLEN {}:heard", key("long", recipe))).await;
        eventually("the first waiter has asked again", async || heard().await > 0).await;
        guard.release().await.expect("held");
        first.await.expect("served first");
        second.await.expect("served second");
        nothing_left(&server, "rlong").await;
    }
}

/// The silent waiter polls, so no missing receiver reveals that it has died.
///
/// Seen to fail if the time of the last request is ignored: the silent waiter holds the lock for its TTL.
#[tokio::test]
async fn waiter_silent_for_three_seconds_is_passed_over() {
    let server = RedisServer::shared();
    for (recipe, locks) in queueing(server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("gone").await.expect("free");
        let gone = format!("ZADD {}:queue 0.5 gone-a-long-time60000", key("gone", recipe));
        assert_eq!(ask::<i64>(server, gone).await, 1);
        let waiting = lock.clone();
        let waiting = tokio::spawn(async move { waiting.acquire("gone").await.expect("in time") });
        eventually("both wait", async || positions(server, "gone", recipe).await.len() == 2).await;
        guard.release().await.expect("held");
        waiting.await.expect("no panic").release().await.expect("held");
    }
}

/// A waiter that messages no longer reach keeps its place, and is not passed over when its message has no receiver.
///
/// Seen to fail if the change to polling is not recorded in its score.
#[tokio::test]
async fn waiter_that_loses_messages_is_marked_as_polling() {
    let server = RedisServer::shared();
    for recipe in ["set-px", "fused"] {
        let lock = lock(server.connection().await).wait(60 * SECOND);
        let lock = if recipe == "fused" { lock.recipe(FencedLock) } else { lock };
        let guard = lock.acquire("polls").await.expect("free");
        let waiting = lock.clone();
        let waiting = tokio::spawn(async move { waiting.acquire("polls").await.expect("in time") });
        let polls =
            async || positions(server, "polls", recipe).await.first().is_some_and(|(_, came)| came.fract() != 0.0);
        eventually("the waiter is marked as polling", polls).await;
        later(server, "polls", recipe, -0.5).await;
        eventually("the waiter is marked as polling again", polls).await;
        guard.release().await.expect("held");
        waiting.await.expect("no panic").release().await.expect("held");
    }
}

/// The newcomer tries after the TTL of the dead holder, but before the waiter has noticed the expiry.
///
/// Seen to fail if an attempt does not look at the queue.
#[tokio::test]
async fn newcomer_does_not_overtake_queue_after_holder_died() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(FencedLock);
    let dead = lock.acquire("died").await.expect("free");
    let waiting = lock.clone().wait(60 * SECOND);
    let waiting = tokio::spawn(async move { waiting.acquire("died").await.expect("in time") });
    queued(server, "died", "fused", 1).await;
    expire(server, &key("died", "fused")).await;
    assert!(lock.try_acquire("died").await.expect("an answer").is_none());
    waiting.await.expect("no panic").release().await.expect("held");
    assert!(dead.release().await.is_err());
}

/// The server has closed the connection, which only the next command on it notices.
///
/// Seen to fail if the request to leave is sent only once.
#[tokio::test]
async fn cancelled_waiter_leaves_queue_over_broken_connection() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 1) {
        let lock = locks[0].clone();
        let guard = lock.acquire("broken").await.expect("free");
        let waits = tokio::spawn(async move { lock.acquire("broken").await.expect("in time") });
        queued(&server, "broken", recipe, 1).await;
        let _: i64 = ask(&server, "CLIENT KILL TYPE normal SKIPME yes").await;
        waits.abort();
        assert!(waits.await.expect_err("aborted").is_cancelled());
        locks[0].drain().await;
        queued(&server, "broken", recipe, 0).await;
        guard.release().await.expect("held");
    }
}

/// The clock of the server was set back by an hour.
///
/// Seen to fail if a waiter keeps its place in the future: every newcomer overtakes it.
#[tokio::test]
async fn queue_position_in_future_is_moved_to_current_time() {
    let server = RedisServer::shared();
    for (recipe, locks) in queueing(server, 1) {
        let guard = locks[0].acquire("future").await.expect("free");
        let lock = locks[0].clone();
        let waits = tokio::spawn(async move { lock.acquire("future").await.expect("in time") });
        queued(server, "future", recipe, 1).await;
        let queue = key("future", recipe) + ":queue";
        let came =
            async || ask::<Vec<(String, u64)>>(server, format!("ZRANGE {queue} 0 -1 WITHSCORES")).await.remove(0);
        let (member, first) = came().await;
        let _: i64 = ask(server, format!("ZADD {queue} {} {member}", first + 3_600_000_000)).await;
        let of_now = async || came().await.1 < first + 3_500_000_000;
        eventually("the place has the current time", of_now).await;
        guard.release().await.expect("held");
        waits.await.expect("no panic").release().await.expect("held");
    }
}
