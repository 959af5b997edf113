//! The costs of single parts: envelopes, codecs, lock recipes.
//!
//! ```text
//! cargo bench --bench parts --features json,postcard     # without these features: bincode alone
//! ```
//!
//! The cost of a codec is the difference of two embedded hits: `fetch` decodes, `fetch_arc` shares the decoded value.
//! Locks are acquired and released by one client without competitors, over a server started by the bench. The other
//! recipes are measured by `tools/lock-table`.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "work/row.rs"]
mod row;

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use row::Row;
use stampede_guard::{
    Codec, Lock, Policy, StampedeGuard,
    lock::{FencedLock, SetPx},
    store::{CacheKey, Entry, Inbox, Kind, Lifetimes, Meta, Timestamp, Token},
};
use stampede_guard_support::RedisServer;
use std::{convert::Infallible, hint::black_box, time::Duration};
use tokio::runtime::{self, Runtime};

criterion_group! {
    name = parts;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = envelopes, codecs, locks
}
criterion_main!(parts);

fn envelopes(criterion: &mut Criterion) {
    let at = CacheKey::new("sg", 0, "user:42");
    let lifetimes = Lifetimes::fresh_for(Duration::from_secs(60));
    let id = Token::unique(Inbox::unique());
    let mut meta = Meta::new(Kind::Value, id, Timestamp::now());
    (meta.cost, meta.lifetimes, meta.codec) = (Duration::from_millis(5), lifetimes, 1);
    let mut group = criterion.benchmark_group("envelope");
    for (name, bytes) in [("100B", 100), ("1KiB", 1 << 10), ("64KiB", 64 << 10)] {
        let entry = Entry::new(meta, Bytes::from(vec![b'x'; bytes]));
        let envelope = entry.to_envelope(&at, 0);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("write/{name}"), |b| b.iter(|| entry.to_envelope(black_box(&at), 0)));
        group.bench_function(format!("read/{name}"), |b| b.iter(|| Entry::from_envelope(&at, black_box(&envelope), 0)));
    }
    group.finish();
}

fn codecs(criterion: &mut Criterion) {
    let runtime = runtime();
    let codecs = [
        ("bincode", Codec::Bincode),
        #[cfg(feature = "postcard")]
        ("postcard", Codec::Postcard),
        #[cfg(feature = "json")]
        ("json", Codec::Json),
    ];
    let mut group = criterion.benchmark_group("codec");
    for (name, codec) in codecs {
        let guard = StampedeGuard::in_memory().policy(Policy::fresh_for(AN_HOUR)).codec(codec);
        let lists = guard.cache("rows");
        runtime.block_on(async {
            guard.fetch("rows", rows).await.expect("fetched");
            lists.entry("shared").fetch_arc(rows).await.expect("fetched");
            guard.drain().await;
        });
        group.bench_function(format!("{name}/fetch"), |b| b.to_async(&runtime).iter(|| guard.fetch("rows", rows)));
        group.bench_function(format!("{name}/fetch_arc"), |b| {
            b.to_async(&runtime).iter(|| lists.entry("shared").fetch_arc(rows));
        });
    }
    group.finish();
}

fn locks(criterion: &mut Criterion) {
    let (runtime, server) = (runtime(), RedisServer::start());
    let client = server.client();
    let lock = || Lock::new(client.clone());
    let recipes = [("set_px", lock().recipe(SetPx)), ("fused", lock().recipe(FencedLock))];
    let mut group = criterion.benchmark_group("lock");
    group.throughput(Throughput::Elements(1));
    for (name, lock) in recipes {
        group.bench_function(name, |b| {
            b.to_async(&runtime).iter(async || {
                let guard = lock.acquire(name).await.expect("the lock is free");
                guard.release().await.expect("it is held");
            });
        });
        runtime.block_on(lock.drain());
    }
    group.finish();
}

/// About 700 bytes with bincode.
async fn rows() -> Result<Vec<Row>, Infallible> {
    Ok((0..20).map(Row::new).collect())
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

const AN_HOUR: Duration = Duration::from_secs(3600);
