//! The paths, each repeated in one thread.

use crate::{
    crowd,
    page::{answer, page, request},
    reports,
    row::Row,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use http_body_util::Full;
use stampede_guard::{IntoStore, MemoryStore, NearCacheConfig, Policy, StampedeGuard, redis};
use std::{convert::Infallible, fmt, hint::black_box, time::Duration};
use tokio::runtime::Runtime;
use tower::{Layer, Service, service_fn};

pub(crate) const PATHS: [&str; 15] = [
    "embedded hit, fetch_arc",
    HOT_KEYS,
    "embedded hit, fetch",
    VIEW,
    HTTP,
    BROWSER,
    NGINX,
    "near hit, fetch_arc",
    NEAR_FETCH,
    NEAR_VIEW,
    REDIS_HIT,
    "redis miss, fetch",
    "embedded miss, fetch",
    crowd::HIT,
    crowd::MISS,
];
/// A hit on one of a hundred busy keys, which are tracked.
const HOT_KEYS: &str = "embedded hit, fetch_arc, hot keys";
/// The same as without a view. `fetch_arc` is a call of a view.
const VIEW: &str = "embedded hit, fetch through a view";
const NEAR_FETCH: &str = "near hit, fetch";
const NEAR_VIEW: &str = "near hit, fetch through a view";
pub(crate) const REDIS_HIT: &str = "redis hit, fetch";
const HTTP: &str = "embedded hit, HTTP layer";
/// The same with the request of a browser.
const BROWSER: &str = "embedded hit, HTTP layer, 15 fields";
/// The same with the request of a browser, as nginx forwards it.
const NGINX: &str = "embedded hit, HTTP layer, behind nginx";
/// A service that makes no response head, because the layer does not call it.
const BARE: &str = "empty HTTP service";
const BARE_BROWSER: &str = "empty HTTP service, 15 fields";
const BARE_NGINX: &str = "empty HTTP service, behind nginx";

/// The path whose cost does not belong to this one.
pub(crate) fn bare(path: &str) -> Option<&'static str> {
    match path {
        HTTP => Some(BARE),
        BROWSER => Some(BARE_BROWSER),
        NGINX => Some(BARE_NGINX),
        _ => None,
    }
}

/// Warms up, and runs this number of operations of the path. For paths over Redis, a server runs at `url`.
pub(crate) fn run(path: &str, operations: u32, url: &str) {
    let path = reports::begin(path);
    runtime().block_on(async {
        let embedded = guard(MemoryStore::with_max_bytes(SMALL));
        match path {
            "embedded hit, fetch_arc" => {
                let rows = embedded.cache("rows");
                hit(operations, &embedded, async || drop(black_box(rows.entry(KEY).fetch_arc(row).await))).await;
            }
            HOT_KEYS => {
                let tracked = StampedeGuard::in_memory().policy(Policy::fresh_for(AN_HOUR)).track_hot_keys(100);
                let rows = tracked.cache("rows");
                let ask = async |n| drop(black_box(rows.entry(n % 100).fetch_arc(row).await));
                for n in 0..1000 {
                    ask(n).await;
                }
                repeat(operations, ask).await;
            }
            "embedded hit, fetch" => {
                hit(operations, &embedded, async || drop(black_box(embedded.fetch(KEY, row).await))).await;
            }
            VIEW => {
                let rows = embedded.cache::<Row>("rows");
                hit(operations, &embedded, async || drop(black_box(rows.fetch(KEY, row).await))).await;
            }
            "embedded miss, fetch" => miss(operations, &embedded).await,
            HTTP => {
                let layer = embedded.layer(service_fn(paged));
                hit(operations, &embedded, async || ask(layer.clone(), request("/report/7")).await).await;
            }
            BARE => repeat(operations, async |_| ask(service_fn(empty), request("/report/7")).await).await,
            BROWSER | NGINX => {
                let (layer, request) = (embedded.layer(service_fn(paged)), fifteen_fields(path));
                hit(operations, &embedded, async || ask(layer.clone(), request.clone()).await).await;
            }
            BARE_BROWSER | BARE_NGINX => {
                let request = fifteen_fields(path);
                repeat(operations, async |_| ask(service_fn(empty), request.clone()).await).await;
            }
            crowd::HIT => crowd::hit(operations, url).await,
            crowd::MISS => crowd::miss(operations, url).await,
            REDIS_HIT => {
                let guard = over_redis(url).await;
                hit(operations, &guard, async || drop(black_box(guard.fetch(KEY, row).await))).await;
            }
            "near hit, fetch_arc" | NEAR_FETCH | NEAR_VIEW => {
                let guard = over_redis(url).await.near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(AN_HOUR));
                let rows = guard.cache::<Row>("rows");
                let ask = async || match path {
                    NEAR_FETCH => drop(black_box(guard.fetch(KEY, row).await)),
                    NEAR_VIEW => drop(black_box(rows.fetch(KEY, row).await)),
                    _ => drop(black_box(rows.entry(KEY).fetch_arc(row).await)),
                };
                ask().await;
                guard.drain().await;
                // A read that comes before the server has turned tracking on is not kept. It is counted, so there should
                // be as many in each run.
                for _ in 0..MOST_READS {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    ask().await;
                    if guard.stats().near_hits > 0 {
                        break;
                    }
                }
                let before = guard.stats().near_hits;
                repeat(operations, async |_| ask().await).await;
                let stats = guard.stats();
                assert_eq!(stats.near_hits - before, u64::from(WARM_UP + operations), "{stats:?}");
            }
            "redis miss, fetch" => miss(operations, &over_redis(url).await).await,
            other => panic!("no such path: {other}"),
        }
    });
}

/// Returns a runtime of one thread.
pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

/// Runs the operation; the first [`WARM_UP`] runs are the warm-up.
async fn repeat(operations: u32, operation: impl AsyncFn(u32)) {
    for n in 0..WARM_UP + operations {
        operation(n).await;
    }
}

/// Measures hits. The first operation is a miss, and its fill continues after the answer; until it is stored, callers
/// would join its flight.
async fn hit(operations: u32, guard: &StampedeGuard, operation: impl AsyncFn()) {
    operation().await;
    guard.drain().await;
    repeat(operations, async |_| operation().await).await;
    let stats = guard.stats();
    assert_eq!(stats.hits, u64::from(WARM_UP + operations), "{stats:?}");
}

/// Measures misses, including their fills.
async fn miss(operations: u32, guard: &StampedeGuard) {
    repeat(operations, async |n| {
        drop(black_box(guard.fetch(u64::from(1_000_000 + n), row).await));
        guard.drain().await;
    })
    .await;
    let stats = guard.stats();
    assert_eq!(stats.misses, u64::from(WARM_UP + operations), "{stats:?}");
}

async fn ask<S, B>(service: S, request: Request<Full<Bytes>>)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible>,
    B: Body<Error: fmt::Debug>,
{
    drop(black_box(answer(service, black_box(request)).await));
}

/// Returns the request of a path with 15 fields: as a browser sends it for a page, or as nginx forwards it. It has no
/// cookie, which would be a credential.
fn fifteen_fields(path: &str) -> Request<Full<Bytes>> {
    let fields = if matches!(path, NGINX | BARE_NGINX) { NGINX_FIELDS } else { BROWSER_FIELDS };
    let mut request = Request::get("/report/7");
    for (name, value) in fields {
        request = request.header(name, value);
    }
    request.body(Full::default()).expect("a request")
}

async fn empty(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::default())
}

async fn paged(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(page())
}

pub(crate) async fn row() -> Result<Row, Infallible> {
    Ok(Row::new(42))
}

/// Returns a guard over an emptied Redis, so that every miss is one.
pub(crate) async fn over_redis(url: &str) -> StampedeGuard {
    let client = redis::Client::open(url).expect("the URL is well-formed");
    // A process under callgrind that runs beside others needs more than the default timeouts, as `guard` does.
    let patient = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let connection = client.get_multiplexed_async_connection_with_config(&patient).await;
    let mut connection = connection.expect("the server is up");
    let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.expect("the server is up");
    guard(client)
}

/// Returns a guard whose entries stay fresh and whose timeouts suffice for a run under callgrind.
fn guard(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).policy(Policy::fresh_for(AN_HOUR)).lease_ttl(AN_HOUR).store_timeout(AN_HOUR)
}

const BROWSER_FIELDS: [(&str, &str); 15] = [
    ("host", "example.org"),
    ("sec-ch-ua", "\"Chromium\";v=\"140\", \"Not=A?Brand\";v=\"24\""),
    ("sec-ch-ua-mobile", "?0"),
    ("sec-ch-ua-platform", "\"Linux\""),
    ("upgrade-insecure-requests", "1"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
    ),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-user", "?1"),
    ("sec-fetch-dest", "document"),
    ("referer", "https://example.org/reports"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.9,de;q=0.8"),
    ("priority", "u=0, i"),
];
const NGINX_FIELDS: [(&str, &str); 15] = [
    ("host", "example.org"),
    ("x-real-ip", "192.0.2.7"),
    ("x-forwarded-for", "192.0.2.7"),
    ("x-forwarded-proto", "https"),
    ("x-request-id", "5f0c3a52d1b04e7c9a6f8e21b3c4d5e6"),
    ("connection", "close"),
    (
        "user-agent",
        "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36",
    ),
    ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"),
    ("accept-encoding", "gzip, deflate, br, zstd"),
    ("accept-language", "en-GB,en;q=0.9,de;q=0.8"),
    ("referer", "https://example.org/reports"),
    ("sec-fetch-site", "same-origin"),
    ("sec-fetch-mode", "navigate"),
    ("sec-fetch-dest", "document"),
    ("priority", "u=0, i"),
];
const KEY: &str = "row";
/// Full after the warm-up, so that every miss evicts.
const SMALL: u64 = 32 << 10;
const WARM_UP: u32 = 200;
const AN_HOUR: Duration = Duration::from_secs(3600);
const MOST_READS: u32 = 10_000;
