//! The guard of a lock: what it is told, and what it does by itself.

use super::{ask, expire, holds, is_free, key, lock, relay};
use crate::support::{RedisServer, SECOND, eventually, relay::Mode};
use futures_util::poll;
use stampede_guard::{
    Lock,
    lock::{Fused, LockErrorKind, LockGuard, SetPx, held_locks},
};
use std::{pin::pin, time::Duration};
use tokio::time::timeout;

fn locks(server: &RedisServer) -> [(&'static str, Lock); 2] {
    let lock = lock(server.client());
    [("set-px", lock.clone().recipe(SetPx)), ("fused", lock.recipe(Fused))]
}

async fn lost(guard: &LockGuard) {
    timeout(20 * SECOND, guard.lost()).await.expect("it is lost by then");
    assert_eq!(guard.remaining(), Some(Duration::ZERO));
}

fn is_listed(name: &str) -> bool {
    held_locks().iter().any(|held| &*held.name == name)
}

/// Seen to fail when nothing is done on drop.
#[tokio::test]
async fn dropping_it_releases_the_lock() {
    let server = RedisServer::shared();
    for (_, lock) in locks(server) {
        drop(lock.acquire("dropped").await.expect("free"));
        lock.shutdown().await;
        assert!(is_free(&lock, "dropped").await);
    }
}

/// Seen to fail without the heartbeat.
#[tokio::test]
async fn kept_alive_it_outlives_its_ttl() {
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

/// Seen to fail when the first beat comes a third of the ttl after the call.
#[tokio::test]
async fn kept_alive_when_little_is_left_of_it_it_is_extended_in_time() {
    let server = RedisServer::shared();
    for (recipe, lock) in locks(server) {
        let guard = lock.acquire("little").await.expect("free");
        guard.extend(6 * SECOND).await.expect("held");
        guard.keep_alive().expect("it can be extended");
        let prolonged = async || guard.remaining() > Some(10 * SECOND);
        tokio::select! {
            () = eventually("it is extended", prolonged) => {}
            () = guard.lost() => panic!("{recipe}: its time was over before it was extended"),
        }
        assert!(holds(&guard).await);
        guard.release().await.expect("held");
    }
}

/// Seen to fail when the heartbeat does not look at the time.
#[tokio::test]
async fn kept_alive_it_ends_when_it_was_held_for_too_long() {
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

/// It has ten minutes, so it is not its time that ends it.
///
/// Seen to fail when the heartbeat does not say what it hears.
#[tokio::test]
async fn somebody_deletes_it_and_the_next_heartbeat_tells() {
    let server = RedisServer::shared();
    for (recipe, lock) in locks(server) {
        let guard = lock.clone().ttl(SECOND).acquire("deleted").await.expect("free");
        guard.extend(600 * SECOND).await.expect("held");
        let _: i64 = ask(server, format!("DEL {}", key("deleted", recipe))).await;
        guard.keep_alive().expect("it can be extended");
        lost(&guard).await;
    }
}

/// Seen to fail with a guard whose time never ends.
#[tokio::test]
async fn the_server_is_gone_and_its_time_is_over_without_any_answer() {
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

/// Seen to fail when the first answer that it is lost is not kept.
#[tokio::test]
async fn what_the_server_has_said_once_is_known() {
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

/// Seen to fail when a guard does not take its line with it.
#[tokio::test]
async fn what_this_process_holds_is_listed_until_it_is_not_held() {
    let lock = lock(RedisServer::shared().client()).namespace("listed").recipe(Fused);
    let guard = lock.acquire("listed").await.expect("free");
    let held = held_locks().into_iter().find(|held| &*held.name == "listed").expect("it is held");
    assert_eq!((&*held.namespace, held.recipe), ("listed", "fused"));
    assert_eq!(held.fencing_token, guard.fencing_token());
    assert!(lock.try_acquire("listed").await.expect("an answer").is_none());
    guard.release().await.expect("held");
    assert!(!is_listed("listed"));
    drop(lock.acquire("listed").await.expect("free"));
    assert!(!is_listed("listed"));
}

/// The first one has seen the end of what it waited for, and has not gone on yet.
///
/// Seen to hang when the first one opens again what the second one has closed.
#[tokio::test]
async fn two_wait_for_what_goes_on_behind_and_both_hear_of_its_end() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let lock = lock(relay.client());
    let (one, other) = (lock.acquire("one").await.expect("free"), lock.acquire("other").await.expect("free"));
    relay.set(Mode::HoldReplies);
    drop(one);
    let mut first = pin!(lock.shutdown());
    assert!(poll!(&mut first).is_pending());
    relay.set(Mode::Pass);
    lock.clone().shutdown().await;
    relay.set(Mode::HoldReplies);
    drop(other);
    let mut second = pin!(lock.shutdown());
    assert!(poll!(&mut second).is_pending());
    first.await;
    relay.set(Mode::Pass);
    timeout(20 * SECOND, second).await.expect("nothing goes on behind any more");
}

/// Seen to fail when the last answer counts.
#[tokio::test]
async fn of_two_extensions_at_once_the_shorter_one_counts() {
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
    assert!(left <= 30_000, "the server has done one after the other");
    assert!(guard.remaining() <= Some(30 * SECOND), "{:?}", guard.remaining());
}

/// Seen to fail when only an answer counts.
#[tokio::test]
async fn it_is_shortened_and_the_reply_is_lost() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    let guard = lock(relay.client()).acquire("shortened").await.expect("free");
    relay.set(Mode::HoldReplies);
    let mut extension = pin!(guard.extend(30 * SECOND));
    assert!(poll!(&mut extension).is_pending());
    let left = async || ask::<u64>(&server, format!("PTTL {}", key("shortened", "set-px"))).await;
    eventually("the server has done it", async || left().await <= 30_000).await;
    assert!(guard.remaining() <= Some(30 * SECOND), "{:?}", guard.remaining());
}

/// Seen to fail when the heartbeat goes by the ttl alone.
#[tokio::test]
async fn kept_alive_with_little_time_left_it_is_extended_in_time() {
    let server = RedisServer::shared();
    for (_, lock) in locks(server) {
        for begun in [true, false] {
            let guard = lock.acquire("begun-late").await.expect("free");
            if begun {
                guard.keep_alive().expect("it can be extended");
                tokio::task::yield_now().await; // it sleeps
            }
            guard.extend(3 * SECOND).await.expect("held");
            if !begun {
                guard.keep_alive().expect("it can be extended");
            }
            eventually("it is extended", async || guard.remaining() > Some(10 * SECOND)).await;
            guard.release().await.expect("held");
        }
    }
}
