//! `SETNX`, then `EXPIRE`: the window between the two.

use super::{
    ask,
    child::{Part, Recipe, Task},
    expire,
    held_back::HeldBack,
    holds, key, lock,
};
use crate::support::{MS, RedisServer, SECOND};
use stampede_guard::lock::SetnxExpire;

/// Seen to fail when a contender does not give it an expiry.
#[tokio::test]
async fn a_crash_in_the_window_leaves_a_lock_that_stands_until_a_contender_comes_and_one_ttl_longer() {
    let server = RedisServer::shared();
    let stop = Part::Stop { before: "PEXPIRE".to_owned() };
    let (mut crashed, _) = Task::new(server, "crashed", Recipe::SetnxExpire, stop).ttl(MS).started().await;
    crashed.kill().await;
    let left = async || ask::<i64>(server, format!("PTTL {}", key("crashed", "setnx-expire"))).await;
    assert_eq!(left().await, -1, "nothing would ever end it");
    let lock = lock(server.client()).recipe(SetnxExpire::new(server.client())).ttl(600 * SECOND);
    assert!(lock.try_acquire("crashed").await.expect("an answer").is_none());
    assert!((1..=600_000).contains(&left().await), "from the first contender on it has one");
    expire(server, &key("crashed", "setnx-expire")).await;
    lock.acquire("crashed").await.expect("over").release().await.expect("held");
}

#[tokio::test]
async fn a_holder_that_is_slow_in_the_window_believes_that_it_has_what_a_second_one_holds() {
    let server = RedisServer::shared();
    let slow = HeldBack::before("PEXPIRE", server).await;
    let first = lock(slow.redis()).recipe(SetnxExpire::new(server.client()));
    let first = tokio::spawn(async move { first.acquire("slow").await });
    slow.arrived().await;
    let lock = lock(server.client()).recipe(SetnxExpire::new(server.client()));
    assert!(lock.try_acquire("slow").await.expect("an answer").is_none(), "it repairs what it finds");
    expire(server, &key("slow", "setnx-expire")).await;
    let second = lock.acquire("slow").await.expect("over");
    slow.let_go();
    let first = first.await.expect("no panic").expect("it believes that it holds it");
    assert!(holds(&second).await);
    assert!(!holds(&first).await, "although it believes so");
}
