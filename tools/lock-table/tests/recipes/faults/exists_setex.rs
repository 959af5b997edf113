//! `EXISTS`, then `SETEX`: a holder does not recognise its own token.

use super::{ask, expire, key, lock, relay};
use crate::support::{MS, RedisServer, eventually, relay::Mode};
use lock_table::ExistsSetex;
use stampede_guard::lock::LockErrorKind;

#[tokio::test]
async fn exists_setex_blocks_itself_until_ttl_after_lost_reply() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client()).recipe(ExistsSetex).wait(50 * MS).delay(MS);
    lock.acquire("warm").await.expect("free").release().await.expect("held");
    relay.lose_replies(1);
    assert_eq!(lock.try_acquire("lost").await.expect_err("no reply").kind(), LockErrorKind::Store);
    lock.drain().await;
    assert_eq!(lock.acquire("lost").await.expect_err("blocked by its own lock").kind(), LockErrorKind::Acquisition);
    expire(&server, &key("lost", "exists-setex")).await;
    lock.acquire("lost").await.expect("over").release().await.expect("held");
}

/// Seen to fail if a lock that is granted in the background is not released.
#[tokio::test]
async fn exists_setex_releases_late_grant_in_background() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client()).recipe(ExistsSetex);
    lock.acquire("warm").await.expect("free").release().await.expect("held");
    relay.set(Mode::HoldReplies);
    let hasty = lock.clone().store_timeout(MS);
    assert_eq!(hasty.try_acquire("slow").await.expect_err("no reply yet").kind(), LockErrorKind::Store);
    let exists = async || ask::<i64>(&server, format!("EXISTS {}", key("slow", "exists-setex"))).await;
    eventually("the lock is granted", async || exists().await == 1).await;
    relay.set(Mode::Pass);
    lock.drain().await;
    assert_eq!(exists().await, 0);
    lock.acquire("slow").await.expect("free").release().await.expect("held");
}
