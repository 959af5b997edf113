//! Faults under load: continuous requests for keys that expire continuously.

use crate::{
    MS, SECOND,
    support::{RedisServer, Relay, herd},
    witness::{MOST_AT_ONCE, Seen, Witness},
    world::guard,
};
use stampede_guard::Policy;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

const PROCESSES: usize = 4;
const CALLERS: usize = 5;
const KEYS: usize = 12;

/// Returns a witness with guards over one server, which stand for processes.
fn witness(client: impl Fn() -> redis::Client) -> Witness {
    let policy = Policy::fresh_for(100 * MS).jitter(0.5);
    Witness::new((0..PROCESSES).map(|_| guard(client()).policy(policy)))
}

/// Runs `happens` while callers keep requesting random keys.
async fn under_load(witness: &Witness, happens: impl Future<Output = ()>) {
    let over = Arc::new(AtomicBool::new(false));
    let load = herd(PROCESSES * CALLERS, |i| {
        let (witness, over, mut dice) = (witness.clone(), over.clone(), fastrand::Rng::with_seed(i as u64));
        async move {
            while !over.load(SeqCst) {
                witness.ask(i % PROCESSES, &format!("key-{}", dice.usize(0..KEYS)), 1).await;
                sleep(3 * MS).await;
            }
        }
    });
    let happens = async {
        happens.await;
        over.store(true, SeqCst);
    };
    tokio::join!(load, happens);
}

/// Runs load without a fault, to connect all guards and to get figures for comparison.
async fn plain(witness: &Witness) -> Seen {
    under_load(witness, sleep(300 * MS)).await;
    let _ = witness.take();
    under_load(witness, sleep(500 * MS)).await;
    witness.take()
}

fn slow(seen: &Seen) -> Vec<usize> {
    (0..PROCESSES).map(|process| seen.slow.get(&process).copied().unwrap_or_default()).collect()
}

fn account(witness: &Witness, seen: &Seen, plain: &Seen) -> String {
    format!(
        "{} requests, {} without an answer or with a wrong one; the slowest took {:?}, {:?} more than without the fault; \
         over 240 ms per process: {:?}; at most {} concurrent calls of one process for one key",
        seen.requests,
        seen.broken.len(),
        seen.slowest,
        seen.slowest.saturating_sub(plain.slowest),
        slow(seen),
        witness.peak(),
    )
}

async fn ends_well(witness: &Witness) {
    for process in 0..PROCESSES {
        assert_eq!(witness.guard(process).drain_within(60 * SECOND).await, 0);
        assert_eq!(witness.guard(process).in_flight(), 0);
    }
    assert!(witness.peak() <= MOST_AT_ONCE, "{} concurrent calls of one process for one key", witness.peak());
}

async fn killed_under_load(down: Duration) {
    let server = RedisServer::start();
    let witness = witness(|| server.client());
    let plain = plain(&witness).await;
    let mut recovery = Duration::ZERO;
    under_load(&witness, async {
        server.kill();
        witness.struck();
        sleep(down).await;
        server.restart().await;
        recovery = witness.shared_again().await;
        sleep(300 * MS).await;
    })
    .await;
    let seen = witness.take();
    ends_well(&witness).await;
    println!("killed for {down:?} under load: {}; shared again after {recovery:?}", account(&witness, &seen, &plain));
    assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_kill_under_load_fails_no_request() {
    killed_under_load(SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn long_redis_outage_under_load_fails_no_request() {
    for _ in 0..3 {
        killed_under_load(6 * SECOND).await;
    }
}

/// Only the requests in flight when the server begins to hang wait for it. Afterwards one probe of the circuit breaker
/// after the other does.
///
/// Seen to fail (every request waits) without the breaker.
async fn stopped_under_load(hangs: Duration) {
    let server = RedisServer::start();
    let witness = witness(|| server.client());
    let plain = plain(&witness).await;
    let unanswered = || (0..PROCESSES).map(|process| witness.guard(process).stats().store_errors).collect::<Vec<_>>();
    let (before, mut during, mut probes, mut recovery) = (unanswered(), Vec::new(), 0, Duration::ZERO);
    under_load(&witness, async {
        let stopped = Instant::now();
        server.pause();
        witness.struck();
        sleep(hangs).await;
        server.resume();
        during = unanswered();
        probes = stopped.elapsed().as_millis().div_ceil(250) as u64;
        recovery = witness.shared_again().await;
    })
    .await;
    let seen = witness.take();
    ends_well(&witness).await;
    let unanswered: Vec<_> = during.into_iter().zip(before).map(|(during, before)| during - before).collect();
    println!("stopped for {hangs:?} under load: {}; shared again after {recovery:?}", account(&witness, &seen, &plain));
    println!("stopped for {hangs:?} under load: unanswered operations per process: {unanswered:?}");
    assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
    // Per caller: one lookup, or a fill that is sent twice and the release of its lease. Reads and writes have a breaker
    // each, and so a probe each.
    let under_way = 3 * CALLERS as u64;
    assert!(
        unanswered.iter().all(|unanswered| *unanswered <= under_way + 2 * probes),
        "{unanswered:?}, {probes} probes"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn hanging_server_costs_one_probe_per_store_timeout() {
    stopped_under_load(4 * SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn long_hang_costs_one_probe_per_store_timeout() {
    stopped_under_load(20 * SECOND).await;
}

/// redis-rs has handed replies to the wrong requests after a reconnect.
#[tokio::test(flavor = "multi_thread")]
async fn killed_connections_under_load_mix_up_no_values() {
    let server = RedisServer::start();
    let witness = witness(|| server.client());
    let plain = plain(&witness).await;
    let mut killed = 0;
    under_load(&witness, async {
        let mut redis = server.connection().await;
        for round in 0..100 {
            let kind = if round % 4 == 3 { "pubsub" } else { "normal" };
            let clients: usize = redis::cmd("CLIENT")
                .arg(&["KILL", "TYPE", kind, "SKIPME", "yes"])
                .query_async(&mut redis)
                .await
                .expect("the server is up");
            killed += clients;
            sleep(20 * MS).await;
        }
        witness.shared_again().await;
    })
    .await;
    let seen = witness.take();
    ends_well(&witness).await;
    println!("{killed} connections killed under load: {}", account(&witness, &seen, &plain));
    assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
    assert!(killed >= 100, "{killed}");
}

/// A client whose replies are out of step takes each reply for the reply to another request. No caller may get the
/// value of another key.
///
/// Seen to fail if `Entry::from_envelope` does not compare the hash of the key.
#[tokio::test(flavor = "multi_thread")]
async fn shifted_replies_mix_up_no_values() {
    let server = RedisServer::start();
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    let witness = witness(|| relay.client());
    let plain = plain(&witness).await;
    under_load(&witness, async {
        for _ in 0..10 {
            relay.swallow_reply();
            sleep(150 * MS).await;
        }
        witness.shared_again().await;
    })
    .await;
    let seen = witness.take();
    ends_well(&witness).await;
    println!("replies shifted under load: {}", account(&witness, &seen, &plain));
    assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
}
