//! Two processes invalidate and read at random, while their connections are cut and held at random. No read is older
//! than the bound allows.

use super::{HOUR, NearCacheConfig, Policy, RedisServer, Relay, StampedeGuard};
use crate::{
    Down, MS, SECOND,
    support::{
        child::{self, Env},
        processes,
        relay::Mode,
    },
};
use redis::{AsyncCommands, AsyncConnectionConfig, aio::MultiplexedConnection};
use serde::{Deserialize, Serialize};
use std::{
    collections::HashMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Invalidations per process; both processes make 10,000.
const INVALIDATIONS: u64 = 5_000;
const WRITERS: u64 = 20;
const KEYS: u64 = 200;
const MAX_AGE: Duration = SECOND;

#[derive(Serialize, Deserialize)]
struct Task {
    /// URL of the server, for the origin.
    direct: String,
    /// URLs of the relays, one for each process.
    relayed: Vec<String>,
}

/// What a process has done, by key and version.
#[derive(Default, Serialize, Deserialize)]
struct Log {
    /// Key, version, and the time in microseconds at which the invalidation of all earlier versions was acknowledged.
    invalidated: Vec<(u64, u64, u64)>,
    /// Key, version, and the latest start in microseconds of a read that returned it.
    read: Vec<(u64, u64, u64)>,
    reads: u64,
    copies: u64,
}

/// While the connection is cut, a copy is served for `max_age` at most. Seen to fail when messages were not taken in,
/// with versions taken after the read, and with one invalidation feed for all connections.
#[tokio::test]
async fn no_read_is_older_than_the_bound() {
    let server = RedisServer::start();
    let mut relays = Vec::new();
    for _ in 0..2 {
        relays.push(Relay::to(([127, 0, 0, 1], server.port()).into()).await);
    }
    let relayed = relays.iter().map(|relay| format!("redis://{}", relay.address())).collect();
    let mut children = processes::spawn(2, "near::bound::reader_child", &Task { direct: server.url(), relayed });
    processes::start_together(&mut children).await;
    let trouble = async {
        loop {
            let relay = &relays[fastrand::usize(..2)];
            match fastrand::u8(..4) {
                0 => {
                    relay.set(if fastrand::bool() { Mode::HoldReplies } else { Mode::HoldRequests });
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(..1_500))).await;
                    relay.set(Mode::Pass);
                }
                _ => relay.cut(),
            }
            tokio::time::sleep(Duration::from_millis(fastrand::u64(..3_000))).await;
        }
    };
    let [first, second] = &mut children[..] else { unreachable!("there are two") };
    let logs = tokio::select! {
        logs = async { tokio::join!(first.result::<Log>(), second.result::<Log>()) } => logs,
        () = trouble => unreachable!("it goes on"),
    };
    for child in children {
        child.passed().await;
    }
    let invalidated: Vec<_> = logs.0.invalidated.iter().chain(&logs.1.invalidated).collect();
    let (reads, copies) = (logs.0.reads + logs.1.reads, logs.0.copies + logs.1.copies);
    println!("{reads} reads, {copies} of copies; {} invalidations acknowledged", invalidated.len());
    assert!(copies > 1_000, "{copies} of {reads}");
    for &(key, version, asked) in logs.0.read.iter().chain(&logs.1.read) {
        let newer = invalidated.iter().filter(|(k, v, _)| *k == key && *v > version);
        let Some((_, by, at)) = newer.min_by_key(|(.., at)| at) else { continue };
        let late = Duration::from_micros(asked.saturating_sub(*at));
        assert!(late < MAX_AGE, "key {key}: {version} was served {late:?} after {by} had been announced");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reader_child() {
    let Some(Env { index, task }) = child::enabled::<Task>() else { return };
    let relayed = redis::Client::open(&*task.relayed[index]).expect("a URL");
    let direct = redis::Client::open(task.direct).expect("a URL");
    // Without the default timeout of 500 ms, because the origin of this test is never down, however busy the machine is.
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    let origin = direct.get_multiplexed_async_connection_with_config(&patient).await.expect("the server is up");
    // A flight that misses an invalidation returns old values too. It ends long before the bound.
    let guard = StampedeGuard::new(relayed)
        .policy(Policy::fresh_for(HOUR))
        .lease_ttl(100 * MS)
        .store_timeout(100 * MS)
        .near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(MAX_AGE));
    child::ready_and_wait().await;

    let mut log = Log::default();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let readers: Vec<_> = (0..4).map(|_| tokio::spawn(read(guard.clone(), origin.clone(), stopped.clone()))).collect();
    let writers: Vec<_> =
        (0..WRITERS).map(|_| tokio::spawn(invalidate(index as u64, guard.clone(), origin.clone()))).collect();
    for writer in writers {
        log.invalidated.append(&mut writer.await.expect("no panic"));
    }
    stop.send_replace(true);
    let mut latest = HashMap::new();
    for reader in readers {
        let (reads, read) = reader.await.expect("no panic");
        log.reads += reads;
        for (of, at) in read {
            latest.entry(of).and_modify(|known: &mut u64| *known = (*known).max(at)).or_insert(at);
        }
    }
    log.read = latest.into_iter().map(|((key, version), at)| (key, version, at)).collect();
    log.copies = guard.stats().near_hits;
    child::report(&log);
}

/// Invalidates keys that only this process changes, so that the other process learns of it by message alone.
async fn invalidate(index: u64, guard: StampedeGuard, mut origin: MultiplexedConnection) -> Vec<(u64, u64, u64)> {
    let mut invalidated = Vec::new();
    for _ in 0..INVALIDATIONS / WRITERS {
        let key = 2 * fastrand::u64(..KEYS / 2) + index;
        let version: u64 = origin.incr(origin_key(key), 1).await.expect("an answer");
        if guard.invalidate(key).await.is_ok() {
            invalidated.push((key, version, now()));
        }
        tokio::time::sleep(Duration::from_millis(fastrand::u64(..25))).await;
    }
    invalidated
}

type Latest = HashMap<(u64, u64), u64>;

async fn read(
    guard: StampedeGuard,
    origin: MultiplexedConnection,
    stopped: tokio::sync::watch::Receiver<bool>,
) -> (u64, Latest) {
    let (mut reads, mut latest) = (0, Latest::new());
    while !*stopped.borrow() {
        let key = fastrand::u64(..KEYS);
        for _ in 0..10 {
            let (asked, mut origin) = (now(), origin.clone());
            let fetch = async move || {
                let version: Option<u64> = origin.get(origin_key(key)).await.map_err(|_| Down)?;
                Ok::<_, Down>(version.unwrap_or(0))
            };
            let version = guard.fetch(key, fetch).await.expect("the origin is never down");
            latest.insert((key, version), asked);
            reads += 1;
            tokio::task::yield_now().await;
        }
    }
    (reads, latest)
}

fn origin_key(key: u64) -> String {
    format!("origin:{key}")
}

/// Returns the time in microseconds on the clock that both processes share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since.as_micros().try_into().expect("in 600,000 years")
}
