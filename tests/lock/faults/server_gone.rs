//! A server that loses its data or is down for a while, with many waiters in the queue.

use super::{
    ask, lock,
    queue::{Room, queueing},
    queued, relay,
};
use crate::support::{MS, RedisServer, SECOND, relay::Mode};
use stampede_guard::{Lock, lock::LockErrorKind};
use tokio::{task::JoinSet, time::Instant};

const MANY: usize = 24;

/// Starts the waiters, each of which acquires the lock once.
fn wait(locks: &[Lock], name: &'static str, room: &Room) -> JoinSet<()> {
    let mut waiting = JoinSet::new();
    for i in 0..MANY {
        let (lock, room) = (locks[i % locks.len()].clone(), room.clone());
        waiting.spawn(async move {
            let guard = lock.acquire(name).await.expect("in time");
            let inside = room.enter();
            tokio::time::sleep(MS).await;
            drop(inside);
            guard.release().await.expect("held");
        });
    }
    waiting
}

/// Seen to fail if a script is not sent again as text after `NOSCRIPT`.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_acquire_after_script_flush() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 4) {
        let guard = locks[0].acquire("scripts").await.expect("free");
        let waiting = wait(&locks, "scripts", &Room::default());
        queued(&server, "scripts", recipe, MANY).await;
        let () = ask(&server, "SCRIPT FLUSH").await;
        guard.release().await.expect("held");
        waiting.join_all().await;
    }
}

/// Seen to fail if waiters ask only after a message.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_acquire_after_flushall() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 4) {
        let guard = locks[0].acquire("flushed").await.expect("free");
        let waiting = wait(&locks, "flushed", &Room::default());
        queued(&server, "flushed", recipe, MANY).await;
        server.flushall().await;
        waiting.join_all().await;
        assert_eq!(guard.release().await.expect_err("lost").kind(), LockErrorKind::Release);
    }
}

/// Seen to fail if an error ends a wait.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_acquire_after_server_restarts_empty() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 4) {
        let guard = locks[0].acquire("died").await.expect("free");
        let waiting = wait(&locks, "died", &Room::default());
        queued(&server, "died", recipe, MANY).await;
        server.kill();
        // Without the server every attempt is an error.
        let error = lock(server.client()).try_acquire("died").await.expect_err("the server is down");
        assert_eq!(error.kind(), LockErrorKind::Store);
        server.restart().await;
        waiting.join_all().await;
        drop(guard);
    }
}

/// The waiter retries until its wait timeout and then reports the last error.
#[tokio::test]
async fn waiter_fails_with_store_error_if_server_stays_down() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 1) {
        let _guard = locks[0].acquire("gone").await.expect("free");
        let lock = locks[0].clone().wait(SECOND);
        let waiting = tokio::spawn(async move { lock.acquire("gone").await });
        queued(&server, "gone", recipe, 1).await;
        server.kill();
        let error = waiting.await.expect("no panic").expect_err("the server is down");
        assert_eq!(error.kind(), LockErrorKind::Store, "not reported as busy: {error}");
        server.restart().await;
    }
}

/// The bound that the documentation of `Lock::drain` names, in virtual time.
///
/// Seen to fail without a timeout for background work: the drain does not end.
#[tokio::test]
async fn drain_ends_after_five_seconds_without_reply() {
    let server = RedisServer::shared();
    let relay = relay(server).await;
    let lock = lock(relay.client());
    let guard = lock.acquire("silent").await.expect("free");
    relay.set(Mode::NoReplies);
    tokio::time::pause();
    let begun = Instant::now();
    drop(guard);
    lock.drain().await;
    let drained = begun.elapsed();
    assert!(drained >= 5 * SECOND && drained < 6 * SECOND, "{drained:?}");
}
