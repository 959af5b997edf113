//! Leaders that are killed or dropped, and fetches that are overtaken by an invalidation.

use crate::{
    Down, MS, SECOND,
    support::{
        Origin, RedisServer,
        child::{self, Env},
        eventually, herd, processes,
    },
};
use redis::AsyncTypedCommands;
use serde::{Deserialize, Serialize};
use stampede_guard::{Cache, FetchOutcome, Policy, StampedeGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

const LEASE: Duration = Duration::from_millis(300);

fn guard(url: &str) -> StampedeGuard {
    StampedeGuard::new(redis::Client::open(url).expect("a client")).lease_ttl(LEASE).store_timeout(30 * SECOND)
}

#[derive(Serialize, Deserialize)]
struct Leads {
    url: String,
    key: String,
}

/// Leads in a child process, reports to the parent, and then computes until the process is killed.
#[tokio::test(flavor = "multi_thread")]
async fn leading_child() {
    let Some(Env { task: Leads { url, key }, .. }) = child::enabled::<Leads>() else { return };
    let guard = guard(&url);
    let fetch = async || {
        child::ready_and_wait().await;
        Ok::<_, Down>("old".to_owned())
    };
    guard.fetch(key, fetch).await.expect("an answer");
}

async fn leading(server: &RedisServer, key: &str) -> processes::Child {
    let task = Leads { url: server.url(), key: key.to_owned() };
    let mut child = processes::spawn(1, "takeover::leading_child", &task).pop().expect("a child");
    child.wait_ready().await;
    child
}

#[tokio::test]
async fn one_process_takes_over_from_a_killed_leader() {
    let server = RedisServer::shared();
    let mut leader = leading(server, "killed").await;
    let (origin, guards) = (Origin::new(), [(); 3].map(|()| guard(&server.url())));
    let callers = herd(60, |i| {
        let (guard, origin) = (guards[i % 3].clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(20 * MS).await;
                Ok::<_, Down>("new".to_owned())
            };
            guard.fetch("killed", fetch).await.expect("an answer")
        }
    });
    leader.kill().await;
    assert_eq!(callers.await, vec!["new"; 60]);
    assert_eq!(origin.calls(), 1);
}

/// The lease is released at once and not when it expires, so that no process waits for a dropped caller. Seen to fail
/// when dropping a `LeaseGuard` did nothing.
#[tokio::test]
async fn a_dropped_scoped_leader_releases_its_lease() {
    let server = RedisServer::shared();
    let [a, b] = [(); 2].map(|()| guard(&server.url()).lease_ttl(1000 * SECOND).wait_timeout(1000 * SECOND));
    let origin = Origin::gated();
    let (a, b) = (a.cache("count"), b.cache("count"));
    let stuck = a.entry("scoped").fetch_scoped(|| async { Ok::<_, Down>(origin.call().await) });
    tokio::select! {
        _ = stuck => unreachable!("the gate is closed"),
        () = origin.arrived(1) => {}
    }
    let next = b.fetch("scoped", async || Ok::<_, Down>(2));
    let next = tokio::time::timeout(20 * SECOND, next).await.expect("the lease is free");
    assert_eq!(next.expect("an answer"), 2);
}

/// The origin is a version counter, incremented before each invalidation. A later request over any guard that knows of
/// the invalidation sees at least that version. The value that is stored in the end is the newest.
#[tokio::test(flavor = "multi_thread")]
async fn a_fill_begun_before_an_invalidation_is_not_stored() {
    let server = RedisServer::shared();
    let policy = Policy::fresh_for(20 * MS).stale_while_revalidate(SECOND).stale_if_error(SECOND);
    let guards = [(); 3].map(|()| guard(&server.url()).namespace("versions").policy(policy));
    let version = Arc::new(AtomicUsize::new(0));
    herd(12, |i| {
        let (guards, version) = (guards.clone(), version.clone());
        async move {
            for round in 0..40 {
                let guard = &guards[(i + round) % 3];
                let mut floor = 0;
                if (i + round) % 5 == 0 {
                    floor = version.fetch_add(1, SeqCst) + 1;
                    guard.invalidate("k").await.expect("acknowledged");
                }
                let read = version.clone();
                let fetch = async move || {
                    let seen = read.load(SeqCst);
                    tokio::time::sleep(2 * MS).await;
                    Ok::<_, Down>(seen)
                };
                let seen = guard.fetch("k", fetch).await.expect("an answer");
                assert!(seen >= floor, "version {seen} after {floor} was written and invalidated");
            }
        }
    })
    .await;
    let last = version.fetch_add(1, SeqCst) + 1;
    guards[0].invalidate("k").await.expect("acknowledged");
    for guard in &guards {
        guard.drain().await;
        let read = version.clone();
        let seen = guard.fetch("k", async move || Ok::<_, Down>(read.load(SeqCst))).await.expect("an answer");
        assert_eq!(seen, last);
    }
}

/// Many public futures at once, each dropped at a random moment: no flight and no lease is left.
#[tokio::test(flavor = "multi_thread")]
async fn dropping_any_future_leaves_no_flight_and_no_lease() {
    let server = RedisServer::start();
    let guards = [(); 2].map(|()| {
        guard(&server.url())
            .policy(Policy::fresh_for(2 * MS).stale_while_revalidate(5 * MS))
            .lease_ttl(60 * SECOND) // no lease expires within the test
            .failure_ttl(2 * MS)
            .uncacheable_ttl(5 * MS)
    });
    herd(60, |i| {
        let (numbers, mut dice) = (guards[i % 2].cache("number"), fastrand::Rng::with_seed(i as u64));
        async move {
            for _ in 0..20 {
                let patience = Duration::from_micros(dice.u64(0..6000));
                let _ = tokio::time::timeout(patience, one_of_everything(&numbers, &mut dice)).await;
            }
        }
    })
    .await;
    for guard in &guards {
        guard.drain().await;
        eventually("every flight has ended", async || guard.in_flight() == 0).await;
    }
    let mut redis = server.connection().await;
    for name in redis.keys("*:l").await.expect("an answer") {
        let lease: Option<String> = redis.get(&name).await.expect("an answer");
        assert!(!lease.as_deref().is_some_and(|lease| lease.starts_with('H')), "{name} is held: {lease:?}");
    }
}

async fn one_of_everything(numbers: &Cache<u64>, dice: &mut fastrand::Rng) {
    let (key, pause) = (dice.u64(0..4), Duration::from_micros(dice.u64(0..2000)));
    let fetch = async move || {
        tokio::time::sleep(pause).await;
        Ok::<_, Down>(7_u64)
    };
    match dice.u8(0..6) {
        0 => drop(numbers.invalidate(key).await),
        1 | 2 => drop(numbers.entry(key).fetch_scoped(|| fetch()).await),
        3 => drop(numbers.fetch(key, async || Err::<u64, _>(Down)).await),
        4 => drop(numbers.entry(key).fetch_with(async |_| Ok::<_, Down>(FetchOutcome::new(7).private())).await),
        _ => drop(numbers.fetch(key, fetch).await),
    }
}
