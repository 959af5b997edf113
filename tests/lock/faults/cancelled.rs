//! Futures that are dropped: nothing is left of them.

use super::{
    ask, key, lock,
    queue::{Room, nothing_left, queueing},
    relay,
};
use crate::support::{MS, RedisServer, SECOND, eventually, herd, relay::Mode};
use stampede_guard::{
    Lock,
    lock::{ExistsSetex, LockErrorKind, Rename, SetMembership},
};
use std::{future::Future, pin::pin};
use tokio::time::timeout;

/// Most contenders give up after a random time, and whoever gets it sometimes forgets to release it.
async fn come_and_go(locks: &[Lock], name: &'static str) {
    let room = Room::default();
    herd(24, |i| {
        let (lock, room) = (locks[i % locks.len()].clone(), room.clone());
        async move {
            for _ in 0..25 {
                // Some of them stay.
                let patience = if fastrand::u8(..8) == 0 { 60 * SECOND } else { MS * fastrand::u32(..6_000) / 1000 };
                let Ok(guard) = timeout(patience, lock.acquire(name)).await else { continue };
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
        lock.shutdown().await;
    }
}

/// The ttl is a minute: a lock that nobody has would be there at the end.
///
/// Seen to fail when who waits does not leave, and when what is released behind is not.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_comes_and_goes_at_random_leaves_nothing_and_two_never_hold_it() {
    let server = RedisServer::start();
    for fair in [true, false] {
        for (_, locks) in queueing(&server, 4) {
            let locks: Vec<_> = locks.into_iter().map(|lock| lock.fair(fair)).collect();
            come_and_go(&locks, "random").await;
            nothing_left(&server, "random").await;
        }
    }
}

/// Seen to fail when an attempt does not go on behind.
#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_is_dropped_at_random_leaves_no_lock() {
    let server = RedisServer::start();
    let with: [fn(Lock) -> Lock; 4] = [
        |lock| lock,
        |lock| lock.recipe(ExistsSetex),
        |lock| lock.recipe(Rename),
        |lock| lock.recipe(SetMembership::with_expiry()),
    ];
    for with in with {
        let lock = with(lock(server.client()));
        lock.acquire("attempt").await.expect("free").release().await.expect("held");
        for _ in 0..150 {
            let patience = MS * fastrand::u32(..400) / 1000;
            let attempt = timeout(patience, lock.try_acquire("attempt")).await;
            if let Ok(guard) = attempt {
                drop(guard.expect("an answer").expect("what was dropped before is released"));
            }
            lock.shutdown().await;
        }
        nothing_left(&server, "attempt").await;
    }
}

async fn poll_once(future: impl Future) {
    let mut future = pin!(future);
    tokio::select! {
        biased;
        _ = &mut future => panic!("it has to wait for the server"),
        () = std::future::ready(()) => {}
    }
}

/// It was polled, and has to dial first.
///
/// Seen to fail when it does not go on behind.
#[tokio::test]
async fn a_release_that_is_dropped_releases() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client());
    let guard = lock.acquire("dropped").await.expect("free");
    relay.set(Mode::HoldRequests);
    relay.cut();
    poll_once(guard.release()).await;
    relay.set(Mode::Pass);
    lock.shutdown().await;
    assert_eq!(ask::<i64>(&server, format!("EXISTS {}", key("dropped", "set-px"))).await, 0);
}

/// Seen to fail when an attempt does not go on behind.
#[tokio::test]
async fn an_attempt_that_the_server_answers_too_late_is_undone() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client());
    lock.acquire("warm").await.expect("free").release().await.expect("held");
    relay.set(Mode::HoldReplies);
    let hasty = lock.clone().op_timeout(MS);
    assert_eq!(hasty.try_acquire("undone").await.expect_err("no reply yet").kind(), LockErrorKind::Store);
    let exists = async || ask::<i64>(&server, format!("EXISTS {}", key("undone", "set-px"))).await;
    eventually("it is granted", async || exists().await == 1).await;
    relay.set(Mode::Pass);
    lock.shutdown().await;
    assert_eq!(exists().await, 0);
    lock.acquire("undone").await.expect("free").release().await.expect("held");
}
