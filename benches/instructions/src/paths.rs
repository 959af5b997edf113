//! The paths, each asked for again and again in one thread.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use serde::{Deserialize, Serialize};
use stampede_guard::{MemoryStore, Policy, StampedeGuard, redis, store::IntoStore};
use std::{convert::Infallible, hint::black_box, time::Duration};
use tower::{Layer, Service, ServiceExt, service_fn};

pub(crate) const PATHS: [&str; 6] = [
    "embedded hit, fetch_arc",
    "embedded hit, fetch",
    HTTP,
    "redis hit, fetch",
    "redis miss, fetch",
    "embedded miss, fetch",
];
/// Counted less [`BARE`].
pub(crate) const HTTP: &str = "embedded hit, HTTP layer";
/// The same service without the layer.
pub(crate) const BARE: &str = "bare HTTP service";

/// Warms up, and takes the path so many times. For those over Redis a server is there.
pub(crate) fn run(path: &str, operations: u32, url: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let embedded = guard(MemoryStore::bytes(SMALL));
        match path {
            "embedded hit, fetch_arc" => {
                hit(operations, &embedded, async || drop(black_box(embedded.fetch_arc(KEY, row).await))).await;
            }
            "embedded hit, fetch" => {
                hit(operations, &embedded, async || drop(black_box(embedded.fetch(KEY, row).await))).await;
            }
            "embedded miss, fetch" => miss(operations, &embedded).await,
            HTTP => {
                let layer = embedded.layer(service_fn(page));
                hit(operations, &embedded, async || answer(layer.clone()).await).await;
            }
            BARE => repeat(operations, async |_| answer(service_fn(page)).await).await,
            "redis hit, fetch" => {
                let guard = over_redis(url).await;
                hit(operations, &guard, async || drop(black_box(guard.fetch(KEY, row).await))).await;
            }
            "redis miss, fetch" => miss(operations, &over_redis(url).await).await,
            other => panic!("no such path: {other}"),
        }
    });
}

/// The first of these warm up.
async fn repeat(operations: u32, operation: impl AsyncFn(u32)) {
    for n in 0..WARM_UP + operations {
        operation(n).await;
    }
}

/// The first one is a miss, and its fill goes on behind the answer: until it has landed, others join it.
async fn hit(operations: u32, guard: &StampedeGuard, operation: impl AsyncFn()) {
    operation().await;
    guard.shutdown().await;
    repeat(operations, async |_| operation().await).await;
    let report = guard.report();
    assert_eq!(report.hits, u64::from(WARM_UP + operations), "{report:?}");
}

/// With the fill.
async fn miss(operations: u32, guard: &StampedeGuard) {
    repeat(operations, async |n| {
        drop(black_box(guard.fetch(u64::from(1_000_000 + n), row).await));
        guard.shutdown().await;
    })
    .await;
    let report = guard.report();
    assert_eq!(report.filled, u64::from(WARM_UP + operations), "{report:?}");
}

/// One request, from its making to the last byte of the answer.
async fn answer<S, B>(service: S)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: BodyExt<Error: std::fmt::Debug>,
{
    let request = Request::get("/report/7")
        .header("host", "example.org")
        .header("user-agent", "bench/1.0")
        .header("accept", "application/json")
        .header("accept-encoding", "gzip, br")
        .header("accept-language", "en")
        .header("x-request-id", "5f0c3a52")
        .body(Full::default())
        .expect("a request");
    let response = service.oneshot(black_box(request)).await.expect("infallible");
    drop(black_box(response.into_body().collect().await.expect("the body is whole").to_bytes()));
}

/// A page of 1 KiB under six header fields.
async fn page(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let response = Response::builder()
        .header("content-type", "application/json")
        .header("content-length", PAGE.len())
        .header("cache-control", "max-age=3600")
        .header("etag", "\"5f0c3a52\"")
        .header("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT")
        .header("x-served-by", "origin-1")
        .body(Full::new(Bytes::from_static(PAGE)));
    Ok(response.expect("a response"))
}

#[derive(Serialize, Deserialize)]
struct Row {
    id: u64,
    name: String,
    score: f64,
    tags: Vec<u32>,
}

async fn row() -> Result<Row, Infallible> {
    Ok(Row { id: 42, name: "a name of usual length".to_owned(), score: 0.5, tags: vec![1, 2, 3] })
}

/// Forgets what the path before has left: a miss is to be one.
async fn over_redis(url: &str) -> StampedeGuard {
    let client = redis::Client::open(url).expect("the URL is well-formed");
    let mut connection = client.get_multiplexed_async_connection().await.expect("the server is up");
    let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.expect("the server is up");
    guard(client)
}

/// Fresh for longer than any of this takes, and waits as long as it takes under callgrind.
fn guard(store: impl IntoStore) -> StampedeGuard {
    let an_hour = Duration::from_secs(3600);
    StampedeGuard::new(store).policy(Policy::fresh_for(an_hour)).lease(an_hour).op_timeout(an_hour)
}

const KEY: &str = "row";
const PAGE: &[u8] = &[b'x'; 1024];
/// Full when it is warm, so that every miss evicts.
const SMALL: u64 = 32 << 10;
const WARM_UP: u32 = 200;
