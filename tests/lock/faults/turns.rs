//! Processes that take turns, some of which die or stop.

use super::{
    ask,
    child::{Part, Recipe, Task},
    key, lock, queued,
};
use crate::support::{MS, RedisServer, SECOND, eventually};
use stampede_guard::lock::Fused;
use std::time::Duration;

fn fused(server: &RedisServer, name: &str, part: Part) -> Task {
    Task::new(server, name, Recipe::Fused, part)
}

/// Seen to fail with stamps of whole seconds.
#[tokio::test]
async fn fencing_tokens_grow_from_process_to_process_and_over_an_expiry() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Fused).wait(60 * SECOND);
    let mut tokens = vec![lock.acquire("tokens").await.expect("free").fencing_token()];
    for _ in 0..3 {
        let (child, token) = fused(server, "tokens", Part::Pass).started().await;
        child.passed().await;
        tokens.push(token);
    }
    let (mut dies, token) = fused(server, "tokens", Part::Keep).ttl(200 * MS).started().await;
    tokens.push(token);
    dies.kill().await;
    tokens.push(lock.acquire("tokens").await.expect("its time is over").fencing_token());
    assert!(tokens[0].is_some() && tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
}

/// Seen to fail when the last one in the queue is next.
#[tokio::test]
async fn processes_get_it_in_the_order_in_which_they_came() {
    let server = RedisServer::shared();
    let guard = lock(server.client()).recipe(Fused).acquire("order").await.expect("free");
    let mut children = Vec::new();
    for n in 1..=5 {
        children.push(fused(server, "order", Part::Pass).start());
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

/// Nobody can tell that it is stopped, so it has the lock for a ttl; when it goes on, it is told, or hears that it is late
/// and waits again.
///
/// Seen to fail when the time of a hand-over is not compared with the ttl.
#[tokio::test]
async fn who_was_stopped_while_it_waited_costs_its_ttl() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Fused).wait(60 * SECOND);
    let guard = lock.acquire("stopped").await.expect("free");
    let mut stopped = fused(server, "stopped", Part::Keep).ttl(SECOND).start();
    queued(server, "stopped", "fused", 1).await;
    stopped.pause();
    let token = guard.fencing_token();
    guard.release().await.expect("held");
    let name = key("stopped", "fused");
    assert_eq!(ask::<i64>(server, format!("EXISTS {name}")).await, 1, "the stopped one has it");
    let guard = lock.acquire("stopped").await.expect("its time is over");
    assert!(guard.fencing_token() > token);
    stopped.resume();
    queued(server, "stopped", "fused", 1).await;
    let token = guard.fencing_token();
    guard.release().await.expect("held");
    assert!(stopped.result::<Option<u64>>().await > token);
}

/// Whoever waits is heard of every second, and who was not for three of them is not handed anything. Seen to fail with three
/// seconds that never pass.
#[tokio::test]
async fn who_was_stopped_for_long_is_passed_over() {
    let server = RedisServer::shared();
    let lock = lock(server.client()).recipe(Fused);
    let guard = lock.acquire("stopped-long").await.expect("free");
    let stopped = fused(server, "stopped-long", Part::Keep).start();
    queued(server, "stopped-long", "fused", 1).await;
    let next = lock.wait(30 * SECOND); // half of the ttl that the stopped one wants
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

/// Seen to fail when nobody asks before he is told.
#[tokio::test]
async fn when_the_holder_is_killed_all_who_wait_get_it_in_turn() {
    let server = RedisServer::shared();
    let (mut holder, token) = fused(server, "holder", Part::KeepAlive).ttl(3 * SECOND).started().await;
    let mut waiting = Vec::new();
    for n in 1..=3 {
        waiting.push(fused(server, "holder", Part::Pass).start());
        queued(server, "holder", "fused", n).await;
    }
    holder.kill().await;
    for mut child in waiting {
        assert!(child.result::<Option<u64>>().await > token);
        child.passed().await;
    }
}
