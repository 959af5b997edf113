//! The server's time for a fill by the size of its entry: as an argument of the script, and staged.

use crate::{
    Extent,
    kit::{Usage, head, row},
    support::RedisServer,
};
use bytes::Bytes;
use stampede_guard::{
    RedisStore,
    store::{
        CacheKey, Entry, FillCondition, FillOutcome, Inbox, Kind, Lease, LeaseReply, LeaseRequest, Lifetimes, Meta,
        Store, Timestamp, Token, Write,
    },
};
use std::time::Duration;

pub(crate) async fn measure(extent: Extent) {
    let server = RedisServer::start();
    // Without the right to `RENAME` all entries become arguments of the script, once they were staged in vain.
    let rules = ["SETUSER", "inline", "on", ">secret", "~*", "&*", "+@all", "-rename"];
    let mut redis = server.connection().await;
    redis::cmd("ACL").arg(&rules).exec_async(&mut redis).await.expect("a user");
    let inline = redis::Client::open(format!("redis://inline:secret@127.0.0.1:{}", server.port())).expect("a client");
    let stores = [RedisStore::new(inline), RedisStore::new(server.client())];
    head(&["bytes", "without `RENAME`, µs", "with reading and writing", "as usual, µs", "with reading and writing"]);
    for &bytes in extent.of(&[100, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20]) {
        let times = extent.times((20_000_000 / (bytes + 10_000)).clamp(50, 200));
        let mut best = [f64::INFINITY; 4];
        for _ in 0..extent.times(10) {
            for (store, best) in stores.iter().zip(best.chunks_exact_mut(2)) {
                for (figure, best) in figures(&server, store, times, bytes).await.into_iter().zip(best) {
                    *best = best.min(figure);
                }
            }
        }
        let mut cells = vec![bytes.to_string()];
        cells.extend(best.map(|figure| format!("{figure:.1}")));
        row(&cells);
    }
}

/// Returns the time of the server's commands, and its processor time, in microseconds for each fill.
async fn figures(server: &RedisServer, store: &RedisStore, times: usize, bytes: usize) -> [f64; 2] {
    let keys = leases(store, times).await;
    let mut redis = server.connection().await;
    redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut redis).await.expect("the server is up");
    let before = Usage::of(server).await;
    fill(store, keys, bytes).await;
    let cpu = before.since(server).await.cpu.as_secs_f64() * 1e6;
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut redis).await.expect("the server is up");
    // The time of `EVALSHA` contains the commands of the script.
    let time = |name: &str| -> f64 {
        let of = |line: &str| line.strip_prefix(name)?.split_once("usec=")?.1.split(',').next()?.parse().ok();
        stats.lines().find_map(of).unwrap_or_default()
    };
    // Staged entries are set beside the script. Smaller ones are set by it, so that their `SET` counts twice.
    let commands = time("cmdstat_evalsha:") + if bytes > 3_900 { time("cmdstat_set:") } else { 0.0 };
    server.flushall().await;
    [commands / times as f64, cpu / times as f64]
}

async fn leases(store: &RedisStore, times: usize) -> Vec<(CacheKey, Lease)> {
    let mut granted = Vec::with_capacity(times);
    for number in 0..times {
        let key = CacheKey::new("sg", 0, format!("page/{number}"));
        let request = LeaseRequest::new(Token::unique(Inbox::unique()), AN_HOUR);
        let LeaseReply::Granted { lease, .. } = store.get_or_lease(&key, request).await.expect("the server is up")
        else {
            panic!("a lease")
        };
        granted.push((key, lease));
    }
    granted
}

async fn fill(store: &RedisStore, keys: Vec<(CacheKey, Lease)>, bytes: usize) {
    let payload = Bytes::from(vec![b'x'; bytes]);
    for (key, lease) in keys {
        let mut meta = Meta::new(Kind::Value, lease.token, Timestamp::now());
        meta.lifetimes = Lifetimes::fresh_for(AN_HOUR);
        let write = Write::new(key.clone(), Entry::new(meta, payload.clone()));
        let filled = store.fill(&key, FillCondition::Lease(lease), vec![write]).await.expect("the server is up");
        assert_eq!(filled, FillOutcome::Stored);
    }
}

const AN_HOUR: Duration = Duration::from_secs(3600);
