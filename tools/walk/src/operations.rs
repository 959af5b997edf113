//! The operations over Redis, each once, with warm connections.

use crate::{
    page::{answer, page, request},
    row::Row,
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use stampede_guard::{Policy, StampedeGuard, redis};
use std::{convert::Infallible, pin::Pin, time::Duration};
use tokio::{
    runtime::{Builder, Handle, Runtime},
    time::{sleep, timeout},
};
use tower::{Layer, service_fn};

pub(crate) const OPERATIONS: [&str; 5] = [COLD_GET, GET_HIT, FETCH_HIT, FETCH_MISS, INVALIDATE];
const COLD_GET: &str = "cold GET, HTTP layer";
const GET_HIT: &str = "hit, HTTP layer";
const FETCH_HIT: &str = "fetch hit";
const FETCH_MISS: &str = "fetch miss and fill";
const INVALIDATE: &str = "invalidate";

/// The function in which callgrind counts.
pub(crate) const MEASURED: &str = "walk::operations::measured";

/// Warms up, and runs the operation once. A server runs at `url`.
pub(crate) fn run(operation: &str, url: &str) {
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let guard = runtime.block_on(async {
        let client = redis::Client::open(url).expect("the URL is well-formed");
        StampedeGuard::new(client).policy(Policy::fresh_for(AN_HOUR)).lease_ttl(AN_HOUR).store_timeout(AN_HOUR)
    });
    let layer = guard.layer(service_fn(paged));
    let get = async |target: &str| drop(answer(layer.clone(), request::<Full<Bytes>>(target)).await);
    let fetch = async |key: &'static str| drop(guard.fetch(key, row).await.expect("a row"));
    let invalidate = async |key: &'static str| guard.invalidate(key).await.expect("the server answers");
    let idle = runtime.block_on(async {
        for (target, key) in [("/warm-up/1", "warm-up 1"), ("/warm-up/2", "warm-up 2"), ("/hit", "hit")] {
            for _ in 0..WARM_UP {
                get(target).await;
                fetch(key).await;
                guard.drain().await;
            }
        }
        // A name that was invalidated lately is looked for once a second, which other operations would count or not.
        if operation == INVALIDATE {
            invalidate("warm-up 1").await;
            guard.drain().await;
        }
        Handle::current().metrics().num_alive_tasks()
    });
    let before = guard.stats();
    match operation {
        COLD_GET => measured(&runtime, idle, Box::pin(get("/cold"))),
        GET_HIT => measured(&runtime, idle, Box::pin(get("/hit"))),
        FETCH_HIT => measured(&runtime, idle, Box::pin(fetch("hit"))),
        FETCH_MISS => measured(&runtime, idle, Box::pin(fetch("cold"))),
        INVALIDATE => measured(&runtime, idle, Box::pin(invalidate("hit"))),
        other => panic!("no such operation: {other}"),
    }
    let after = guard.stats();
    let counted = (after.hits - before.hits, after.misses - before.misses);
    let expected = match operation {
        GET_HIT | FETCH_HIT => (1, 0),
        COLD_GET | FETCH_MISS => (0, 1),
        _ => (0, 0),
    };
    assert_eq!(counted, expected, "{operation}: {after:?}");
}

type LocalBoxFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// Runs the operation, and what it has left to do when its caller has the answer. `drain` would count as well.
#[inline(never)]
fn measured(runtime: &Runtime, idle: usize, operation: LocalBoxFuture<'_>) {
    runtime.block_on(async {
        operation.await;
        let done = async {
            while Handle::current().metrics().num_alive_tasks() > idle {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(AN_HOUR, done).await.expect("the tasks of the operation end");
    });
}

async fn paged(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(page())
}

async fn row() -> Result<Row, Infallible> {
    Ok(Row::new(42))
}

/// The first round of a key stores it, and later ones are hits.
const WARM_UP: usize = 3;
const AN_HOUR: Duration = Duration::from_secs(3600);
