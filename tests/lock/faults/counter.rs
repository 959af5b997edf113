//! The counter: what drifts once is wrong for ever.

use super::{
    ask,
    child::{Part, Recipe, Task},
    held_back::HeldBack,
    is_free, key, lock,
};
use crate::support::RedisServer;
use stampede_guard::lock::{Counter, LockErrorKind};

async fn count(server: &RedisServer, name: &str) -> i64 {
    ask(server, format!("GET {}", key(name, "counter"))).await
}

#[tokio::test]
async fn alone_it_works() {
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
async fn a_contender_that_crashes_between_its_two_commands_blocks_it_for_ever() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Counter).retries(20);
    let guard = lock.acquire("contender").await.expect("free");
    let stop = Part::Stop { before: "DECR".to_owned() };
    let (mut contender, _) = Task::new(server, "contender", Recipe::Counter, stop).started().await;
    contender.kill().await;
    guard.release().await.expect("held");
    assert_eq!(count(server, "contender").await, 1, "nobody");
    assert_eq!(lock.acquire("contender").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    assert_eq!(ask::<i64>(server, format!("PTTL {}", key("contender", "counter"))).await, -1);
}

#[tokio::test]
async fn a_holder_that_crashes_blocks_it_for_ever() {
    let server = RedisServer::shared();
    let (mut holder, _) = Task::new(server, "holder", Recipe::Counter, Part::Keep).started().await;
    holder.kill().await;
    let lock = lock(server.client()).recipe(Counter).retries(20);
    assert_eq!(lock.acquire("holder").await.expect_err("held").kind(), LockErrorKind::Acquisition);
    assert_eq!(ask::<i64>(server, format!("PTTL {}", key("holder", "counter"))).await, -1);
}

#[tokio::test]
async fn the_count_of_a_loser_hides_that_it_is_free() {
    let server = RedisServer::shared();
    let first = lock(server.client()).recipe(Counter);
    let guard = first.acquire("loser").await.expect("free");
    let slow = HeldBack::before("DECR", server).await;
    let loser = lock(slow.redis()).recipe(Counter);
    let loser = tokio::spawn(async move { loser.try_acquire("loser").await.expect("an answer").is_some() });
    slow.arrived().await;
    guard.release().await.expect("held");
    assert!(first.try_acquire("loser").await.expect("an answer").is_none(), "although nobody holds it");
    assert!(!is_free(&first, "loser").await);
    slow.let_go();
    assert!(!loser.await.expect("no panic"));
    assert!(first.try_acquire("loser").await.expect("an answer").is_some());
}

#[tokio::test]
async fn a_release_that_comes_after_it_was_reset_by_hand_blocks_it_for_ever() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Counter);
    let guard = lock.acquire("reset").await.expect("free");
    let _: i64 = ask(server, format!("DEL {}", key("reset", "counter"))).await;
    assert_eq!(guard.release().await.expect_err("reset").kind(), LockErrorKind::Release);
    assert_eq!(count(server, "reset").await, -1);
    for _ in 0..3 {
        assert!(lock.try_acquire("reset").await.expect("an answer").is_none(), "the next one counts 0, not 1");
        assert!(is_free(&lock, "reset").await, "although nobody holds it");
    }
}
