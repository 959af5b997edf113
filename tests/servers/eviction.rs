//! A server with too little memory. The cost is printed, and recorded in src/guide/memory.md.

use crate::{
    Down, MS, SECOND,
    kit::{calls_of_a_herd, command, patient},
    never,
    support::{Origin, RedisServer, eventually, herd},
};
use redis::AsyncTypedCommands;
use stampede_guard::{Policy, StampedeGuard};
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};
use tokio::task::JoinSet;

fn server(policy: &str) -> RedisServer {
    RedisServer::with(&["--maxmemory", "4mb", "--maxmemory-policy", policy])
}

fn guards(server: &RedisServer) -> [StampedeGuard; 2] {
    [(); 2].map(|()| patient(server.client()).policy(Policy::fresh_for(60 * SECOND)))
}

/// Starts another application that keeps writing. It stops when the returned set is dropped.
pub(crate) async fn crowd(server: &RedisServer) -> JoinSet<()> {
    let (mut redis, mut crowd) = (server.connection().await, JoinSet::new());
    let junk = "x".repeat(20_000);
    let mut write = async move |i: u32| {
        // A full server answers with an error, which is ignored.
        let _ = redis.pset_ex(format!("junk {i}"), &junk, 60_000).await;
    };
    for i in 0..300 {
        write(i).await;
    }
    crowd.spawn(async move {
        for i in 300.. {
            write(i).await;
            tokio::time::sleep(MS).await;
        }
    });
    crowd
}

/// Sends herds to new keys while the other application writes. All callers are answered. Returns the number of fetches.
async fn herds(policy: &str) -> usize {
    let server = server(policy);
    let guards = guards(&server);
    calls_of_a_herd(&guards, "warm-up").await;
    let _crowd = crowd(&server).await;
    let mut calls = 0;
    for key in 0..HERDS {
        calls += calls_of_a_herd(&guards, &format!("herd {key}")).await;
    }
    let fenced: u64 = guards.iter().map(|guard| guard.stats().fenced).sum();
    println!("{policy}: {HERDS} herds of 40 over two processes in a crowd, {calls} calls, {fenced} fenced");
    calls
}

/// Leases are younger than the keys that they compete with, so they are evicted last.
#[tokio::test]
async fn allkeys_lru_keeps_herds_coalesced() {
    assert!(herds("allkeys-lru").await <= HERDS + HERDS / 4);
}

#[tokio::test]
async fn allkeys_lfu_keeps_herds_coalesced() {
    assert!(herds("allkeys-lfu").await <= HERDS + HERDS / 4);
}

/// Leases expire before all other keys, so they are evicted first.
#[tokio::test]
async fn volatile_ttl_fails_no_caller() {
    herds("volatile-ttl").await;
}

#[tokio::test]
async fn noeviction_fails_no_caller() {
    herds("noeviction").await;
}

/// The version of a key at the origin, and the version of its last invalidation.
#[derive(Default)]
struct Row {
    version: AtomicU64,
    invalidated: AtomicU64,
}

/// A value: its key, its version and a filler.
type Value = (usize, u64, String);

async fn read(guard: &StampedeGuard, rows: &Arc<Vec<Row>>, i: usize) -> Value {
    let rows = rows.clone();
    let fetch = async move || Ok::<_, Down>((i, rows[i].version.load(SeqCst), "x".repeat(20_000)));
    guard.fetch(i as u64, fetch).await.expect("an answer")
}

/// Eight readers share more values than fit in memory, and sometimes invalidate one. No reader gets the value of
/// another key or a value that it has invalidated, and no such value is left in the end.
async fn load(policy: &str) {
    let server = server(policy);
    let (guards, rows) = (guards(&server), Arc::new((0..KEYS).map(|_| Row::default()).collect::<Vec<_>>()));
    let readers = herd(8, |reader| {
        let (guards, rows) = (guards.clone(), rows.clone());
        async move {
            for round in 0..ROUNDS {
                let i = fastrand::usize(..KEYS);
                // Each key is invalidated in one process, which therefore knows of the invalidation.
                let (home, other) = (&guards[i % 2], &guards[(i + 1) % 2]);
                if (reader + round) % 10 == 0 {
                    let version = rows[i].version.fetch_add(1, SeqCst) + 1;
                    home.invalidate(i as u64).await.expect("acknowledged");
                    rows[i].invalidated.fetch_max(version, SeqCst);
                }
                let least = rows[i].invalidated.load(SeqCst);
                let (key, version, _) = read(home, &rows, i).await;
                assert!(key == i && version >= least, "{key} {version}, and not {i} {least}");
                assert_eq!(read(other, &rows, i).await.0, i);
            }
        }
    });
    readers.await;
    let [mut hit, mut filled] = [0; 2];
    for guard in &guards {
        guard.drain().await;
        assert_eq!(guard.in_flight(), 0);
        let report = guard.stats();
        (hit, filled) = (hit + report.hits, filled + report.misses);
    }
    let evicted = command::<redis::InfoDict>(&server, "INFO stats").await.get::<u64>("evicted_keys").expect("a number");
    println!(
        "{policy}: {} questions for {KEYS} values of 20 kB in 4 MB, {hit} hits, {filled} filled, {evicted} evicted",
        16 * ROUNDS
    );
    assert!(hit > 0 && (evicted > 0 || policy == "noeviction"));
    let staged: Vec<String> = command(&server, "KEYS *:s:*").await;
    assert_eq!(staged, [""; 0], "every value was large enough to be staged");
    let fresh = patient(server.client());
    for (i, row) in rows.iter().enumerate() {
        assert!(read(&fresh, &rows, i).await.1 >= row.invalidated.load(SeqCst), "{i} is stale");
    }
}

#[tokio::test]
async fn under_load_allkeys_lru_serves_nothing_stale() {
    load("allkeys-lru").await;
}

#[tokio::test]
async fn under_load_volatile_ttl_serves_nothing_stale() {
    load("volatile-ttl").await;
}

#[tokio::test]
async fn under_load_a_full_server_serves_nothing_stale() {
    load("noeviction").await;
}

/// A full server still serves hits, and an invalidation frees memory.
#[tokio::test]
async fn full_server_serves_hits_and_accepts_invalidation() {
    let server = server("noeviction");
    let guards = guards(&server);
    calls_of_a_herd(&guards, "kept").await;
    let mut crowd = crowd(&server).await;
    calls_of_a_herd(&guards, "new").await;
    assert_eq!(guards[0].fetch("kept", never::<i32>).await.expect("a hit"), 1);
    crowd.shutdown().await;
    guards[0].invalidate("kept").await.expect("acknowledged");
}

/// The lease is released at once although nothing could be stored, so the waiters do not wait for its expiry.
///
/// Seen to fail if neither the refused fill nor the release after it frees the lease.
#[tokio::test]
async fn refused_fill_on_full_server_frees_waiters() {
    let (server, origin) = (RedisServer::start(), Origin::gated());
    let guards = guards(&server).map(|guard| guard.lease_ttl(1000 * SECOND).wait_timeout(1000 * SECOND));
    let callers = herd(40, |i| {
        let (guard, origin) = (guards[i % 2].clone(), origin.clone());
        async move { guard.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await }
    });
    let fill = async {
        origin.arrived(1).await;
        eventually("the other process waits", async || command::<usize>(&server, "STRLEN {sg:rk}:l").await > 34).await;
        command::<()>(&server, "CONFIG SET maxmemory 1").await;
        origin.open();
    };
    let answers = async { tokio::join!(callers, fill).0 };
    let answers = tokio::time::timeout(20 * SECOND, answers).await.expect("the lease was released");
    assert!(answers.into_iter().all(|answer| answer.is_ok()));
    assert_eq!(origin.calls(), 2, "one per process");
}

const HERDS: usize = 20;
const KEYS: usize = 300;
const ROUNDS: usize = 200;
