//! `GETSET`: the clocks of hosts, and a value that is nobody's.

use super::{ask, contend, held_back::HeldBack, holds, is_free, key, lock};
use crate::support::{RedisServer, SECOND};
use stampede_guard::lock::GetSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Of this host.
fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970")
}

/// Somebody died, and the time of the lock was over a second ago.
async fn leave(server: &RedisServer, name: &str) {
    let over = (now() - SECOND).as_millis();
    let () = ask(server, format!("SET {} {over}", key(name, "getset"))).await;
}

async fn stored(server: &RedisServer, name: &str) -> u64 {
    ask(server, format!("GET {}", key(name, "getset"))).await
}

/// Seen to fail when what `GETSET` answers is not compared: nearly all get it.
#[tokio::test]
async fn an_expired_lock_is_taken_over_by_exactly_one() {
    let server = RedisServer::shared();
    for name in ["over-1", "over-2", "over-3", "over-4", "over-5", "over-6"] {
        leave(server, name).await;
        let guards = contend(server, name, |lock| lock.recipe(GetSet::new())).await;
        assert_eq!(guards.len(), 1);
    }
}

#[tokio::test]
async fn a_clock_that_is_ahead_gives_it_to_a_second_holder() {
    let server = RedisServer::shared();
    let ahead = GetSet::with_clock(|| now() + 5 * SECOND);
    let (right, ahead) = (lock(server.client()).recipe(GetSet::new()), lock(server.client()).recipe(ahead));
    let first = right.clone().ttl(4 * SECOND).acquire("ahead").await.expect("free");
    let second = ahead.ttl(60 * SECOND).acquire("ahead").await.expect("free, it seems");
    assert!(holds(&first).await && holds(&second).await);
}

#[tokio::test]
async fn a_clock_that_is_behind_leaves_a_dead_lock_standing() {
    let server = RedisServer::shared();
    leave(server, "behind").await;
    let behind = lock(server.client()).recipe(GetSet::with_clock(|| now() - 5 * SECOND));
    let right = lock(server.client()).recipe(GetSet::new());
    assert!(behind.try_acquire("behind").await.expect("an answer").is_none());
    assert!(!is_free(&behind, "behind").await);
    assert!(right.try_acquire("behind").await.expect("an answer").is_some());
}

#[tokio::test]
async fn who_comes_too_late_overwrites_the_time_of_the_holder() {
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
    assert!(stored(server, "late").await > its_own + 500_000, "if it dies now, nobody gets it for ten minutes");
    winner.release().await.expect("it cannot know");
}

#[tokio::test]
async fn a_late_holder_whose_clock_is_behind_deletes_the_lock_of_its_successor() {
    let server = RedisServer::shared();
    let late = lock(server.client()).recipe(GetSet::with_clock(|| now() - 65 * SECOND));
    let late = late.acquire("deleted").await.expect("free");
    let right = lock(server.client()).recipe(GetSet::new());
    let successor = right.acquire("deleted").await.expect("for the others it was over when it was acquired");
    late.release().await.expect("it believes that it holds it");
    assert!(!holds(&successor).await);
    assert!(right.try_acquire("deleted").await.expect("an answer").is_some(), "and a third one has it");
}
