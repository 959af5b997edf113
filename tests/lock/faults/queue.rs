//! The queue: who is in it, and what is left of it.

use super::{ask, expire, key, lock, queued};
use crate::support::{MS, RedisServer, SECOND, eventually, herd};
use stampede_guard::{
    Lock,
    lock::{Fused, LockErrorKind, SetPx},
};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

/// Those who are in it now, of whom there must not be two.
#[derive(Clone, Default)]
pub(super) struct Room(Arc<AtomicUsize>);

pub(super) struct Inside(Arc<AtomicUsize>);

impl Room {
    pub(super) fn enter(&self) -> Inside {
        assert_eq!(self.0.fetch_add(1, SeqCst), 0, "two hold it");
        Inside(self.0.clone())
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// Both that have a queue, each over so many connections.
pub(super) fn queueing(server: &RedisServer, handles: usize) -> [(&'static str, Vec<Lock>); 2] {
    let some = |with: fn(Lock) -> Lock| (0..handles).map(|_| with(lock(server.client())).wait(60 * SECOND)).collect();
    [("set-px", some(|lock| lock.recipe(SetPx))), ("fused", some(|lock| lock.recipe(Fused)))]
}

/// Nothing in Redis that does not end by itself, and for `name` nothing at all.
pub(super) async fn nothing_left(server: &RedisServer, name: &str) {
    for key in ask::<Vec<String>>(server, "KEYS *").await {
        assert!(!key.contains(name), "{key} is left");
        assert_ne!(ask::<i64>(server, format!("PTTL {key}")).await, -1, "{key} is left for ever");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_when_all_have_had_it() {
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

/// Seen to fail when they do not leave.
#[tokio::test]
async fn nothing_is_left_when_all_have_given_up() {
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
        lock.shutdown().await;
        queued(&server, "given-up", recipe, 0).await;
        guard.release().await.expect("held");
        nothing_left(&server, "given-up").await;
    }
}

/// Seen to fail when they do not leave: the lock is handed to who is not there any more.
#[tokio::test]
async fn who_goes_away_leaves_the_queue_and_the_next_one_is_next() {
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

/// What a lock has in Redis is several keys, and a server that is short of memory drops them one by one. Whoever waits
/// takes a place again.
///
/// Seen to fail with a queue that only those joined of whom another key did not say that they are in it.
#[tokio::test]
async fn who_waits_survives_the_loss_of_the_queue_alone() {
    let server = RedisServer::shared();
    for (recipe, locks) in queueing(server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("evicted").await.expect("free");
        let wait = |lock: Lock| tokio::spawn(async move { lock.acquire("evicted").await.expect("in time") });
        let first = wait(lock.clone());
        queued(server, "evicted", recipe, 1).await;
        let queue = key("evicted", recipe) + ":queue";
        let _: i64 = ask(server, format!("DEL {queue}")).await;
        let places = async || ask::<i64>(server, format!("EXISTS {queue}")).await;
        eventually("it has a place again", async || places().await == 1).await;
        guard.release().await.expect("held");
        first.await.expect("no panic").release().await.expect("held");
    }
}

/// Those in the queue, the first one first, and when each of them came.
async fn places(server: &RedisServer, name: &str, recipe: &str) -> Vec<(String, f64)> {
    ask(server, format!("ZRANGE {}:queue 0 -1 WITHSCORES", key(name, recipe))).await
}

/// As if the first one had come that many microseconds later.
async fn later(server: &RedisServer, name: &str, recipe: &str, by: f64) {
    let first = places(server, name, recipe).await.swap_remove(0).0;
    let _: f64 = ask(server, format!("ZINCRBY {}:queue {by} {first}", key(name, recipe))).await;
}

/// Seen to fail when nobody notes that it has asked again: it is passed over.
#[tokio::test]
async fn who_waits_for_long_and_asks_now_and_then_is_next() {
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
        eventually("the first one has asked again", async || heard().await > 0).await;
        guard.release().await.expect("held");
        first.await.expect("it was the first one's turn");
        second.await.expect("it was the second one's turn");
        nothing_left(&server, "rlong").await;
    }
}

/// One that polls, so that no message tells that it is gone.
///
/// Seen to fail when nobody looks at when it was heard of: it has the lock for its ttl.
#[tokio::test]
async fn who_has_not_asked_for_three_seconds_is_passed_over() {
    let server = RedisServer::shared();
    for (recipe, locks) in queueing(server, 1) {
        let lock = &locks[0];
        let guard = lock.acquire("gone").await.expect("free");
        let gone = format!("ZADD {}:queue 0.5 gone-a-long-time60000", key("gone", recipe));
        assert_eq!(ask::<i64>(server, gone).await, 1);
        let waiting = lock.clone();
        let waiting = tokio::spawn(async move { waiting.acquire("gone").await.expect("in time") });
        eventually("both wait", async || places(server, "gone", recipe).await.len() == 2).await;
        guard.release().await.expect("held");
        waiting.await.expect("no panic").release().await.expect("held");
    }
}

/// Whose messages do not arrive any more: it keeps its place, and is not passed over because nobody hears them.
///
/// Seen to fail when that is not noted.
#[tokio::test]
async fn who_has_to_poll_from_now_on_is_known_to() {
    let server = RedisServer::shared();
    for recipe in ["set-px", "fused"] {
        let lock = lock(server.connection().await).wait(60 * SECOND);
        let lock = if recipe == "fused" { lock.recipe(Fused) } else { lock };
        let guard = lock.acquire("polls").await.expect("free");
        let waiting = lock.clone();
        let waiting = tokio::spawn(async move { waiting.acquire("polls").await.expect("in time") });
        let polls = async || places(server, "polls", recipe).await.first().is_some_and(|(_, came)| came.fract() != 0.0);
        eventually("it polls", polls).await;
        later(server, "polls", recipe, -0.5).await;
        eventually("it polls again", polls).await;
        guard.release().await.expect("held");
        waiting.await.expect("no panic").release().await.expect("held");
    }
}

/// A holder that died, and one who comes when its time is over, but before those who wait have noticed.
///
/// Seen to fail without the look at the queue.
#[tokio::test]
async fn who_comes_when_the_holder_has_died_does_not_get_in_before_those_who_wait() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Fused);
    let dead = lock.acquire("died").await.expect("free");
    let waiting = lock.clone().wait(60 * SECOND);
    let waiting = tokio::spawn(async move { waiting.acquire("died").await.expect("in time") });
    queued(server, "died", "fused", 1).await;
    expire(server, &key("died", "fused")).await;
    assert!(lock.try_acquire("died").await.expect("an answer").is_none());
    waiting.await.expect("no panic").release().await.expect("held");
    assert!(dead.release().await.is_err());
}

/// The server has closed the connection, which is noticed by who uses it next.
///
/// Seen to fail when they leave once.
#[tokio::test]
async fn who_goes_away_over_a_broken_connection_leaves_the_queue() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 1) {
        let lock = locks[0].clone();
        let guard = lock.acquire("broken").await.expect("free");
        let waits = tokio::spawn(async move { lock.acquire("broken").await.expect("in time") });
        queued(&server, "broken", recipe, 1).await;
        let _: i64 = ask(&server, "CLIENT KILL TYPE normal SKIPME yes").await;
        waits.abort();
        assert!(waits.await.expect_err("aborted").is_cancelled());
        locks[0].shutdown().await;
        queued(&server, "broken", recipe, 0).await;
        guard.release().await.expect("held");
    }
}

/// As after the clock of the server was set back by an hour.
///
/// Seen to fail when who has a place keeps it at all costs: whoever comes next gets in before.
#[tokio::test]
async fn who_has_a_place_in_the_future_takes_one_of_now() {
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
        eventually("its place is one of now", of_now).await;
        guard.release().await.expect("held");
        waits.await.expect("no panic").release().await.expect("held");
    }
}
