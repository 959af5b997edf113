//! Set membership: what has no expiry stays.

use super::{
    ask,
    child::{Part, Recipe, Task},
    contend, holds, is_free, lock, relay,
};
use crate::support::{MS, RedisServer, SECOND};
use stampede_guard::lock::{LockErrorKind, SetMembership};

const SET: &str = "{lock}:named_locks";

#[tokio::test]
async fn a_crashed_holder_blocks_everybody_for_ever() {
    let server = RedisServer::start();
    let task = Task::new(&server, "dead", Recipe::SetMembership { expires: false }, Part::Keep).ttl(MS);
    let (mut holder, _) = task.started().await;
    holder.kill().await;
    let lock = lock(server.client()).recipe(SetMembership::default()).ttl(MS).retries(20);
    assert!(!is_free(&lock, "dead").await);
    assert_eq!(lock.acquire("dead").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    assert_eq!(ask::<i64>(&server, format!("PTTL {SET}")).await, -1, "and nothing will ever end it");
}

/// Seen to fail without the expiry of the companion.
#[tokio::test]
async fn with_expiry_a_crash_frees_it() {
    let server = RedisServer::start();
    let task = Task::new(&server, "dead", Recipe::SetMembership { expires: true }, Part::Keep).ttl(300 * MS);
    let (mut holder, _) = task.started().await;
    holder.kill().await;
    let lock = lock(server.client()).recipe(SetMembership::with_expiry()).wait(20 * SECOND);
    let guard = lock.acquire("dead").await.expect("its time is over");
    guard.release().await.expect("nobody else has it");
    assert_eq!(ask::<i64>(&server, format!("EXISTS {SET}")).await, 0, "the member that was left is gone as well");
}

/// Seen to fail when the member decides instead of the companion: none gets it; and without `NX`: all do.
#[tokio::test]
async fn a_member_without_its_companion_is_taken_over_by_exactly_one() {
    let server = RedisServer::start();
    for _ in 0..10 {
        server.flushall().await;
        let _: i64 = ask(&server, format!("SADD {SET} rleft")).await;
        let guards = contend(&server, "left", |lock| lock.recipe(SetMembership::with_expiry())).await;
        assert_eq!(guards.len(), 1);
    }
}

#[tokio::test]
async fn a_lost_reply_locks_out_everybody_the_holder_included() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client()).recipe(SetMembership::default()).retries(20);
    lock.acquire("warm").await.expect("free").release().await.expect("held");
    relay.lose_replies(1);
    let error = lock.try_acquire("lost").await.expect_err("no reply");
    assert_eq!(error.kind(), LockErrorKind::Store, "{error}");
    assert_eq!(lock.acquire("lost").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    lock.shutdown().await;
    assert!(!is_free(&lock, "lost").await, "and nobody holds it");
}

#[tokio::test]
async fn whoever_deletes_the_set_frees_all_locks_at_once() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(SetMembership::default());
    let held = [lock.acquire("a").await.expect("free"), lock.acquire("b").await.expect("free")];
    let _: i64 = ask(&server, format!("DEL {SET}")).await;
    for guard in held {
        let second = lock.acquire(guard.name()).await.expect("free, it seems");
        guard.release().await.expect("it cannot know");
        assert!(!holds(&second).await, "and its release was the second one's end");
    }
}
