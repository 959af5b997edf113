//! Lost replies, after which a second attempt recognises the effect of the first. And replies of the wrong type.

use super::{ask, is_free, key, lock, queue::queueing, queued, relay};
use crate::{
    kit::answer_unexpectedly,
    support::{CLOSED_PORT, MS, RedisServer, SECOND, eventually, relay::Mode},
};
use stampede_guard::{
    Lock,
    lock::{FencedLock, LockErrorKind, SetPx},
};

/// Returns both recipes with a queue, connected through the relay.
async fn over(client: redis::Client) -> [(&'static str, Lock); 2] {
    let locks = [lock(client.clone()).recipe(SetPx), lock(client).recipe(FencedLock)];
    for lock in &locks {
        lock.acquire("warm").await.expect("free").release().await.expect("held");
    }
    let [set_px, fenced_lock] = locks;
    [("set-px", set_px), ("fused", fenced_lock)]
}

/// Seen to fail without the second attempt, and for `SetPx` if that attempt is another `SET NX`.
#[tokio::test]
async fn lost_grant_reply_is_recovered_by_second_attempt() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for (_, lock) in over(relay.client()).await {
        relay.lose_replies(1);
        let guard = lock.try_acquire("granted").await.expect("an answer").expect("it was free");
        guard.release().await.expect("held");
    }
}

/// No reply arrives, and for a while no new connection can be made.
///
/// Seen to fail if the lock is not released, and if its release is tried only once.
#[tokio::test]
async fn grant_without_any_reply_is_released() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for wait in [0, 60] {
        for (recipe, lock) in over(relay.client()).await {
            relay.lose_replies(usize::MAX);
            let error = lock.clone().wait(wait * SECOND).acquire("orphan").await.expect_err("no reply");
            assert_eq!(error.kind(), LockErrorKind::Store);
            relay.lose_replies(0);
            lock.drain().await;
            let is_held: i64 = ask(&server, format!("EXISTS {}", key("orphan", recipe))).await;
            assert_eq!(is_held, 0, "{recipe}, with a wait of {wait} s: a lock of nobody");
        }
    }
}

/// The server is a replica when the first request to leave arrives, as during a failover.
///
/// Seen to fail: the release was not repeated after that refusal.
#[tokio::test]
async fn grant_without_any_reply_is_released_after_readonly() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for (recipe, lock) in over(relay.client()).await {
        relay.lose_replies(usize::MAX);
        lock.try_acquire("orphan").await.expect_err("no reply");
        let () = ask(&server, format!("REPLICAOF 127.0.0.1 {CLOSED_PORT}")).await;
        let is_held: i64 = ask(&server, format!("EXISTS {}", key("orphan", recipe))).await;
        assert_eq!(is_held, 1, "{recipe}: nothing to release");
        let () = ask(&server, "CONFIG RESETSTAT".to_owned()).await;
        relay.lose_replies(0);
        eventually("a release is refused", async || {
            // Redis 6.2 counts the error of a command of a script as `ERR`.
            ask::<String>(&server, "INFO errorstats".to_owned()).await.contains("errorstat_")
        })
        .await;
        let () = ask(&server, "REPLICAOF NO ONE".to_owned()).await;
        lock.drain().await;
        let is_held: i64 = ask(&server, format!("EXISTS {}", key("orphan", recipe))).await;
        assert_eq!(is_held, 0, "{recipe}: a lock of nobody");
    }
}

/// Seen to fail without the second attempt.
#[tokio::test]
async fn lost_release_reply_is_recovered_by_second_attempt() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for (_, lock) in over(relay.client()).await {
        let guard = lock.acquire("released").await.expect("free");
        relay.lose_replies(1);
        guard.release().await.expect("held");
        assert!(is_free(&lock, "released").await);
    }
}

/// Seen to fail without the second attempt.
#[tokio::test]
async fn lost_extend_reply_is_recovered_by_second_attempt() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for (_, lock) in over(relay.client()).await {
        let guard = lock.acquire("extended").await.expect("free");
        relay.lose_replies(1);
        guard.extend(600 * SECOND).await.expect("held");
        assert!(guard.remaining() > Some(500 * SECOND));
        guard.release().await.expect("held");
    }
}

/// Seen to fail if the time that the reply took is not compared with the TTL.
#[tokio::test]
async fn grant_reply_after_ttl_is_not_a_lock() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for (_, lock) in over(relay.client()).await {
        let () = ask(&server, "CONFIG RESETSTAT").await;
        relay.set(Mode::HoldReplies);
        let brief = lock.clone().ttl(100 * MS);
        let brief = tokio::spawn(async move { brief.try_acquire("brief").await.expect("an answer").is_some() });
        let expired = async || ask::<String>(&server, "INFO stats").await.contains("expired_keys:1\r\n");
        eventually("the lock is granted and expires", expired).await;
        relay.set(Mode::Pass);
        assert!(!brief.await.expect("no panic"));
        lock.drain().await;
    }
}

/// The waiter is handed the lock and asks whether it holds it. Message and reply arrive after the TTL, when another
/// holder has the lock. Whether the waiter asks while its replies are held back is a matter of luck, so the test
/// repeats.
///
/// Seen to fail if the time that the reply took is not compared with the TTL.
#[tokio::test]
async fn waiter_ignores_hand_over_reply_after_ttl() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for ((recipe, far), (_, near)) in over(relay.client()).await.into_iter().zip(queueing(&server, 1)) {
        let (near, far) = (near[0].clone(), far.ttl(2 * SECOND).wait(60 * SECOND));
        let mut has_asked = false;
        while !has_asked {
            let guard = near.acquire("over").await.expect("free");
            let waiting = {
                let far = far.clone();
                tokio::spawn(async move { far.acquire("over").await.expect("in time") })
            };
            queued(&server, "over", recipe, 1).await;
            relay.set(Mode::HoldReplies);
            let () = ask(&server, "CONFIG RESETSTAT").await;
            guard.release().await.expect("held");
            let stands = async || ask::<i64>(&server, format!("EXISTS {}", key("over", recipe))).await == 1;
            eventually("the ttl is over", async || !stands().await).await;
            // The release is the first call.
            has_asked = !ask::<String>(&server, "INFO commandstats").await.contains("cmdstat_evalsha:calls=1,");
            let successor = near.acquire("over").await.expect("over");
            relay.set(Mode::Pass);
            queued(&server, "over", recipe, 1).await;
            successor.release().await.expect("held");
            drop(waiting.await.expect("no panic"));
            far.drain().await;
        }
    }
}

/// The connections of the waiter are cut while it waits, and again while it asks again.
///
/// Seen to fail if an error ends a wait.
#[tokio::test]
async fn waiter_keeps_queue_position_after_connection_loss() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for ((recipe, far), (_, near)) in over(relay.client()).await.into_iter().zip(queueing(&server, 1)) {
        let guard = near[0].acquire("cut").await.expect("free");
        let far = far.wait(60 * SECOND);
        let waiting = tokio::spawn(async move { far.acquire("cut").await.expect("in time") });
        queued(&server, "cut", recipe, 1).await;
        let heard = async || ask::<i64>(&server, format!("EXISTS {}:heard", key("cut", recipe))).await;
        eventually("the waiter asks again, so it has the first reply", async || heard().await == 1).await;
        relay.cut();
        relay.lose_replies(3);
        queued(&server, "cut", recipe, 1).await;
        guard.release().await.expect("held");
        waiting.await.expect("no panic").release().await.expect("held");
        relay.lose_replies(0);
    }
}

/// Seen to fail if the cancelled waiter does not leave the queue: the next waiter waits for its TTL.
#[tokio::test]
async fn waiter_cancelled_during_hand_over_passes_lock_on() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for ((recipe, far), (_, near)) in over(relay.client()).await.into_iter().zip(queueing(&server, 1)) {
        let near = near[0].clone();
        let guard = near.acquire("handed").await.expect("free");
        let far = far.wait(60 * SECOND);
        let first = {
            let far = far.clone();
            tokio::spawn(async move { far.acquire("handed").await.map(drop) })
        };
        queued(&server, "handed", recipe, 1).await;
        let next = {
            let near = near.clone().wait(30 * SECOND);
            tokio::spawn(async move { near.acquire("handed").await.expect("in time") })
        };
        queued(&server, "handed", recipe, 2).await;
        relay.set(Mode::HoldReplies);
        guard.release().await.expect("held");
        queued(&server, "handed", recipe, 1).await;
        first.abort();
        assert!(first.await.expect_err("aborted").is_cancelled());
        next.await.expect("no panic").release().await.expect("held");
        relay.set(Mode::Pass);
        far.drain().await;
    }
}

/// Seen to fail if every reply other than nil is a grant.
#[tokio::test]
async fn unexpected_reply_grants_nothing() {
    answer_unexpectedly(&[|lock| lock, |lock| lock.recipe(FencedLock)]).await;
}
