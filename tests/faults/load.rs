//! Faults under load: requests come all the time, for keys that expire all the time.

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

/// Guards over one server, as if in processes of their own.
fn witness(client: impl Fn() -> redis::Client) -> Witness {
    let policy = Policy::fresh_for(100 * MS).jitter(0.5);
    Witness::new((0..PROCESSES).map(|_| guard(client()).policy(policy)))
}

/// Each caller asks for one key after the other, at random, until what is to happen has happened.
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

/// A while of load without a fault, for the sake of comparison, and to connect.
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
        "{} requests, {} of them not answered or not with what they asked for; the slowest took {:?}, {:?} more than \
         before; of each process {:?} took more than 240 ms; at most {} calls of one process for one key at once",
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
        witness.guard(process).shutdown().await;
        assert_eq!(witness.guard(process).in_flight(), 0);
    }
    assert!(witness.peak() <= MOST_AT_ONCE, "{} calls of one process for one key at once", witness.peak());
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
async fn redis_killed_under_load_fails_nobody() {
    killed_under_load(SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn redis_killed_for_long_under_load_fails_nobody() {
    for _ in 0..3 {
        killed_under_load(6 * SECOND).await;
    }
}

/// A server that hangs is waited for by those who are under way when it begins, and by a probe per window of the breaker
/// afterwards. Seen to fail (each request pays) without the breaker.
async fn stopped_under_load(hangs: Duration) {
    let server = RedisServer::start();
    let witness = witness(|| server.client());
    let plain = plain(&witness).await;
    let unanswered = || (0..PROCESSES).map(|process| witness.guard(process).report().store_errors).collect::<Vec<_>>();
    let (before, mut during, mut windows, mut recovery) = (unanswered(), Vec::new(), 0, Duration::ZERO);
    under_load(&witness, async {
        let stopped = Instant::now();
        server.pause();
        witness.struck();
        sleep(hangs).await;
        server.resume();
        during = unanswered();
        windows = stopped.elapsed().as_millis().div_ceil(500) as u64;
        recovery = witness.shared_again().await;
    })
    .await;
    let seen = witness.take();
    ends_well(&witness).await;
    let unanswered: Vec<_> = during.into_iter().zip(before).map(|(during, before)| during - before).collect();
    println!("stopped for {hangs:?} under load: {}; shared again after {recovery:?}", account(&witness, &seen, &plain));
    println!("stopped for {hangs:?} under load: of each process {unanswered:?} operations were not answered");
    assert!(seen.broken.is_empty(), "{:#?}", seen.broken);
    // A lookup each, or a fill that is sent twice and a lease that is given back.
    let under_way = 3 * CALLERS as u64;
    assert!(
        unanswered.iter().all(|unanswered| *unanswered <= under_way + windows),
        "{unanswered:?}, {windows} windows"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_under_load_is_waited_for_once_per_window() {
    stopped_under_load(4 * SECOND).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn a_server_that_hangs_for_long_under_load_is_waited_for_once_per_window() {
    stopped_under_load(20 * SECOND).await;
}

/// redis-rs has handed replies to the wrong requests on a connection that was made again.
#[tokio::test(flavor = "multi_thread")]
async fn connections_killed_a_hundred_times_under_load_mix_nothing_up() {
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

/// A client that has lost count of its replies takes each one for another's: whatever comes of it, nobody gets the value
/// of another key. Seen to fail with the hash of the key not compared in `Entry::from_envelope`.
#[tokio::test(flavor = "multi_thread")]
async fn replies_that_are_taken_for_others_mix_nothing_up() {
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
