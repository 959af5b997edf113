//! Herds over several processes.

use crate::{
    Down, MS, SECOND,
    support::{
        Monitor, Origin, RedisServer,
        child::{self, Env},
        eventually, herd, never, processes,
    },
};
use serde::{Deserialize, Serialize};
use stampede_guard::{ErrorKind, FetchContext, FetchOutcome, StampedeGuard};

const PROCESSES: usize = 4;

#[derive(Clone, Serialize, Deserialize)]
struct Task {
    url: String,
    origin: Kind,
    keys: usize,
    callers: usize,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum Kind {
    Works,
    Fails,
    Private,
}

#[derive(Debug, Deserialize, Serialize)]
struct Outcome {
    calls: usize,
    answered: usize,
    failed: usize,
    in_flight: usize,
    /// Fetches that held the lease.
    led: u64,
}

async fn run(server: &RedisServer, origin: Kind, keys: usize, callers: usize) -> Vec<Outcome> {
    let task = Task { url: server.url(), origin, keys, callers };
    processes::run(PROCESSES, "herd::child", &task).await
}

/// Child process: asks for a key again and again, until Redis is back after an outage. Then it asks for another key, at
/// once with all others.
#[tokio::test]
async fn child_that_asks_on() {
    let Some(Env { task: url, .. }) = child::enabled::<String>() else { return };
    let guard = StampedeGuard::new(redis::Client::open(url).expect("a client")).store_timeout(30 * SECOND);
    let origin = Origin::new();
    let asks = async |key: &str| assert!(ask(&guard, key.to_owned(), origin.clone(), Kind::Works).await, "{key}");
    asks("hot").await;
    child::ready_and_wait().await;
    let asking = async {
        loop {
            asks("hot").await;
            tokio::time::sleep(10 * MS).await;
        }
    };
    let outage = async {
        eventually("redis is gone", async || guard.stats().failed_open > 0).await;
        child::ready_and_wait().await;
    };
    tokio::select! {
        () = asking => {}
        () = outage => {}
    }
    eventually("the guard shares again", async || {
        let before = guard.stats().misses;
        guard.fetch(fastrand::u64(..), async || Ok::<_, Down>(0)).await.expect("an answer");
        guard.stats().misses > before && guard.health().subscriber_up == Some(true)
    })
    .await;
    guard.drain().await;
    child::ready_and_wait().await;
    let before = origin.calls();
    asks("after").await;
    guard.drain().await;
    child::report(&(origin.calls() - before));
}

#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
    // A busy machine must not look like an outage: no guard may go on without Redis here.
    let guard =
        StampedeGuard::new(redis::Client::open(task.url.as_str()).expect("a client")).store_timeout(30 * SECOND);
    guard.fetch(format!("warm-up {}", std::process::id()), async || Ok::<_, Down>(0_usize)).await.expect("an answer");
    guard.drain().await;
    let warm = guard.stats().misses;
    let origin = match task.origin {
        Kind::Works | Kind::Fails => Origin::new(),
        Kind::Private => Origin::gated(),
    };
    child::ready_and_wait().await;
    let callers = herd(task.callers, |i| {
        let (guard, origin, kind) = (guard.clone(), origin.clone(), task.origin);
        let key = format!("key {}", i % task.keys);
        async move { ask(&guard, key, origin, kind).await }
    });
    let release = async {
        if let Kind::Private = task.origin {
            // Only the leader is released. Then all other callers have to arrive at once; otherwise they would run in
            // turn.
            origin.arrived(1).await;
            origin.release(1);
            origin.arrived(task.callers).await;
            origin.open();
        }
    };
    let (answers, ()) = tokio::join!(callers, release);
    guard.drain().await;
    let answered = answers.iter().filter(|answer| **answer).count();
    let (calls, in_flight, led) = (origin.calls(), guard.in_flight(), guard.stats().misses - warm);
    child::report(&Outcome { calls, answered, failed: answers.len() - answered, in_flight, led });
}

async fn ask(guard: &StampedeGuard, key: String, origin: Origin, kind: Kind) -> bool {
    let expected = key.clone();
    let fetch = async move |_: FetchContext<String>| match kind {
        Kind::Works => {
            origin.work(50 * MS).await;
            Ok(FetchOutcome::new(key))
        }
        Kind::Fails => {
            origin.work(50 * MS).await;
            Err(Down)
        }
        Kind::Private => {
            origin.call().await;
            Ok(FetchOutcome::new(key).private())
        }
    };
    match guard.cache::<String>("name").entry(&expected).fetch_with(fetch).await {
        Ok(value) => value == expected,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Origin, "{error:?}");
            false
        }
    }
}

/// In each process a read that is sent at once is shared with no other caller, and all other callers share the next one.
/// Callers that come while the lease is asked for look up the entry in the same way. So a process sends up to four reads,
/// and one or two scripts.
#[tokio::test]
async fn four_processes_compute_once_in_at_most_27_redis_commands() {
    let server = RedisServer::start();
    let task = Task { url: server.url(), origin: Kind::Works, keys: 1, callers: 250 };
    let mut children = processes::spawn(PROCESSES, "herd::child", &task);
    for child in &mut children {
        child.wait_ready().await;
    }
    let monitor = Monitor::start(&server).await;
    for child in &mut children {
        child.go().await;
    }
    let mut outcomes: Vec<Outcome> = Vec::new();
    for mut child in children {
        outcomes.push(child.result().await);
        child.passed().await;
    }
    let commands = monitor.stop().await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.calls).sum::<usize>(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.answered == 250 && outcome.in_flight == 0), "{outcomes:?}");
    assert!(commands.len() <= 3 + 6 * PROCESSES, "{commands:#?}");
}

/// The lease lists all waiting processes.
///
/// Seen to fail (64 calls) if a lease that is held is granted again.
#[tokio::test]
async fn sixty_four_processes_compute_once() {
    let server = RedisServer::start();
    let task = Task { url: server.url(), origin: Kind::Works, keys: 1, callers: 8 };
    let outcomes: Vec<Outcome> = processes::run(64, "herd::child", &task).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.calls).sum::<usize>(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.answered == 8 && outcome.in_flight == 0), "{outcomes:?}");
}

/// Redis goes away and comes back without its data while each process asks. No answer fails.
///
/// Seen to fail (no guard shares again) if a connection that broke is not made again.
#[tokio::test]
async fn processes_share_again_after_a_restart_of_redis() {
    let server = RedisServer::start();
    let mut children = processes::spawn(48, "herd::child_that_asks_on", &server.url());
    processes::start_together(&mut children).await;
    server.kill();
    for child in &mut children {
        child.wait_ready().await; // it has met the outage
    }
    server.restart().await;
    for child in &mut children {
        child.go().await;
    }
    processes::start_together(&mut children).await;
    let mut calls = 0;
    for mut child in children {
        calls += child.result::<usize>().await;
        child.passed().await;
    }
    assert_eq!(calls, 1);
}

#[tokio::test]
async fn two_hundred_keys_are_computed_once_each() {
    let server = RedisServer::start();
    let outcomes = run(&server, Kind::Works, 200, 1000).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.calls).sum::<usize>(), 200, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.answered == 1000 && outcome.in_flight == 0), "{outcomes:?}");
}

#[tokio::test]
async fn a_failure_costs_one_call_and_reaches_all_callers() {
    let server = RedisServer::start();
    let outcomes = run(&server, Kind::Fails, 1, 50).await;
    assert_eq!(outcomes.iter().map(|outcome| outcome.calls).sum::<usize>(), 1, "{outcomes:?}");
    assert!(outcomes.iter().all(|outcome| outcome.failed == 50 && outcome.in_flight == 0), "{outcomes:?}");
}

/// Seen to fail with the hit-for-pass marker not stored: processes led one after the other.
#[tokio::test]
async fn private_values_are_not_computed_one_after_the_other() {
    let server = RedisServer::start();
    let outcomes = run(&server, Kind::Private, 1, 25).await;
    assert!(outcomes.iter().all(|outcome| outcome.calls == 25 && outcome.answered == 25), "{outcomes:?}");
    assert_eq!(outcomes.iter().map(|outcome| outcome.led).sum::<u64>(), 1, "the marker was seen: {outcomes:?}");
}

/// A bare connection cannot subscribe: its guard waits by polling.
#[tokio::test(flavor = "multi_thread")]
async fn guards_over_connections_compute_once_as_well() {
    let (server, origin) = (RedisServer::start(), Origin::new());
    let guards = [
        StampedeGuard::new(server.client().get_connection_manager().await.expect("connected")),
        StampedeGuard::new(server.connection().await),
        StampedeGuard::new(server.client()),
    ]
    .map(|guard| guard.store_timeout(30 * SECOND));
    let answers = herd(300, |i| {
        let (guard, origin) = (guards[i % 3].clone(), origin.clone());
        async move { ask(&guard, "k".to_owned(), origin, Kind::Works).await }
    })
    .await;
    assert!(answers.into_iter().all(|answered| answered));
    assert_eq!(origin.calls(), 1);
}

/// Seen to fail with a broken connection kept: after the first runtime it is dead.
#[test]
fn a_guard_outlives_the_runtimes_it_is_used_in() {
    let server = RedisServer::start();
    let guard = StampedeGuard::new(server.client()).store_timeout(30 * SECOND);
    for key in 0..3_u64 {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            assert_eq!(guard.fetch(key, async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
            guard.drain().await;
            assert_eq!(guard.fetch(key, never::<i32>).await.expect("a hit"), 1);
        });
        runtime.shutdown_timeout(SECOND);
    }
    let report = guard.stats();
    assert_eq!((report.misses, report.failed_open), (3, 0), "{report:?}");
}

/// The report of the failure passes through the scripts unchanged: its id finds the error in the process that fetched.
#[tokio::test]
async fn the_kind_of_a_failure_reaches_other_processes() {
    let server = RedisServer::start();
    let [a, b] = [0, 1].map(|_| StampedeGuard::new(server.client()).failure_ttl(30 * SECOND));
    a.fetch("k", async || Err::<u8, _>("no such row")).await.expect_err("it fails");
    a.drain().await;
    let blocked = async |guard: &StampedeGuard| guard.fetch("k", never::<u8>).await.expect_err("blocked");
    for (guard, text) in [(&a, "the fetch failed: no such row"), (&b, "the fetch failed")] {
        let error = blocked(guard).await;
        assert!(error.kind() == ErrorKind::Origin && error.retry_in().is_some(), "{error:?}");
        assert_eq!(format!("{:#}", anyhow::Error::from(error)), text);
    }
    b.invalidate("k").await.expect("acknowledged");
    assert_eq!(a.fetch("k", async || Ok::<_, Down>(1_u8)).await.expect("not blocked"), 1);
    a.drain().await;
}
