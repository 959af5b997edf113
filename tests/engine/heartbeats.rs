//! Heartbeats: one task of the engine begins the heartbeats of a runtime, for the leases whose fetches still run then.

use crate::{Down, MS, SECOND};
use futures_util::future::join_all;
use stampede_guard::{
    StampedeGuard,
    testing::{FakeRedis, Fault, Operation::Extend, Origin},
};
use std::time::Duration;
use tokio::{
    runtime::{Builder, Handle},
    task::JoinHandle,
    time::{Instant, sleep},
};

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Spawns one task that fetches these keys at the same time. Returns when all fetches have begun.
async fn fetch_all(guard: &StampedeGuard, keys: &[&str], origin: &Origin) -> JoinHandle<()> {
    let callers: Vec<_> = keys
        .iter()
        .map(|key| {
            let (guard, key, fetch) = (guard.clone(), (*key).to_owned(), origin.fetch(1));
            async move { assert_eq!(guard.fetch(key, fetch).await.expect("an answer"), 1) }
        })
        .collect();
    let callers = tokio::spawn(async move {
        join_all(callers).await;
    });
    origin.arrived(keys.len()).await;
    callers
}

/// Seen to fail (101 tasks) with a task for each lease, and (no lease left) when the task does not extend a second time.
#[tokio::test(start_paused = true)]
async fn heartbeats_share_a_task_until_they_begin() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let (node, names) = (server.node(), (0..50).map(|i| i.to_string()).collect::<Vec<_>>());
    let (guard, before) = (node.guard(), tasks());
    let keys: Vec<_> = names.iter().map(String::as_str).collect();
    let callers = fetch_all(&guard, &keys, &origin).await;
    assert_eq!(tasks() - before, 1 + keys.len() + 1, "callers, leaders, heartbeats");
    for _ in 0..3 {
        sleep(10 * SECOND).await;
        assert_eq!(server.leases(), keys.len());
        assert_eq!(tasks() - before, 1 + keys.len() + keys.len(), "callers, leaders, heartbeats that have begun");
    }
    origin.open();
    callers.await.expect("no panic");
    assert_eq!((guard.drain().await, server.leases()), (0, 0));
    assert_eq!(node.asked(Extend), 30 * keys.len(), "one each second");
}

/// Seen to fail (the second lease expires) when one extension is awaited before the next one is sent.
#[tokio::test(start_paused = true)]
async fn heartbeat_of_a_lease_does_not_wait_for_a_slow_extension() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let node = server.node();
    node.once(Extend, Fault::Hangs);
    let guard = node.guard().store_timeout(100 * SECOND);
    let callers = fetch_all(&guard, &["slow", "other"], &origin).await;
    sleep(20 * SECOND).await;
    assert_eq!((server.is_led("slow"), server.is_led("other")), (false, true));
    origin.open();
    callers.await.expect("no panic");
    assert!(server.holds("other"), "its fill was not refused");
}

/// Seen to fail (another task for each fetch) with a task for each lease.
#[tokio::test(start_paused = true)]
async fn short_fetches_share_a_heartbeat_task_that_no_drain_awaits() {
    let (node, origin, before) = (FakeRedis::new().node(), Origin::new(), tasks());
    let guard = node.guard();
    let began = Instant::now();
    for key in 0..100_u64 {
        assert_eq!(guard.fetch(key, origin.fetch(key)).await.expect("an answer"), key);
        assert_eq!((guard.drain().await, tasks() - before), (0, 1));
    }
    assert_eq!((began.elapsed(), node.asked(Extend)), (Duration::ZERO, 0));
}

/// Seen to fail when the task stays, when it sleeps until its first lease would have been extended, and when the engine
/// does not end it.
#[tokio::test(start_paused = true)]
async fn heartbeat_task_ends_after_its_last_lease_or_with_the_engine() {
    for (lease_ttl, is_dropped) in [(3, false), (300, false), (3, true)] {
        let (origin, before) = (Origin::new(), tasks());
        let guard = FakeRedis::new().node().guard().lease_ttl(lease_ttl * SECOND);
        assert_eq!(guard.fetch("k", origin.fetch(1)).await.expect("an answer"), 1);
        sleep(10 * MS).await;
        assert_eq!(tasks() - before, 1, "the heartbeats");
        if is_dropped {
            drop(guard);
            sleep(10 * MS).await;
        } else {
            sleep(SECOND).await;
        }
        assert_eq!(tasks(), before, "{lease_ttl} s");
    }
}

/// Seen to fail (the short lease expires) when the task is not woken before the long lease is due.
#[tokio::test(start_paused = true)]
async fn heartbeat_of_a_short_lease_comes_in_time_after_a_long_one() {
    let (server, origin) = (FakeRedis::new(), Origin::gated());
    let guard = server.node().guard().lease_ttl(300 * SECOND);
    let long = fetch_all(&guard, &["long"], &origin).await;
    let short = fetch_all(&guard.clone().lease_ttl(300 * MS), &["short"], &Origin::new().takes(50 * SECOND)).await;
    sleep(40 * SECOND).await;
    assert!(server.is_led("short") && server.is_led("long"));
    origin.open();
    short.await.expect("no panic");
    long.await.expect("no panic");
}

/// Seen to fail (the lease is extended until the thread is free) when the fetch timeout does not end the heartbeat.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heartbeat_of_a_fetch_that_blocks_ends_with_its_fetch_timeout() {
    let node = FakeRedis::new().node();
    let guard = node.guard().lease_ttl(300 * MS).fetch_timeout(SECOND);
    let (thread_is_free, blocks) = std::sync::mpsc::channel();
    let fetch = async move || {
        let _ = blocks.recv();
        Ok::<_, Down>(1)
    };
    let caller = tokio::spawn(async move { guard.fetch("k", fetch).await });
    sleep(3 * SECOND).await;
    let extended = node.asked(Extend);
    thread_is_free.send(()).expect("the fetch blocks");
    let _ = caller.await.expect("no panic");
    assert!(extended <= 10, "{extended}");
}

/// Seen to fail (one more extension) when the heartbeat goes on until it finds that the lease is lost.
#[tokio::test(start_paused = true)]
async fn heartbeat_ends_with_its_fetch() {
    let (node, origin) = (FakeRedis::new().node(), Origin::gated());
    let (guard, takes) = (node.guard(), Origin::new().takes(3500 * MS));
    let other = fetch_all(&guard.clone().lease_ttl(300 * SECOND), &["other"], &origin).await; // keeps the task
    fetch_all(&guard, &["k"], &takes).await.await.expect("no panic");
    sleep(50 * SECOND).await;
    assert_eq!(node.asked(Extend), 3);
    origin.open();
    other.await.expect("no panic");
}

/// The first runtime has the task, and is not driven, or stops. Seen to fail (the other process fetches) with one task
/// for all runtimes.
#[test]
fn heartbeat_runs_in_the_runtime_of_its_fetch() {
    let paused = || Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    for stops in [false, true] {
        let server = FakeRedis::new();
        let (guard, other, origin) = (server.node().guard(), server.node().guard(), Origin::new());
        let first = paused();
        assert_eq!(first.block_on(guard.fetch("a", origin.fetch(1))).expect("an answer"), 1);
        let first = (!stops).then_some(first);
        let slow = origin.clone().takes(20 * SECOND);
        let answers =
            paused().block_on(async { tokio::join!(guard.fetch("b", slow.fetch(2)), other.fetch("b", slow.fetch(2))) });
        assert_eq!((answers.0.expect("an answer"), answers.1.expect("an answer")), (2, 2));
        assert_eq!(origin.calls(), 2);
        drop(first);
    }
}

/// Real time and real threads: leases begin and end while the task extends others, ends and starts again.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn heartbeats_end_after_leases_that_begin_and_end_at_any_time() {
    let (server, before) = (FakeRedis::new(), tasks());
    let node = server.node();
    let guard = node.guard().lease_ttl(12 * MS);
    let callers = (0..16_u64).map(|caller| {
        let guard = guard.clone();
        tokio::spawn(async move {
            for n in 0..20 {
                let takes = Duration::from_micros((caller * 977 + n * 1511) % 9000);
                let fetch = async move || {
                    sleep(takes).await;
                    Ok::<_, Down>(n)
                };
                assert_eq!(guard.fetch(caller << 8 | n, fetch).await.expect("an answer"), n);
                if n % 5 == caller % 5 {
                    guard.drain().await;
                }
            }
        })
    });
    for caller in join_all(callers).await {
        caller.expect("no panic");
    }
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
    while tasks() > before {
        tokio::task::yield_now().await; // until the task finds that it has no lease
    }
    assert_eq!(server.leases(), 0);
    assert!(node.asked(Extend) > 0);
}
