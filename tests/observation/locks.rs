//! What a lock shows: its holder, metrics, log lines and `Debug`.

use crate::{
    collector::Collected,
    recorder::Metrics,
    support::{MS, RedisServer, SECOND, eventually},
};
use redis::AsyncCommands;
use stampede_guard::{
    Lock,
    lock::{FencedLock, SetPx, held_locks},
};
use std::time::Duration;
use tracing::Level;

fn lock(server: &RedisServer) -> Lock {
    Lock::new(server.client()).namespace("jobs").store_timeout(20 * SECOND).ttl(60 * SECOND)
}

#[tokio::test]
async fn lock_metrics_count_acquired_contended_wait_and_hold() {
    let (metrics, logged, server) = (Metrics::record(), Collected::record(), RedisServer::start());
    let get = |metric: &str| metrics.get(metric, &[("namespace", "jobs"), ("recipe", "FencedLock")]);
    let lock = lock(&server).recipe(FencedLock);
    let held = lock.acquire("report").await.expect("free");
    assert_eq!((get("lock_acquired_total"), get("lock_held"), get("lock_contended_total")), (1.0, 1.0, 0.0));
    assert!(lock.try_acquire("report").await.expect("an answer").is_none());
    let waiting = lock.clone().wait(60 * SECOND);
    let release = async {
        eventually("it waits", async || get("lock_contended_total") == 2.0 && get("lock_waiters") == 1.0).await;
        held.release().await.expect("held");
    };
    let (next, ()) = tokio::join!(waiting.acquire("report"), release);
    drop(next.expect("in time"));
    assert_eq!((get("lock_acquired_total"), get("lock_held"), get("lock_waiters")), (2.0, 0.0, 0.0));
    assert_eq!((get("lock_wait_seconds_count"), get("lock_hold_seconds_count")), (3.0, 2.0), "{}", metrics.text());
    assert_eq!(get("lock_lost_total"), 0.0, "{}", logged.text());
    for (line, times) in [("lock acquired", 2), ("the lock is held", 2), ("lock released", 2)] {
        assert_eq!(logged.events(Level::DEBUG, line), times, "{line}: {}", logged.text());
    }
    assert!(logged.text().contains("lock=\"report\""), "{}", logged.text());
}

/// The time of one guard is over; the server no longer has the lock of the other one.
#[tokio::test]
async fn lost_lock_is_counted_and_logged_once_with_its_cause() {
    let (metrics, logged, server) = (Metrics::record(), Collected::record(), RedisServer::start());
    let lock = lock(&server);
    let late = lock.acquire("late").await.expect("free");
    late.extend(50 * MS).await.expect("held");
    late.lost().await;
    late.lost().await;
    drop(late);
    let deleted = lock.acquire("deleted").await.expect("free");
    let () = server.connection().await.flushall().await.expect("an answer");
    deleted.release().await.expect_err("it was deleted");
    lock.drain().await;
    assert_eq!(metrics.get("lock_lost_total", &[]), 2.0, "{}", metrics.text());
    for line in [r#"lock="late" cause="its time is over"#, r#"lock="deleted" cause="the server no longer has it"#] {
        assert_eq!(logged.text().matches(line).count(), 1, "{line}: {}", logged.text());
    }
    assert_eq!(logged.events(Level::WARN, "the lock was lost before it was released"), 2, "{}", logged.text());
}

#[tokio::test]
async fn end_of_the_heartbeat_names_max_hold() {
    let (logged, server) = (Collected::record(), RedisServer::start());
    let guard = lock(&server).ttl(2 * SECOND).max_hold(MS).acquire("long").await.expect("free");
    guard.keep_alive().expect("in a runtime");
    eventually("the heartbeat ends", async || logged.events(Level::WARN, "max_hold=1ms") == 1).await;
}

/// Over two clients, as of two processes.
#[tokio::test]
async fn holder_of_a_lock_is_visible_to_other_clients() {
    let server = RedisServer::start();
    for with in [|lock: Lock| lock.recipe(SetPx), |lock: Lock| lock.recipe(FencedLock)] {
        let [mine, other] = [with(lock(&server)), with(lock(&server))];
        assert!(other.holder("report").await.expect("an answer").is_none());
        let guard = mine.acquire("report").await.expect("free");
        let holder = other.holder("report").await.expect("an answer").expect("it is held");
        assert_eq!(holder, guard.token());
        assert!(held_locks().iter().any(|held| held.token == holder));
        guard.release().await.expect("held");
        assert!(other.holder("report").await.expect("an answer").is_none());
    }
}

/// They showed `recipe: "fused"` and `since: Timestamp(7561)`.
#[tokio::test]
async fn debug_of_locks_names_the_recipe_and_durations() {
    let server = RedisServer::start();
    let lock = lock(&server).recipe(FencedLock);
    let guard = lock.acquire("shown").await.expect("free");
    let held = held_locks().into_iter().find(|held| held.token == guard.token()).expect("it is listed");
    assert!(held.held_for < Duration::from_secs(60));
    let shown = format!("{lock:?} {guard:?} {held:?}");
    assert_eq!(shown.matches("FencedLock").count(), 3, "{shown}");
    assert!(!shown.contains("fused") && !shown.contains("Timestamp"), "{shown}");
}
