//! Processes that acquire one lock in turn, some of which are killed or stopped.

use super::{
    ask,
    child::{Part, Recipe, Task},
    key, lock, queued,
};
use crate::support::{MS, RedisServer, SECOND, eventually};
use stampede_guard::lock::FencedLock;
use std::time::Duration;

fn fenced(server: &RedisServer, name: &str, part: Part) -> Task {
    Task::new(server, name, Recipe::FencedLock, part)
}

/// Seen to fail with stamps of whole seconds.
#[tokio::test]
async fn fencing_tokens_grow_across_processes_and_expiry() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(FencedLock).wait(60 * SECOND);
    let mut tokens = vec![lock.acquire("tokens").await.expect("free").fencing_token()];
    for _ in 0..3 {
        let (child, token) = fenced(server, "tokens", Part::Pass).started().await;
        child.passed().await;
        tokens.push(token);
    }
    let (mut dies, token) = fenced(server, "tokens", Part::Keep).ttl(200 * MS).started().await;
    tokens.push(token);
    dies.kill().await;
    tokens.push(lock.acquire("tokens").await.expect("its ttl is over").fencing_token());
    assert!(tokens[0].is_some() && tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// Seen to fail if the last waiter in the queue is served first.
#[tokio::test]
async fn queued_processes_acquire_in_order_of_arrival() {
    let server = RedisServer::shared();
    let guard = lock(server.client()).recipe(FencedLock).acquire("order").await.expect("free");
    let mut children = Vec::new();
    for n in 1..=5 {
        children.push(fenced(server, "order", Part::Pass).start());
        queued(server, "order", "fused", n).await;
    }
    guard.release().await.expect("held");
    let mut tokens = Vec::new();
    for mut child in children {
        tokens.push(child.result::<Option<u64>>().await);
        child.passed().await;
    }
    assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// The server cannot see that a process is stopped, so the stopped waiter holds the lock for its TTL. When it resumes,
/// it learns that the hand-over is too old, and waits again.
///
/// Seen to fail if the time of a hand-over is not compared with the TTL.
#[tokio::test]
async fn stopped_waiter_costs_its_ttl() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(FencedLock).wait(60 * SECOND);
    let guard = lock.acquire("stopped").await.expect("free");
    let mut stopped = fenced(server, "stopped", Part::Keep).ttl(SECOND).start();
    queued(server, "stopped", "fused", 1).await;
    stopped.pause();
    let token = guard.fencing_token();
    guard.release().await.expect("held");
    let name = key("stopped", "fused");
    assert_eq!(ask::<i64>(server, format!("EXISTS {name}")).await, 1, "the stopped waiter was handed the lock");
    let guard = lock.acquire("stopped").await.expect("its ttl is over");
    assert!(guard.fencing_token() > token);
    stopped.resume();
    queued(server, "stopped", "fused", 1).await;
    let token = guard.fencing_token();
    guard.release().await.expect("held");
    assert!(stopped.result::<Option<u64>>().await > token);
}

/// A waiter asks every second. After three seconds without a request it is not handed the lock.
///
/// Seen to fail if the three seconds never pass.
#[tokio::test]
async fn long_stopped_waiter_is_passed_over() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(FencedLock);
    let guard = lock.acquire("stopped-long").await.expect("free");
    let stopped = fenced(server, "stopped-long", Part::Keep).start();
    queued(server, "stopped-long", "fused", 1).await;
    let next = lock.wait(30 * SECOND); // half the TTL of the stopped waiter
    let next = tokio::spawn(async move { next.acquire("stopped-long").await.expect("in time") });
    queued(server, "stopped-long", "fused", 2).await;
    stopped.pause();
    let clock = async || {
        let (seconds, micros): (u64, u64) = ask(server, "TIME").await;
        Duration::from_secs(seconds) + Duration::from_micros(micros)
    };
    let since = clock().await;
    eventually("three seconds pass", async || clock().await > since + 3 * SECOND).await;
    guard.release().await.expect("held");
    next.await.expect("no panic").release().await.expect("held");
}

/// Seen to fail if waiters ask only after a message.
#[tokio::test]
async fn all_waiters_acquire_after_holder_was_killed() {
    let server = RedisServer::shared();
    let (mut holder, token) = fenced(server, "holder", Part::KeepAlive).ttl(3 * SECOND).started().await;
    let mut waiting = Vec::new();
    for n in 1..=3 {
        waiting.push(fenced(server, "holder", Part::Pass).start());
        queued(server, "holder", "fused", n).await;
    }
    holder.kill().await;
    for mut child in waiting {
        assert!(child.result::<Option<u64>>().await > token);
        child.passed().await;
    }
}
