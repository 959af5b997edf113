//! Hand-over messages that are lost, late, or without a receiver.

use super::{
    ask,
    child::{Part, Recipe, Task},
    lock,
    queue::{Room, queueing},
    queued, relay,
};
use crate::support::{MS, RedisServer, SECOND, eventually, herd, relay::Mode};
use stampede_guard::lock::{FencedLock, IntoEndpoint};

/// Seen to fail if the script hands the lock over without asking whether the waiter subscribes.
#[tokio::test]
async fn killed_waiter_is_passed_over_at_once() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(FencedLock).wait(60 * SECOND);
    let guard = lock.acquire("killed").await.expect("free");
    let mut dead = Task::new(&server, "killed", Recipe::FencedLock, Part::Keep).start();
    queued(&server, "killed", "fused", 1).await;
    let alive = {
        let lock = lock.clone().wait(30 * SECOND); // half the TTL of the dead waiter
        tokio::spawn(async move { lock.acquire("killed").await.expect("in time") })
    };
    queued(&server, "killed", "fused", 2).await;
    dead.kill().await;
    let channels = async || ask::<Vec<String>>(&server, "PUBSUB CHANNELS").await.len();
    eventually("the server has noticed the death", async || channels().await == 1).await;
    guard.release().await.expect("held");
    alive.await.expect("no panic").release().await.expect("held");
}

/// A waiter asks again at once after a gap in its messages, and otherwise after a second.
///
/// Seen to fail if it does neither.
#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_acquire_although_messages_are_lost() {
    let server = RedisServer::start();
    for (_, locks) in queueing(&server, 4) {
        let room = Room::default();
        let all = herd(40, |i| {
            let (lock, room) = (locks[i % 4].clone(), room.clone());
            async move {
                for _ in 0..3 {
                    let guard = lock.acquire("lost").await.expect("in time");
                    let inside = room.enter();
                    tokio::time::sleep(MS).await;
                    drop(inside);
                    guard.release().await.expect("held");
                }
            }
        });
        let killing = async {
            loop {
                let _: i64 = ask(&server, "CLIENT KILL TYPE pubsub").await;
                tokio::time::sleep(20 * MS).await;
            }
        };
        tokio::select! {
            _ = all => {}
            () = killing => {}
        }
    }
}

/// A hand-over message arrives after its TTL, when another holder has the lock and the waiter is queued again.
///
/// Seen to fail (two holders) if the stamp of the message is not compared with later replies of the server.
#[tokio::test]
async fn late_hand_over_message_is_ignored() {
    let server = RedisServer::shared();
    let relay = relay(server).await;
    let lock = lock(server.client()).recipe(FencedLock);
    let deaf = super::lock(server.client().into_endpoint().subscribe_via(relay.client()));
    let deaf = deaf.recipe(FencedLock).ttl(200 * MS).wait(60 * SECOND);
    let guard = lock.acquire("late").await.expect("free");
    let waiting = tokio::spawn(async move { deaf.acquire("late").await.expect("in time") });
    queued(server, "late", "fused", 1).await;
    relay.set(Mode::HoldReplies);
    guard.release().await.expect("held");
    let successor = loop {
        match lock.try_acquire("late").await.expect("an answer") {
            Some(guard) => break guard,
            None => tokio::time::sleep(3 * MS).await, // until the ttl ends
        }
    };
    queued(server, "late", "fused", 1).await;
    relay.set(Mode::Pass);
    let token = successor.fencing_token();
    successor.release().await.expect("held");
    let deaf = waiting.await.expect("no panic");
    assert!(deaf.fencing_token() > token, "{:?} after {token:?}", deaf.fencing_token());
}
