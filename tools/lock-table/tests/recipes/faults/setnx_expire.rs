//! `SETNX`, then `EXPIRE`: failures between the two commands.

use super::{
    ask,
    child::{Part, Task},
    expire,
    held_back::HeldBack,
    holds, key, lock,
};
use crate::support::{MS, RedisServer, SECOND};
use lock_table::SetnxExpire;

/// Seen to fail if a contender does not set the missing expiry.
#[tokio::test]
async fn crash_before_expire_blocks_lock_until_contender_adds_ttl() {
    let server = RedisServer::shared();
    let stop = Part::Stop { before: "PEXPIRE".to_owned() };
    let mut crashed = Task::new(server, "crashed", "setnx_expire", stop).ttl(MS).started().await;
    crashed.kill().await;
    let left = async || ask::<i64>(server, format!("PTTL {}", key("crashed", "setnx-expire"))).await;
    assert_eq!(left().await, -1, "the lock has no expiry");
    let lock = lock(server.client()).recipe(SetnxExpire::new(server.client())).ttl(600 * SECOND);
    assert!(lock.try_acquire("crashed").await.expect("an answer").is_none());
    assert!((1..=600_000).contains(&left().await), "the first contender sets an expiry");
    expire(server, &key("crashed", "setnx-expire")).await;
    lock.acquire("crashed").await.expect("over").release().await.expect("held");
}

#[tokio::test]
async fn slow_holder_before_expire_coexists_with_second_holder() {
    let server = RedisServer::shared();
    let slow = HeldBack::before("PEXPIRE", server).await;
    let first = lock(slow.redis()).recipe(SetnxExpire::new(server.client()));
    let first = tokio::spawn(async move { first.acquire("slow").await });
    slow.arrived().await;
    let lock = lock(server.client()).recipe(SetnxExpire::new(server.client()));
    assert!(lock.try_acquire("slow").await.expect("an answer").is_none(), "the contender sets the missing expiry");
    expire(server, &key("slow", "setnx-expire")).await;
    let second = lock.acquire("slow").await.expect("over");
    slow.let_go();
    let first = first.await.expect("no panic").expect("the slow holder believes that it holds the lock");
    assert!(holds(&second).await);
    assert!(!holds(&first).await, "the slow holder has lost the lock");
}
