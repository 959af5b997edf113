//! Cancelled futures of a lock leave no key in Redis.

use super::{
    ask, key, lock, nothing_left,
    queue::{Room, queueing},
    relay,
};
use crate::{
    kit::drop_attempts_at_random,
    support::{MS, RedisServer, SECOND, eventually, herd, relay::Mode},
};
use stampede_guard::{Lock, lock::LockErrorKind};
use std::{future::Future, pin::pin};
use tokio::time::timeout;

/// Most contenders give up after a random time. Holders drop the guard, cancel its release, or release it.
async fn come_and_go(locks: &[Lock], name: &'static str) {
    let room = Room::default();
    herd(24, |i| {
        let (lock, room) = (locks[i % locks.len()].clone(), room.clone());
        async move {
            for _ in 0..25 {
                // One in eight waits until it is served.
                let limit = if fastrand::u8(..8) == 0 { 60 * SECOND } else { MS * fastrand::u32(..6_000) / 1000 };
                let Ok(guard) = timeout(limit, lock.acquire(name)).await else { continue };
                let guard = guard.expect("the server is there");
                let inside = room.enter();
                tokio::task::yield_now().await;
                drop(inside);
                match fastrand::u8(..3) {
                    0 => drop(guard),
                    1 => drop(timeout(MS / 10, guard.release()).await),
                    _ => guard.release().await.expect("held"),
                }
            }
        }
    })
    .await;
    for lock in locks {
        lock.drain().await;
    }
}

/// The TTL is a minute, so a leaked lock would still be there at the end.
///
/// Seen to fail if a cancelled waiter does not leave the queue, and if a dropped guard is not released in the
/// background.
#[tokio::test(flavor = "multi_thread")]
async fn contenders_cancelled_at_random_leave_no_key_or_second_holder() {
    let server = RedisServer::start();
    for (_, locks) in queueing(&server, 4) {
        come_and_go(&locks, "random").await;
        nothing_left(&server, "random").await;
    }
}

/// Seen to fail if an attempt does not continue in the background.
#[tokio::test(flavor = "multi_thread")]
async fn attempt_dropped_at_random_leaves_no_lock() {
    drop_attempts_at_random(&[|lock| lock]).await;
}

async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    tokio::select! {
        biased;
        _ = &mut future => panic!("the future must wait for the server"),
        () = std::future::ready(()) => {}
    }
}

/// The release is polled once, while it has to reconnect, and then dropped.
///
/// Seen to fail if the release does not continue in the background.
#[tokio::test]
async fn dropped_release_future_still_releases() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client());
    let guard = lock.acquire("dropped").await.expect("free");
    relay.set(Mode::HoldRequests);
    relay.cut();
    poll_once(guard.release()).await;
    relay.set(Mode::Pass);
    lock.drain().await;
    assert_eq!(ask::<i64>(&server, format!("EXISTS {}", key("dropped", "set-px"))).await, 0);
}

/// Seen to fail if an attempt does not continue in the background.
#[tokio::test]
async fn late_grant_after_timeout_is_released() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client());
    lock.acquire("warm").await.expect("free").release().await.expect("held");
    relay.set(Mode::HoldReplies);
    let hasty = lock.clone().store_timeout(MS);
    assert_eq!(hasty.try_acquire("undone").await.expect_err("no reply yet").kind(), LockErrorKind::Store);
    let exists = async || ask::<i64>(&server, format!("EXISTS {}", key("undone", "set-px"))).await;
    eventually("the lock is granted", async || exists().await == 1).await;
    relay.set(Mode::Pass);
    lock.drain().await;
    assert_eq!(exists().await, 0);
    lock.acquire("undone").await.expect("free").release().await.expect("held");
}
