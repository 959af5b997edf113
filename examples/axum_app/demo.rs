//! The live page: sends herds to this very server, and shows what the guard makes of them.
//!
//! | request | effect |
//! |---|---|
//! | `GET /` | the page |
//! | `GET /demo/events` | what the page shows, as server-sent events |
//! | `POST /demo/herd?guard=true&requests=N` | sends a herd for one report; answers with its figures at its end |
//! | `POST /demo/invalidate?id=ID` | drops the entry of `/report/ID`, and takes the lease of a leader that computes it |
//! | `POST /demo/origin?failing=true` | lets the origin fail, or succeed again |
//! | `POST /demo/redis/stop`, `POST /demo/redis/start` | kills the Redis of `--own-redis`, or starts it again |
//! | `GET /basket` | a response that may not be shared |

mod events;
mod run;
mod same_origin;

use self::run::Run;
use crate::{
    compare::allow_open_files,
    herd::{self, Shot},
    origin::Origin,
};
use axum::{
    Json, Router,
    extract::{Query, State},
    http::{
        StatusCode, Uri,
        header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY},
    },
    middleware,
    response::{Html, IntoResponse},
    routing::{get, post},
};
use example_support::RedisServer;
use serde::Deserialize;
use stampede_guard::{StampedeGuard, http::HttpOptions};
use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex, PoisonError},
};
use tokio::sync::{Mutex as AsyncMutex, Semaphore, watch};

/// What the page shows and changes.
pub(crate) struct Demo {
    guard: StampedeGuard,
    origin: Arc<Origin>,
    address: SocketAddr,
    store: Store,
    /// The last herd without the guard, and the last one with it.
    runs: Mutex<[Option<Arc<Run>>; 2]>,
    /// Has one permit, because a second herd would spoil the figures of the first.
    herds: Arc<Semaphore>,
    /// Closed when the server stops, which waits for all responses: event streams have to end then.
    stopped: watch::Receiver<()>,
}

/// Where the guard keeps entries.
pub(crate) enum Store {
    /// In this process.
    Embedded,
    /// In the Redis that `--redis` names.
    Redis,
    /// In a Redis that this process has started. The lock is held while it stops or starts.
    OwnRedis(Box<AsyncMutex<RedisServer>>),
}

impl Demo {
    pub(crate) fn new(
        guard: StampedeGuard,
        origin: Arc<Origin>,
        address: SocketAddr,
        store: Store,
        stopped: watch::Receiver<()>,
    ) -> Self {
        let runs = Mutex::default();
        Self { guard, origin, address, store, runs, herds: Arc::new(Semaphore::new(1)), stopped }
    }

    /// Returns the routes of the page.
    pub(crate) fn routes(self: Arc<Self>) -> Router {
        let changes = Router::new()
            .route("/herd", post(send_herd))
            .route("/invalidate", post(invalidate))
            .route("/origin", post(set_origin))
            .route("/redis/stop", post(stop_redis))
            .route("/redis/start", post(start_redis))
            .layer(middleware::from_fn(same_origin::require));
        let private = Router::new().route("/basket", get(basket)).layer(self.guard.clone());
        Router::new()
            .route("/", get(page))
            .route("/demo/events", get(events::stream))
            .nest("/demo", changes)
            .route_layer(middleware::from_fn(same_origin::require_local_name))
            .merge(private)
            .with_state(self)
    }

    /// Ends the Redis that this process has started.
    pub(crate) async fn stop(&self) -> crate::Result<()> {
        match &self.store {
            Store::OwnRedis(redis) => redis.lock().await.kill().await,
            Store::Embedded | Store::Redis => Ok(()),
        }
    }

    fn runs(&self) -> [Option<Arc<Run>>; 2] {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn show(&self, run: Arc<Run>) {
        let lane = usize::from(run.guard);
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)[lane] = Some(run);
    }

    /// Returns the requests of a herd. They go to this process, whatever address it listens on.
    fn shots(&self, run: &Run, id: &str) -> Vec<Shot> {
        let server = match self.address.ip() {
            ip if ip.is_unspecified() => SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.address.port()),
            _ => self.address,
        };
        let path = if run.guard { format!("/report/{id}") } else { format!("/unguarded/report/{id}") };
        let shot = || Shot { server, path: path.clone(), answer: format!("report {id}:") };
        std::iter::repeat_with(shot).take(run.requests).collect()
    }
}

/// Returns the options of the guard: one key per report, under whatever name a client knows this host.
pub(crate) fn options() -> HttpOptions {
    HttpOptions::default().ignore_host()
}

/// The page. Another site must not show it in a frame, where a visitor could be led to click its buttons. Only a header
/// can say that; the rest of the policy is in the page.
async fn page() -> impl IntoResponse {
    ([(CONTENT_SECURITY_POLICY, "frame-ancestors 'none'")], Html(include_str!("page.html")))
}

#[derive(Deserialize)]
struct HerdQuery {
    guard: bool,
    requests: usize,
    /// Which report the herd asks for.
    #[serde(default = "default_id")]
    id: ReportId,
    /// Whether a herd with the guard finds no entry. Otherwise it may find a fresh one, which saves the last call too.
    #[serde(default = "yes")]
    cold: bool,
}

/// Sends a herd. It is bounded, so it goes on if the client leaves.
async fn send_herd(State(demo): State<Arc<Demo>>, Query(query): Query<HerdQuery>) -> Answer<impl IntoResponse> {
    if !(1..=MAX_REQUESTS).contains(&query.requests) {
        return Err(Refusal(StatusCode::BAD_REQUEST, format!("a herd has 1 to {MAX_REQUESTS} requests")));
    }
    let permit = demo.herds.clone().try_acquire_owned().map_err(|_| conflict("a herd is under way"))?;
    allow_open_files(query.requests, 1).map_err(unavailable)?;
    let herd = tokio::spawn(async move {
        let _permit = permit;
        if query.guard && query.cold {
            // If Redis is down, the guard repeats the invalidation in the background.
            _ = demo.guard.invalidate_url(&query.id.uri()).await;
        }
        let run = Arc::new(Run::new(query.guard, query.requests));
        demo.show(run.clone());
        let patience = demo.origin.delay() + herd::PATIENCE;
        run.record(&demo.origin, herd::fire(demo.shots(&run, &query.id.0), patience, &run)).await;
        run.summary()
    });
    Ok(Json(herd.await.map_err(unavailable)?))
}

#[derive(Deserialize)]
struct InvalidateQuery {
    #[serde(default = "default_id")]
    id: ReportId,
}

async fn invalidate(State(demo): State<Arc<Demo>>, Query(query): Query<InvalidateQuery>) -> Answer<StatusCode> {
    demo.guard.invalidate_url(&query.id.uri()).await.map_err(unavailable)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Deserialize)]
struct OriginQuery {
    failing: bool,
}

async fn set_origin(State(demo): State<Arc<Demo>>, Query(query): Query<OriginQuery>) -> StatusCode {
    demo.origin.set_failing(query.failing);
    StatusCode::NO_CONTENT
}

async fn stop_redis(State(demo): State<Arc<Demo>>) -> Answer<StatusCode> {
    let Store::OwnRedis(redis) = &demo.store else { return Err(conflict(NOT_OWN)) };
    redis.lock().await.kill().await.map_err(unavailable)?;
    Ok(StatusCode::NO_CONTENT)
}

async fn start_redis(State(demo): State<Arc<Demo>>) -> Answer<StatusCode> {
    let Store::OwnRedis(redis) = &demo.store else { return Err(conflict(NOT_OWN)) };
    let mut redis = redis.lock().await;
    if redis.pid().is_none() {
        redis.start_again().await.map_err(unavailable)?;
    }
    Ok(StatusCode::NO_CONTENT)
}

/// What each visitor sees alone: the guard hands it through.
async fn basket() -> impl IntoResponse {
    ([(CACHE_CONTROL, "private, no-store")], "one pot of tea\n")
}

/// The id of a report: letters and digits only, because it becomes part of a URL.
#[derive(Clone, Deserialize)]
#[serde(try_from = "String")]
struct ReportId(String);

impl ReportId {
    fn uri(&self) -> Uri {
        Uri::from_maybe_shared(format!("/report/{}", self.0)).expect("letters and digits make a path")
    }
}

impl TryFrom<String> for ReportId {
    type Error = &'static str;

    fn try_from(id: String) -> Result<Self, Self::Error> {
        let is_plain = (1..=MAX_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if is_plain { Ok(Self(id)) } else { Err("an id consists of 1 to 32 letters and digits") }
    }
}

fn default_id() -> ReportId {
    ReportId("7".to_owned())
}

fn yes() -> bool {
    true
}

type Answer<T> = Result<T, Refusal>;

/// Why a request of the page is not carried out, in words.
struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> axum::response::Response {
        (self.0, self.1).into_response()
    }
}

fn conflict(why: &str) -> Refusal {
    Refusal(StatusCode::CONFLICT, why.to_owned())
}

fn unavailable(why: impl fmt::Display) -> Refusal {
    Refusal(StatusCode::SERVICE_UNAVAILABLE, why.to_string())
}

/// Number of keys whose saved calls the page adds up. It lists the busiest of them.
pub(crate) const HOT_KEYS: usize = 64;
/// The largest herd: each request takes two open files of this process.
const MAX_REQUESTS: usize = 5_000;
const MAX_ID: usize = 32;
const NOT_OWN: &str = "this server has not started a Redis: --own-redis does";
