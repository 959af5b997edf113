//! The cost of a request on each path: embedded, near and Redis hit, embedded and Redis miss, each next to the same
//! request without a guard.
//!
//! ```text
//! cargo bench --bench paths                      # all, in two to three minutes
//! cargo bench --bench paths -- embedded_hit      # one group
//! ```
//!
//! Everything runs on one thread, so that no figure depends on the scheduler. The bench starts a Redis on the loopback
//! interface. Only the ratio of two rows of one group is comparable between machines.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "work/page.rs"]
mod page;
#[path = "work/row.rs"]
mod row;

use axum::{
    Router,
    body::Body,
    extract::Request,
    http::{HeaderValue, Method},
    response::Response,
    routing::get,
};
use bytes::Bytes;
use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use futures_util::future::join_all;
use http_body_util::Full;
use page::{answer, request};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use row::Row;
use stampede_guard::{MemoryStore, NearCacheConfig, Policy, StampedeGuard};
use stampede_guard_support::{RedisServer, eventually};
use std::{
    convert::Infallible,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};
use tokio::runtime::{self, Runtime};
use tower::{Layer, Service, service_fn};

criterion_group! {
    name = paths;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = embedded_hit, near_hit, embedded_miss, redis_hit, redis_hit_64, redis_hit_by_size, redis_miss
}
criterion_main!(paths);

/// The HTTP rows differ only in the layer, so its overhead is `http_layer` minus `http_bare`.
fn embedded_hit(criterion: &mut Criterion) {
    let (runtime, guard) = (runtime(), guard(MemoryStore::default()));
    let mut group = criterion.benchmark_group("embedded_hit");
    group.throughput(Throughput::Elements(1));

    let rows = guard.cache("row");
    runtime.block_on(async {
        guard.fetch("row", row).await.expect("fetched");
        rows.entry("shared").fetch_arc(row).await.expect("fetched");
    });
    group.bench_function("fetch", |b| b.to_async(&runtime).iter(|| guard.fetch("row", row)));
    group.bench_function("fetch_arc", |b| b.to_async(&runtime).iter(|| rows.entry("shared").fetch_arc(row)));

    let request = || request("/report/7");
    let with = |name: &'static str, value: &'static str| {
        let mut request = request();
        request.headers_mut().insert(name, value.parse().expect("a value"));
        request
    };
    let head = || {
        let mut request = request();
        *request.method_mut() = Method::HEAD;
        request
    };
    let (bare, layer) = (service_fn(paged), guard.layer(service_fn(paged)));
    let varying = service_fn(varying_page);
    let variants = guard.clone().namespace("variants").layer(varying);
    runtime.block_on(async {
        answer(layer.clone(), request()).await;
        answer(variants.clone(), request()).await;
    });
    http(&mut group, "http_bare", &runtime, &bare, request);
    http(&mut group, "http_layer", &runtime, &layer, request);
    http(&mut group, "http_layer_304", &runtime, &layer, || with("if-none-match", "\"5f0c3a52\""));
    http(&mut group, "http_layer_range", &runtime, &layer, || with("range", "bytes=0-99"));
    http(&mut group, "http_layer_head", &runtime, &layer, head);
    http(&mut group, "http_bare_variant", &runtime, &varying, request);
    http(&mut group, "http_layer_variant", &runtime, &variants, request);
    let router = || Router::new().route("/report/{id}", get(async || page::page::<Body>()));
    http(&mut group, "axum_bare", &runtime, &router(), request);
    http(&mut group, "axum_layer", &runtime, &router().layer(guard), request);
    group.finish();
}

/// Hits in the near cache in front of Redis.
fn near_hit(criterion: &mut Criterion) {
    let redis = Redis::start();
    let guard = redis.guard.clone().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(Duration::from_secs(3600)));
    redis.runtime.block_on(async {
        eventually("what is read is kept", async || {
            guard.fetch("row:0", row).await.expect("fetched");
            guard.stats().near_hits > 0
        })
        .await;
        answer(guard.layer(service_fn(paged)), request("/report/7")).await;
    });
    let mut group = criterion.benchmark_group("near_hit");
    group.throughput(Throughput::Elements(1));
    group.bench_function("fetch", |b| b.to_async(&redis.runtime).iter(|| guard.fetch("row:0", row)));
    let rows = guard.cache("row");
    group.bench_function("fetch_arc", |b| b.to_async(&redis.runtime).iter(|| rows.entry(0).fetch_arc(row)));
    http(&mut group, "http_layer", &redis.runtime, &guard.layer(service_fn(paged)), || request("/report/7"));
    group.finish();
}

/// Each key is requested once. The store is small, so that it is full and evicts.
fn embedded_miss(criterion: &mut Criterion) {
    let (runtime, guard) = (runtime(), guard(MemoryStore::with_max_bytes(4 << 20)));
    let mut group = criterion.benchmark_group("embedded_miss");
    group.throughput(Throughput::Elements(1));

    group.bench_function("fetch", |b| b.to_async(&runtime).iter(|| guard.fetch(unique(), row)));
    let rows = guard.cache("row");
    group.bench_function("fetch_scoped", |b| b.to_async(&runtime).iter(|| rows.entry(unique()).fetch_scoped(row)));

    let request = || request(&format!("/report/{}", unique()));
    http(&mut group, "http_bare", &runtime, &service_fn(paged), request);
    http(&mut group, "http_layer", &runtime, &guard.layer(service_fn(paged)), request);
    group.finish();
}

/// One request at a time: each waits for a round trip.
fn redis_hit(criterion: &mut Criterion) {
    let redis = Redis::start();
    let mut group = criterion.benchmark_group("redis_hit");
    group.throughput(Throughput::Elements(1));

    group.bench_function("raw_get", |b| b.to_async(&redis.runtime).iter(|| raw_get(redis.raw.clone(), "raw:0".into())));
    let (guard, key) = (&redis.guard, "row:0");
    group.bench_function("fetch", |b| b.to_async(&redis.runtime).iter(|| guard.fetch(key, row)));
    let layer = guard.layer(service_fn(paged));
    http(&mut group, "http_layer", &redis.runtime, &layer, || request("/report/7"));
    group.finish();
}

/// Many requests at a time over one connection, so that the work counts and not the waiting. The keys differ, because
/// requests for the same key share a GET, as the last row shows.
fn redis_hit_64(criterion: &mut Criterion) {
    let redis = Redis::start();
    let mut group = criterion.benchmark_group("redis_hit_64");
    group.throughput(Throughput::Elements(CALLERS));

    group.bench_function("raw_get", |b| {
        b.to_async(&redis.runtime)
            .iter(|| join_all((0..CALLERS).map(|i| raw_get(redis.raw.clone(), format!("raw:{i}")))));
    });
    let guard = &redis.guard;
    group.bench_function("fetch", |b| {
        b.to_async(&redis.runtime).iter(|| join_all((0..CALLERS).map(|i| guard.fetch(format!("row:{i}"), row))));
    });
    group.bench_function("fetch_same_key", |b| {
        b.to_async(&redis.runtime).iter(|| join_all((0..CALLERS).map(|_| guard.fetch("row:0".to_owned(), row))));
    });
    group.finish();
}

/// By the size of the value and the number of concurrent callers. Each caller has its own key.
fn redis_hit_by_size(criterion: &mut Criterion) {
    let redis = Redis::start();
    let mut group = criterion.benchmark_group("redis_hit_by_size");
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_millis(800));
    for (name, bytes) in [("100B", 100), ("1KiB", 1 << 10), ("64KiB", 64 << 10)] {
        let text = "x".repeat(bytes);
        redis.runtime.block_on(redis.fill(name, &text));
        for callers in [1, CALLERS, 512] {
            group.throughput(Throughput::Elements(callers));
            group.bench_function(format!("raw_get/{name}/{callers}"), |b| {
                let get = |i| raw_get(redis.raw.clone(), format!("raw {name}:{i}"));
                b.to_async(&redis.runtime).iter(|| join_all((0..callers).map(get)));
            });
            group.bench_function(format!("fetch/{name}/{callers}"), |b| {
                let hit = |i| redis.guard.fetch(format!("{name}:{i}"), stored);
                b.to_async(&redis.runtime).iter(|| join_all((0..callers).map(hit)));
            });
        }
    }
    group.finish();
}

/// Without other callers. The fill continues after the answer, so it is included in the time of the next request.
fn redis_miss(criterion: &mut Criterion) {
    let redis = Redis::start();
    let mut group = criterion.benchmark_group("redis_miss");
    group.throughput(Throughput::Elements(1));

    group.bench_function("raw_get", |b| {
        b.to_async(&redis.runtime).iter(|| raw_get(redis.raw.clone(), format!("raw:absent:{}", unique())));
    });
    let guard = &redis.guard;
    group.bench_function("fetch", |b| b.to_async(&redis.runtime).iter(|| guard.fetch(unique(), row)));
    let rows = guard.cache("row");
    group
        .bench_function("fetch_scoped", |b| b.to_async(&redis.runtime).iter(|| rows.entry(unique()).fetch_scoped(row)));
    group.finish();
}

/// A server with rows in it, raw and as entries, and open connections.
struct Redis {
    raw: MultiplexedConnection,
    guard: StampedeGuard,
    runtime: Runtime,
    /// Dropped last, which ends the server.
    _server: RedisServer,
}

impl Redis {
    fn start() -> Self {
        let (runtime, server) = (runtime(), RedisServer::start());
        let guard = guard(server.client());
        let raw = runtime.block_on(async {
            let mut raw = server.connection().await;
            let envelope = vec![b'x'; ENVELOPE];
            for i in 0..CALLERS {
                let () = raw.set(format!("raw:{i}"), &envelope).await.expect("the server is up");
                guard.fetch(format!("row:{i}"), row).await.expect("fetched");
            }
            answer(guard.layer(service_fn(paged)), request("/report/7")).await;
            guard.drain().await;
            raw
        });
        Self { raw, guard, runtime, _server: server }
    }

    /// Stores values of this size under new keys, raw and as entries.
    async fn fill(&self, name: &str, text: &str) {
        let mut raw = self.raw.clone();
        for i in 0..512 {
            let envelope = [&[b'x'; HEAD], text.as_bytes()].concat();
            let () = raw.set(format!("raw {name}:{i}"), &envelope).await.expect("the server is up");
            let text = text.to_owned();
            self.guard.fetch(format!("{name}:{i}"), async move || Ok::<_, Infallible>(text)).await.expect("fetched");
        }
        self.guard.drain().await;
    }
}

async fn raw_get(mut connection: MultiplexedConnection, key: String) -> Option<Vec<u8>> {
    connection.get(key).await.expect("the server is up")
}

/// Measures one request, including its construction, to the last byte of the response.
fn http<S, B>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    runtime: &Runtime,
    service: &S,
    request: impl Fn() -> Request,
) where
    S: Service<Request, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Error: std::fmt::Debug>,
{
    group.bench_function(name, |b| b.to_async(runtime).iter(|| answer(service.clone(), black_box(request()))));
}

async fn paged(_: Request) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(page::page())
}

/// A page with a variant for each combination of these fields, so that a hit needs two lookups.
async fn varying_page(_: Request) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut page = page::page();
    page.headers_mut().insert("vary", HeaderValue::from_static("accept-encoding, accept-language"));
    Ok(page)
}

async fn row() -> Result<Row, Infallible> {
    Ok(Row::new(42))
}

async fn stored() -> Result<String, Infallible> {
    unreachable!("it is stored")
}

/// Returns a guard whose entries stay fresh longer than the bench runs.
fn guard(store: impl stampede_guard::IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).policy(Policy::fresh_for(Duration::from_secs(3600)))
}

/// Returns a number that was not returned before.
fn unique() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(1_000_000);
    LAST.fetch_add(1, Relaxed)
}

fn runtime() -> Runtime {
    runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

const CALLERS: u64 = 64;
/// The number of bytes of a row in Redis.
const ENVELOPE: usize = HEAD + 36;
const HEAD: usize = 90;
