//! A server that forgets, or is gone for a while, while many wait.

use super::{
    ask, lock,
    queue::{Room, queueing},
    queued,
};
use crate::support::{MS, RedisServer, SECOND};
use stampede_guard::{Lock, lock::LockErrorKind};
use tokio::task::JoinSet;

const MANY: usize = 24;

/// Each has it once.
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

/// Seen to fail when the text of a script does not follow its hash.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_are_forgotten() {
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

/// Seen to fail when nobody asks before he is told.
#[tokio::test(flavor = "multi_thread")]
async fn everything_is_forgotten() {
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

/// Seen to fail when an error ends a wait.
#[tokio::test(flavor = "multi_thread")]
async fn the_server_dies_and_comes_back_empty() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 4) {
        let guard = locks[0].acquire("died").await.expect("free");
        let waiting = wait(&locks, "died", &Room::default());
        queued(&server, "died", recipe, MANY).await;
        server.kill();
        // Gone means gone to all of them.
        let error = lock(server.client()).try_acquire("died").await.expect_err("nobody listens");
        assert_eq!(error.kind(), LockErrorKind::Store);
        server.restart().await;
        waiting.join_all().await;
        drop(guard);
    }
}

/// Who waits tries until its time is over, and says then what it knows.
#[tokio::test]
async fn the_server_dies_for_good() {
    let server = RedisServer::start();
    for (recipe, locks) in queueing(&server, 1) {
        let _guard = locks[0].acquire("gone").await.expect("free");
        let lock = locks[0].clone().wait(SECOND);
        let waiting = tokio::spawn(async move { lock.acquire("gone").await });
        queued(&server, "gone", recipe, 1).await;
        server.kill();
        let error = waiting.await.expect("no panic").expect_err("nobody listens");
        assert_eq!(error.kind(), LockErrorKind::Store, "not busy: {error}");
        server.restart().await;
    }
}
