//! Messages that are lost, late, or heard by nobody.

use super::{
    ask,
    child::{Part, Recipe, Task},
    lock,
    queue::{Room, queueing},
    queued, relay,
};
use crate::support::{MS, RedisServer, SECOND, eventually, herd, relay::Mode};
use stampede_guard::lock::{Fused, IntoServer};

/// Seen to fail when it is not asked whether anybody heard the message.
#[tokio::test]
async fn who_was_killed_while_it_waited_is_passed_over_at_once() {
    let server = RedisServer::start();
    let lock = lock(server.client()).recipe(Fused).wait(60 * SECOND);
    let guard = lock.acquire("killed").await.expect("free");
    let mut dead = Task::new(&server, "killed", Recipe::Fused, Part::Keep).start();
    queued(&server, "killed", "fused", 1).await;
    let alive = {
        let lock = lock.clone().wait(30 * SECOND); // half of the ttl that the dead one wants
        tokio::spawn(async move { lock.acquire("killed").await.expect("in time") })
    };
    queued(&server, "killed", "fused", 2).await;
    dead.kill().await;
    let channels = async || ask::<Vec<String>>(&server, "PUBSUB CHANNELS").await.len();
    eventually("the server has noticed", async || channels().await == 1).await;
    guard.release().await.expect("held");
    alive.await.expect("no panic").release().await.expect("held");
}

/// Who has missed messages asks at once, and everybody else after a second.
///
/// Seen to fail when they do neither.
#[tokio::test(flavor = "multi_thread")]
async fn everybody_gets_it_although_messages_are_lost_all_the_time() {
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

/// It was handed the lock, but hears of it when that is over, somebody else has it, and it waits again.
///
/// Seen to fail when the stamp of the message is not compared with what the server has said since: two hold it.
#[tokio::test]
async fn a_message_that_is_late_is_not_believed() {
    let server = RedisServer::shared();
    let relay = relay(server).await;
    let lock = lock(server.client()).recipe(Fused);
    let deaf = super::lock(server.client().into_server().wakes_from(relay.client()));
    let deaf = deaf.recipe(Fused).ttl(200 * MS).wait(60 * SECOND);
    let guard = lock.acquire("late").await.expect("free");
    let waiting = tokio::spawn(async move { deaf.acquire("late").await.expect("in time") });
    queued(server, "late", "fused", 1).await;
    relay.set(Mode::HoldReplies);
    guard.release().await.expect("held");
    let successor = lock.clone().retries(u32::MAX).acquire("late").await.expect("over soon");
    queued(server, "late", "fused", 1).await;
    relay.set(Mode::Pass);
    let token = successor.fencing_token();
    successor.release().await.expect("held");
    let deaf = waiting.await.expect("no panic");
    assert!(deaf.fencing_token() > token, "{:?} after {token:?}", deaf.fencing_token());
}
