//! `SetMembership`: a member of a set has no expiry.

use super::{
    ask,
    child::{Part, Task},
    contend, holds, lock, relay,
};
use crate::support::{MS, RedisServer, SECOND};
use lock_table::SetMembership;
use stampede_guard::lock::LockErrorKind;

const SET: &str = "{lock}:named_locks";

#[tokio::test]
async fn crashed_holder_blocks_set_member_forever() {
    let server = RedisServer::start();
    let task = Task::new(&server, "dead", "set_membership", Part::Keep).ttl(MS);
    let mut holder = task.started().await;
    holder.kill().await;
    let lock = lock(server.client()).recipe(SetMembership::default()).ttl(MS).wait(60 * MS);
    assert_eq!(lock.acquire("dead").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    assert_eq!(ask::<i64>(&server, format!("PTTL {SET}")).await, -1, "the set has no expiry");
}

/// Seen to fail if the timer key has no expiry.
#[tokio::test]
async fn with_expiry_frees_set_member_after_crash() {
    let server = RedisServer::start();
    let task = Task::new(&server, "dead", "set_membership_with_expiry", Part::Keep).ttl(300 * MS);
    let mut holder = task.started().await;
    holder.kill().await;
    let lock = lock(server.client()).recipe(SetMembership::with_expiry()).wait(20 * SECOND);
    let guard = lock.acquire("dead").await.expect("its ttl is over");
    guard.release().await.expect("held");
    assert_eq!(ask::<i64>(&server, format!("EXISTS {SET}")).await, 0, "the stale member was removed too");
}

/// Seen to fail without `NX`.
#[tokio::test]
async fn set_member_without_expiry_is_taken_over_by_one_contender() {
    let server = RedisServer::start();
    for _ in 0..10 {
        server.flushall().await;
        let _: i64 = ask(&server, format!("SADD {SET} rleft")).await;
        let guards = contend(&server, "left", |lock| lock.recipe(SetMembership::with_expiry())).await;
        assert_eq!(guards.len(), 1);
    }
}

#[tokio::test]
async fn lost_reply_locks_out_all_contenders_and_the_holder() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client()).recipe(SetMembership::default()).wait(60 * MS);
    lock.acquire("warm").await.expect("free").release().await.expect("held");
    relay.lose_replies(1);
    let error = lock.try_acquire("lost").await.expect_err("no reply");
    assert_eq!(error.kind(), LockErrorKind::Store, "{error}");
    assert_eq!(lock.acquire("lost").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    lock.drain().await;
    assert!(lock.try_acquire("lost").await.expect("an answer").is_none(), "busy although the lock is free");
}

#[tokio::test]
async fn deleting_the_set_frees_all_locks() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(SetMembership::default());
    let held = [lock.acquire("a").await.expect("free"), lock.acquire("b").await.expect("free")];
    let _: i64 = ask(&server, format!("DEL {SET}")).await;
    for guard in held {
        let second = lock.acquire(guard.name()).await.expect("the set was deleted");
        guard.release().await.expect("the holder does not notice");
        assert!(!holds(&second).await, "the release freed the lock of the second holder");
    }
}
