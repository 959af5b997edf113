//! Hits within the process, compared with moka's `get`, and the overhead of the HTTP layer.

use super::Bench;
#[cfg(feature = "peers")]
use crate::subjects::amalgam;
use crate::{
    Result,
    child::{self, Child},
    subjects::{own, serve},
    table::{Cell, Column, Table},
};
use bytes::Bytes;
use http::Response;
use http_body_util::{BodyExt, Full};
use serde::{Deserialize, Serialize};
use stampede_guard::{Policy, StampedeGuard, redis::Client};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{runtime, task::spawn_blocking};
use tower::{Layer, ServiceExt, service_fn};

pub(crate) const NAME: &str = "embedded hit";

#[derive(Serialize, Deserialize)]
pub(crate) struct Task {
    threads: usize,
}

pub(crate) async fn run(bench: &Bench) -> Result<Table> {
    let mut table = Table::new(NAME, "Hit within the process, 1 KiB", HOW.to_owned(), COLUMNS);
    for repeat in 1..=bench.repeats() {
        let mut cells: BTreeMap<String, Cell> = BTreeMap::new();
        for (threads, ns, ratio) in THREADS {
            let task = super::Task::Embedded(Task { threads });
            let child = Child::start(&own::EMBEDDED, bench.server.url(), task)?;
            let took: BTreeMap<String, f64> = child.whole().await?;
            let floor = took[MOKA];
            for (what, took) in took {
                cells.entry(what).or_default().extend([(ns, took), (ratio, floor / took)]);
            }
        }
        for what in ROWS {
            let Some(mut cell) = cells.remove(*what) else { continue };
            if [NEAR_LAYER, LAYER, BARE].contains(what) {
                cell.retain(|column, _| !column.contains("moka"));
            }
            bench.progress(NAME, &format!("{repeat}/{}: {what}: {cell:.2?}", bench.repeats()));
            table.row(what).cells.push(cell);
        }
    }
    Ok(table)
}

impl Task {
    pub(super) async fn be(self, url: String) -> Result<()> {
        let subjects = Hot::new(url).await?;
        child::ready().await?;
        let mut took: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        // Short loops in turn, and their median, because other programs use these cores as well.
        for _ in 0..ROUNDS {
            for what in ROWS {
                let threads: Vec<_> = (0..self.threads).map(|_| spawn_blocking(subjects.clone().one(what))).collect();
                for thread in threads {
                    if let Some(ns) = thread.await?? {
                        took.entry(what).or_default().push(ns);
                    }
                }
            }
        }
        let median = |mut took: Vec<f64>| {
            took.sort_by(f64::total_cmp);
            took[took.len() / 2]
        };
        let took: BTreeMap<_, _> = took.into_iter().map(|(what, took)| (what, median(took))).collect();
        child::say(&took)
    }
}

/// All subjects, with their key filled.
#[derive(Clone)]
struct Hot {
    embedded: StampedeGuard,
    near: StampedeGuard,
    moka: moka::future::Cache<String, Arc<String>>,
    #[cfg(feature = "peers")]
    amalgam: ::amalgam::Cache<Arc<String>>,
    #[cfg(feature = "peers")]
    foyer: foyer::Cache<String, Arc<String>>,
}

impl Hot {
    async fn new(url: String) -> Result<Self> {
        let embedded = StampedeGuard::in_memory().policy(Policy::fresh_for(Duration::from_secs(600)));
        let near = own::near(Client::open(url)?);
        let value = || Arc::new(crate::origin::value());
        for guard in [&embedded, &near] {
            // The first request fills the key, the later ones read it.
            for _ in 0..3 {
                let value = async || Ok::<_, Infallible>(crate::origin::value());
                guard.cache(VIEW).entry(KEY).fetch_arc(value).await?;
                serve::answer(guard.layer(service_fn(page)), serve::request::<Full<Bytes>>(KEY)).await?;
                guard.drain().await;
            }
        }
        let moka = moka::future::Cache::builder().max_capacity(100_000).time_to_live(Duration::from_secs(600)).build();
        moka.insert(KEY.to_owned(), value()).await;
        Ok(Self {
            embedded,
            near,
            moka,
            #[cfg(feature = "peers")]
            amalgam: amalgam::in_memory(KEY, crate::origin::value()).await?,
            #[cfg(feature = "peers")]
            foyer: {
                let foyer = foyer::CacheBuilder::new(100_000).build();
                foyer.insert(KEY.to_owned(), value());
                foyer
            },
        })
    }

    /// Returns one measurement, to be run on a separate thread.
    fn one(self, what: &'static str) -> impl FnOnce() -> Result<Option<f64>> {
        move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(self.loops(what)))
        }
    }

    /// Returns the nanoseconds of one request, or `None` if the subject is not built.
    async fn loops(&self, what: &str) -> Option<f64> {
        let value = async || Ok::<_, Infallible>(crate::origin::value());
        let shared = async |guard: &StampedeGuard| {
            let values = guard.cache(VIEW);
            time(async || values.entry(KEY).fetch_arc(value).await).await
        };
        Some(match what {
            MOKA => time(async || self.moka.get(KEY).await).await,
            MOKA_TRY => time(async || self.moka.try_get_with_by_ref(KEY, async { Err::<_, ()>(()) }).await).await,
            FETCH_ARC => shared(&self.embedded).await,
            FETCH => {
                let values = self.embedded.cache::<String>(VIEW);
                time(async || values.fetch(KEY, value).await).await
            }
            NEAR => shared(&self.near).await,
            #[cfg(feature = "peers")]
            AMALGAM => {
                let miss = |_| async { Err::<Arc<String>, _>(std::io::Error::other("a miss")) };
                time(async || self.amalgam.get_or_set(KEY, miss).await).await
            }
            #[cfg(feature = "peers")]
            FOYER => time(async || self.foyer.get(KEY)).await,
            LAYER => {
                let service = self.embedded.layer(service_fn(page));
                time(async || collected(service.clone()).await).await
            }
            NEAR_LAYER => {
                let service = self.near.layer(service_fn(page));
                time(async || collected(service.clone()).await).await
            }
            BARE => time(async || collected(service_fn(page)).await).await,
            _ => return None,
        })
    }
}

async fn page(_: http::Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    static PAGE: [u8; crate::origin::SIZE] = [b'x'; crate::origin::SIZE];
    let mut page = Response::new(Full::new(Bytes::from_static(&PAGE)));
    page.headers_mut().insert("cache-control", http::HeaderValue::from_static("max-age=600"));
    Ok(page)
}

async fn collected<S, B>(service: S) -> Option<Bytes>
where
    S: tower::Service<http::Request<Full<Bytes>>, Response = Response<B>>,
    B: axum::body::HttpBody,
{
    let response = service.oneshot(serve::request(KEY)).await.ok()?;
    Some(response.into_body().collect().await.ok()?.to_bytes())
}

async fn time<T>(mut one: impl AsyncFnMut() -> T) -> f64 {
    let (began, mut n) = (Instant::now(), 0);
    while began.elapsed() < SPAN {
        for _ in 0..ROUND {
            black_box(one().await);
        }
        n += ROUND;
    }
    began.elapsed().as_secs_f64() * 1e9 / f64::from(n)
}

const KEY: &str = "hot";
const VIEW: &str = "value";
const SPAN: Duration = Duration::from_millis(8);
const ROUNDS: usize = 15;
/// Requests between two readings of the clock.
const ROUND: u32 = 64;
const THREADS: [(usize, &str, &str); 2] =
    [(1, "ns", "of moka get"), (2, "ns, two threads", "of moka get, two threads")];

pub(crate) const MOKA: &str = "moka get";
pub(crate) const FETCH_ARC: &str = "stampede-guard fetch_arc, embedded";
pub(crate) const NEAR: &str = "stampede-guard fetch_arc, near cache";
pub(crate) const LAYER: &str = "stampede-guard layer, embedded";
pub(crate) const NEAR_LAYER: &str = "stampede-guard layer, near cache";
pub(crate) const BARE: &str = "the same service without the layer";
const FETCH: &str = "stampede-guard fetch, embedded";
const MOKA_TRY: &str = "moka try_get_with";
pub(crate) const AMALGAM: &str = "amalgam-cache get_or_set";
const FOYER: &str = "foyer get";
const ROWS: &[&str] = &[NEAR, FETCH_ARC, FETCH, MOKA, MOKA_TRY, AMALGAM, FOYER, NEAR_LAYER, LAYER, BARE];
const HOW: &str = "One key, requested in a loop by one thread and by two. `moka get` and `foyer get` look it up and \
    clone an `Arc<String>`, and so does amalgam-cache's `get_or_set`, without Redis; `fetch_arc` returns an \
    `Arc<String>`, and `fetch` of a view decodes a new `String`. 2.00 means \
    twice as many per second as `moka get`. The last three rows build a request, call the service and read the \
    response body, with and without our layer.";
const COLUMNS: &[Column] = &[
    Column { name: "ns", digits: 0 },
    Column { name: "of moka get", digits: 2 },
    Column { name: "ns, two threads", digits: 0 },
    Column { name: "of moka get, two threads", digits: 2 },
];
