//! `GETSET`: its TTL depends on the clocks of hosts, and its value names no owner.

use super::{ask, contend, held_back::HeldBack, holds, key, lock};
use crate::support::{RedisServer, SECOND};
use lock_table::GetSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Returns the wall clock of this host.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// Leaves a lock that expired a second ago, as after a crash.
async fn leave(server: &RedisServer, name: &str) {
    let over = (now() - SECOND).as_millis();
    let () = ask(server, format!("SET {} {over}", key(name, "getset"))).await;
}

async fn stored(server: &RedisServer, name: &str) -> u64 {
    ask(server, format!("GET {}", key(name, "getset"))).await
}

/// Seen to fail if the reply of `GETSET` is not compared: nearly all contenders acquire the lock.
#[tokio::test]
async fn expired_getset_lock_is_taken_over_by_one_contender() {
    let server = RedisServer::shared();
    for name in ["over-1", "over-2", "over-3", "over-4", "over-5", "over-6"] {
        leave(server, name).await;
        let guards = contend(server, name, |lock| lock.recipe(GetSet::new())).await;
        assert_eq!(guards.len(), 1);
    }
}

#[tokio::test]
async fn clock_ahead_creates_second_getset_holder() {
    let server = RedisServer::shared();
    let ahead = GetSet::with_clock(|| now() + 5 * SECOND);
    let (right, ahead) = (lock(server.client()).recipe(GetSet::new()), lock(server.client()).recipe(ahead));
    let first = right.clone().ttl(4 * SECOND).acquire("ahead").await.expect("free");
    let second = ahead.ttl(60 * SECOND).acquire("ahead").await.expect("expired by the clock of this contender");
    assert!(holds(&first).await && holds(&second).await);
}

#[tokio::test]
async fn clock_behind_keeps_expired_getset_lock_held() {
    let server = RedisServer::shared();
    leave(server, "behind").await;
    let behind = lock(server.client()).recipe(GetSet::with_clock(|| now() - 5 * SECOND));
    let right = lock(server.client()).recipe(GetSet::new());
    assert!(behind.try_acquire("behind").await.expect("an answer").is_none());
    assert!(right.try_acquire("behind").await.expect("an answer").is_some());
}

#[tokio::test]
async fn losing_contender_overwrites_expiry_time_of_holder() {
    let server = RedisServer::shared();
    leave(server, "late").await;
    let slow = HeldBack::before("GETSET", server).await;
    let loser = lock(slow.redis()).recipe(GetSet::new()).ttl(600 * SECOND);
    let loser = tokio::spawn(async move { loser.try_acquire("late").await.expect("an answer").is_some() });
    slow.arrived().await;
    let winner = lock(server.client()).recipe(GetSet::new()).acquire("late").await.expect("over");
    let its_own = stored(server, "late").await;
    slow.let_go();
    assert!(!loser.await.expect("no panic"));
    assert!(
        stored(server, "late").await > its_own + 500_000,
        "a crash of the holder now would block the lock for ten minutes"
    );
    winner.release().await.expect("the holder does not notice");
}

#[tokio::test]
async fn late_holder_with_clock_behind_deletes_successors_lock() {
    let server = RedisServer::shared();
    let late = lock(server.client()).recipe(GetSet::with_clock(|| now() - 65 * SECOND));
    let late = late.acquire("deleted").await.expect("free");
    let right = lock(server.client()).recipe(GetSet::new());
    let successor = right.acquire("deleted").await.expect("expired from the start by the other clocks");
    late.release().await.expect("the late holder believes that it holds the lock");
    assert!(!holds(&successor).await);
    assert!(right.try_acquire("deleted").await.expect("an answer").is_some(), "a third holder acquires the lock");
}

/// Shows the harm if a recipe is not clock-free: a contender whose clock is 5 s fast, and a holder whose clock is 5 s
/// slow.
#[tokio::test]
async fn getset_has_two_holders_if_clocks_differ() {
    let skewed = |skew: f64| {
        GetSet::with_clock(move || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
            Duration::from_secs_f64(now.as_secs_f64() + skew)
        })
    };
    let recipe = crate::RECIPES.iter().find(|recipe| recipe.name == "getset").expect("it is listed");
    for (holder, contender, two) in [(0.0, 5.0, true), (-5.0, 0.0, true), (0.0, -5.0, false), (5.0, 5.0, false)] {
        let lock = recipe.shared().lock(recipe).ttl(4 * SECOND);
        let first = lock.clone().recipe(skewed(holder)).acquire("skewed").await.expect("free");
        let second = lock.recipe(skewed(contender)).try_acquire("skewed").await.expect("an answer");
        assert_eq!(second.is_some(), two, "{holder} s and {contender} s");
        assert!(first.remaining() > Some(Duration::ZERO), "the first holder believes that it holds the lock");
    }
}
