//! `Counter`: once the count has drifted, it stays wrong forever.

use super::{
    ask,
    child::{Part, Task},
    held_back::HeldBack,
    key, lock,
};
use crate::support::{MS, RedisServer};
use lock_table::Counter;
use stampede_guard::lock::LockErrorKind;

async fn count(server: &RedisServer, name: &str) -> i64 {
    ask(server, format!("GET {}", key(name, "counter"))).await
}

#[tokio::test]
async fn counter_works_without_concurrency() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Counter);
    for _ in 0..20 {
        let guard = lock.try_acquire("alone").await.expect("an answer").expect("free");
        assert!(lock.try_acquire("alone").await.expect("an answer").is_none());
        guard.release().await.expect("held");
    }
    assert_eq!(count(server, "alone").await, 0);
}

#[tokio::test]
async fn contender_crash_before_decr_blocks_counter_forever() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Counter).wait(60 * MS);
    let guard = lock.acquire("contender").await.expect("free");
    let stop = Part::Stop { before: "DECR".to_owned() };
    let mut contender = Task::new(server, "contender", "counter", stop).started().await;
    contender.kill().await;
    guard.release().await.expect("held");
    assert_eq!(count(server, "contender").await, 1, "the count is too high");
    assert_eq!(lock.acquire("contender").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    assert_eq!(ask::<i64>(server, format!("PTTL {}", key("contender", "counter"))).await, -1);
}

#[tokio::test]
async fn holder_crash_blocks_counter_forever() {
    let server = RedisServer::shared();
    let mut holder = Task::new(server, "holder", "counter", Part::Keep).started().await;
    holder.kill().await;
    let lock = lock(server.client()).recipe(Counter).wait(60 * MS);
    assert_eq!(lock.acquire("holder").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    assert_eq!(ask::<i64>(server, format!("PTTL {}", key("holder", "counter"))).await, -1);
}

#[tokio::test]
async fn pending_decr_of_loser_hides_free_counter() {
    let server = RedisServer::shared();
    let first = lock(server.client()).recipe(Counter);
    let guard = first.acquire("loser").await.expect("free");
    let slow = HeldBack::before("DECR", server).await;
    let loser = lock(slow.redis()).recipe(Counter);
    let loser = tokio::spawn(async move { loser.try_acquire("loser").await.expect("an answer").is_some() });
    slow.arrived().await;
    guard.release().await.expect("held");
    assert!(first.try_acquire("loser").await.expect("an answer").is_none(), "busy although the lock is free");
    slow.let_go();
    assert!(!loser.await.expect("no panic"));
    assert!(first.try_acquire("loser").await.expect("an answer").is_some());
}

#[tokio::test]
async fn release_after_manual_reset_blocks_counter_forever() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Counter);
    let guard = lock.acquire("reset").await.expect("free");
    let _: i64 = ask(server, format!("DEL {}", key("reset", "counter"))).await;
    assert_eq!(guard.release().await.expect_err("reset").kind(), LockErrorKind::Release);
    assert_eq!(count(server, "reset").await, -1);
    for _ in 0..3 {
        assert!(lock.try_acquire("reset").await.expect("an answer").is_none(), "the next INCR returns 0, not 1");
    }
}
