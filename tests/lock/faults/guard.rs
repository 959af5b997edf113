//! `LockGuard`: how it learns of a loss, and its heartbeat and release.

use super::{ask, expire, holds, is_free, key, lock, relay};
use crate::{
    kit::Says,
    support::{MS, RedisServer, SECOND, eventually, relay::Mode},
};
use futures_util::poll;
use redis::Value;
use stampede_guard::{
    Lock,
    lock::{Connection, FencedLock, LockErrorKind, LockGuard, SetPx, held_locks},
};
use std::{pin::pin, time::Duration};
use tokio::time::timeout;

fn locks(server: &RedisServer) -> [(&'static str, Lock); 2] {
    locks_over(server.client())
}

fn locks_over(client: redis::Client) -> [(&'static str, Lock); 2] {
    let lock = lock(client);
    [("set-px", lock.clone().recipe(SetPx)), ("fused", lock.recipe(FencedLock))]
}

async fn lost(guard: &LockGuard) {
    timeout(20 * SECOND, guard.lost()).await.expect("lost in time");
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
}

fn is_listed(name: &str) -> bool {
    held_locks().iter().any(|held| &*held.name == name)
}

/// Seen to fail if dropping the guard does nothing.
#[tokio::test]
async fn dropped_guard_releases_lock() {
    let server = RedisServer::shared();
    for (_, lock) in locks(server) {
        drop(lock.acquire("dropped").await.expect("free"));
        lock.drain().await;
        assert!(is_free(&lock, "dropped").await);
    }
}

/// Seen to fail without the heartbeat.
#[tokio::test]
async fn keep_alive_holds_lock_beyond_ttl() {
    let server = RedisServer::start();
    let mut guards = Vec::new();
    for (_, lock) in locks(&server) {
        let guard = lock.ttl(2 * SECOND).acquire("alive").await.expect("free");
        guard.keep_alive().expect("it can be extended");
        guards.push(guard);
    }
    let times = async || {
        let stats: String = ask(&server, "INFO commandstats").await;
        let calls = stats.split_once("cmdstat_pexpire:calls=").and_then(|(_, rest)| rest.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    };
    eventually("both are extended for two ttls", async || times().await >= 2 * 2 * 3).await;
    for guard in guards {
        assert!(holds(&guard).await);
        guard.release().await.expect("held");
    }
    assert!(ask::<String>(&server, "INFO stats").await.contains("expired_keys:0\r\n"));
}

/// Seen to fail if the first heartbeat comes a third of the TTL after the call.
#[tokio::test]
async fn first_heartbeat_comes_in_time_if_little_ttl_is_left() {
    let server = RedisServer::shared();
    for (recipe, lock) in locks(server) {
        let guard = lock.acquire("little").await.expect("free");
        guard.extend(6 * SECOND).await.expect("held");
        guard.keep_alive().expect("it can be extended");
        let prolonged = async || guard.remaining() > Some(10 * SECOND);
        tokio::select! {
            () = eventually("the lock is extended", prolonged) => {}
            () = guard.lost() => panic!("{recipe}: the ttl was over before the first heartbeat"),
        }
        assert!(holds(&guard).await);
        guard.release().await.expect("held");
    }
}

/// Seen to fail if the heartbeat ignores `max_hold`.
#[tokio::test]
async fn keep_alive_ends_at_max_hold() {
    let server = RedisServer::shared();
    for (recipe, lock) in locks(server) {
        let hangs = lock.clone().ttl(SECOND).max_hold(2 * SECOND);
        let guard = hangs.acquire("hangs").await.expect("free");
        guard.keep_alive().expect("it can be extended");
        lost(&guard).await;
        let successor = lock.clone().wait(20 * SECOND).acquire("hangs").await.expect("over");
        assert_eq!(guard.release().await.expect_err("late").kind(), LockErrorKind::Release, "{recipe}");
        successor.release().await.expect("held");
    }
}

/// The TTL is ten minutes, so the guard cannot be lost by expiry.
///
/// Seen to fail if the heartbeat does not report a lost lock.
#[tokio::test]
async fn heartbeat_reports_deleted_lock_as_lost() {
    let server = RedisServer::shared();
    for (recipe, lock) in locks(server) {
        let guard = lock.clone().ttl(SECOND).acquire("deleted").await.expect("free");
        guard.extend(600 * SECOND).await.expect("held");
        let _: i64 = ask(server, format!("DEL {}", key("deleted", recipe))).await;
        guard.keep_alive().expect("it can be extended");
        lost(&guard).await;
    }
}

/// Seen to fail if the TTL of a guard never ends.
#[tokio::test]
async fn guard_is_lost_after_ttl_without_server() {
    for which in [0, 1] {
        let server = RedisServer::start();
        let lock = locks(&server)[which].1.clone().ttl(SECOND);
        let (left, kept) = (lock.acquire("left").await.expect("free"), lock.acquire("kept").await.expect("free"));
        kept.keep_alive().expect("it can be extended");
        server.kill();
        lost(&left).await;
        lost(&kept).await;
    }
}

/// Seen to fail if the first reply that reports the loss is not remembered.
#[tokio::test]
async fn guard_remembers_loss_reported_by_server() {
    let server = RedisServer::shared();
    for (recipe, lock) in locks(server) {
        let guards = [lock.acquire("told-1").await.expect("free"), lock.acquire("told-2").await.expect("free")];
        for guard in &guards {
            expire(server, &key(guard.name(), recipe)).await;
        }
        assert!(!holds(&guards[0]).await);
        assert_eq!(guards[1].extend(SECOND).await.expect_err("lost").kind(), LockErrorKind::Extend);
        for guard in guards {
            lost(&guard).await;
        }
    }
}

/// Seen to fail if a guard does not remove its registry entry.
#[tokio::test]
async fn held_locks_lists_lock_until_released_or_dropped() {
    let lock = lock(RedisServer::shared().client()).namespace("listed").recipe(FencedLock);
    let guard = lock.acquire("listed").await.expect("free");
    let held = held_locks().into_iter().find(|held| &*held.name == "listed").expect("it is held");
    assert_eq!((&*held.namespace, held.recipe), ("listed", "FencedLock"));
    assert_eq!(held.fencing_token, guard.fencing_token());
    assert!(lock.try_acquire("listed").await.expect("an answer").is_none());
    guard.release().await.expect("held");
    assert!(!is_listed("listed"));
    drop(lock.acquire("listed").await.expect("free"));
    assert!(!is_listed("listed"));
}

/// The first `drain` has seen the end of the work that it waited for, but has not been polled again when the second
/// one starts.
///
/// Seen to hang if the first `drain` reopens the tracker that the second one has closed.
#[tokio::test]
async fn concurrent_drains_both_see_end_of_background_work() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client());
    let (one, other) = (lock.acquire("one").await.expect("free"), lock.acquire("other").await.expect("free"));
    relay.set(Mode::HoldReplies);
    drop(one);
    let mut first = pin!(lock.drain());
    assert!(poll!(&mut first).is_pending());
    relay.set(Mode::Pass);
    lock.clone().drain().await;
    relay.set(Mode::HoldReplies);
    drop(other);
    let mut second = pin!(lock.drain());
    assert!(poll!(&mut second).is_pending());
    first.await;
    relay.set(Mode::Pass);
    timeout(20 * SECOND, second).await.expect("the background work has ended");
}

/// Seen to fail if the last reply counts.
#[tokio::test]
async fn shorter_of_two_concurrent_extensions_counts() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let guard = lock(relay.client()).acquire("at-once").await.expect("free");
    relay.set(Mode::HoldReplies);
    let (mut long, mut short) = (pin!(guard.extend(600 * SECOND)), pin!(guard.extend(30 * SECOND)));
    assert!(poll!(&mut long).is_pending() && poll!(&mut short).is_pending());
    relay.set(Mode::Pass);
    short.await.expect("held");
    long.await.expect("held");
    let left: u64 = ask(&server, format!("PTTL {}", key("at-once", "set-px"))).await;
    assert!(left <= 30_000, "the server executed the short extension last");
    assert!(guard.remaining() <= Some(30 * SECOND), "{:?}", guard.remaining());
}

/// The release meets a broken connection. Its repetition cannot tell a lock that the first release has deleted from a
/// lock that was lost.
///
/// Seen to fail if the repetition alone decides: `Ok`, although another client holds the lock.
#[tokio::test]
async fn release_after_guard_ended_reports_loss() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    for ((_, far), (recipe, near)) in locks_over(relay.client()).into_iter().zip(locks(&server)) {
        let guard = far.acquire("ended").await.expect("free");
        let _ = guard.extend(MS).await;
        lost(&guard).await;
        let successor = near.wait(60 * SECOND).acquire("ended").await.expect("over");
        relay.cut();
        let error = guard.release().await.expect_err(recipe);
        assert_eq!(error.kind(), LockErrorKind::Release);
        successor.release().await.expect("held");
    }
}

/// Redis gets whole milliseconds. The clock is paused.
///
/// Seen to fail if the guard counts the ttl as it was set, 0.999 ms more.
#[tokio::test(start_paused = true)]
async fn guard_counts_whole_milliseconds_as_server_does() {
    let lock = lock(Connection(Says(Value::Okay))).ttl(Duration::from_micros(10_999));
    let guard = lock.acquire("whole").await.expect("granted");
    assert_eq!(guard.remaining(), Some(10 * MS));
    let reply = guard.extend(Duration::from_micros(5_999)).await; // shortens it without a valid reply, too
    assert_eq!((reply.is_err(), guard.remaining()), (true, Some(5 * MS)));
}

/// Seen to fail if only a reply shortens the remaining time.
#[tokio::test]
async fn shortening_extension_counts_without_reply() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let guard = lock(relay.client()).acquire("shortened").await.expect("free");
    relay.set(Mode::HoldReplies);
    let mut extension = pin!(guard.extend(30 * SECOND));
    assert!(poll!(&mut extension).is_pending());
    let left = async || ask::<u64>(&server, format!("PTTL {}", key("shortened", "set-px"))).await;
    eventually("the server has shortened the ttl", async || left().await <= 30_000).await;
    assert!(guard.remaining() <= Some(30 * SECOND), "{:?}", guard.remaining());
}

/// Seen to fail if the heartbeat interval follows the TTL alone.
#[tokio::test]
async fn heartbeat_comes_in_time_after_extend_shortened_ttl() {
    let server = RedisServer::shared();
    for (_, lock) in locks(server) {
        for begun in [true, false] {
            let guard = lock.acquire("begun-late").await.expect("free");
            if begun {
                guard.keep_alive().expect("it can be extended");
                tokio::task::yield_now().await; // the heartbeat starts to sleep
            }
            guard.extend(3 * SECOND).await.expect("held");
            if !begun {
                guard.keep_alive().expect("it can be extended");
            }
            eventually("the lock is extended", async || guard.remaining() > Some(10 * SECOND)).await;
            guard.release().await.expect("held");
        }
    }
}

/// Seen to fail (it waits for ever) when only the task of the release ends after five seconds.
#[test]
fn drain_ends_although_a_runtime_is_not_driven() {
    let server = RedisServer::start();
    let lock = Lock::new(server.client());
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let idle = runtime();
    let guard = idle.block_on(lock.acquire("idle")).expect("free");
    {
        let _entered = idle.enter();
        drop(guard);
    }
    runtime().block_on(lock.drain());
    drop(idle);
}
