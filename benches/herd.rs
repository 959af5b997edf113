//! The cost of a herd over Redis, and of one request: origin calls, commands, round trips, time.
//!
//! ```text
//! cargo bench --bench herd               # ten repetitions
//! cargo bench --bench herd -- --test     # one
//! ```
//!
//! Does not use criterion, because a herd is counted and takes as long as its fetch. Four processes (this binary,
//! started again) send 250 callers each for one key whose fetch takes 50 ms. Each repetition has two herds in the same
//! processes: the first one also connects to Redis, the second one finds the connections made. After that, herds of 1
//! to 100,000 callers run in this process alone. The exit code is 1 if any herd called the origin more than once.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

#[path = "herd/sizes.rs"]
mod sizes;

use serde::{Deserialize, Serialize};
use stampede_guard::{Policy, RedisStore, StampedeGuard, redis};
use stampede_guard_support as support;
use std::{
    convert::Infallible,
    env,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};
use support::{Monitor, Origin, RedisServer, Relay, child, eventually, herd, processes, relay};
use tokio::runtime::Handle;

#[tokio::main]
async fn main() -> ExitCode {
    if let Some(child::Env { task, .. }) = child::enabled::<Task>() {
        be_part_of_herds(task).await;
        return ExitCode::SUCCESS;
    }
    let smoke = env::args().any(|arg| arg == "--test");
    let (repetitions, requests) = if smoke { (1, 10) } else { (10, 1_000) };
    one_request(requests).await;
    let outcome = herds(repetitions).await;
    sizes::herds(if smoke { 1_000 } else { 100_000 }).await;
    outcome
}

/// Measures hits and misses of one process that has the server to itself.
async fn one_request(requests: usize) {
    let server = RedisServer::start();
    let guard = guard(RedisStore::new(server.client()));
    value_of(&guard, "warm").await;
    guard.drain().await;

    let monitor = Monitor::start(&server).await;
    for _ in 0..requests {
        value_of(&guard, "warm").await;
    }
    let hits = monitor.stop().await.len();
    let monitor = Monitor::start(&server).await;
    for i in 0..requests {
        value_of(&guard, &format!("cold {i}")).await;
    }
    guard.drain().await;
    let misses = monitor.stop().await.len();

    // Round trips dominate the time over this slow connection, so the time to the answer gives their number.
    let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
    relay.set(relay::Mode::Delay(ONE_WAY));
    let far = self::guard(RedisStore::new(relay.client())).store_timeout(Duration::from_secs(5));
    value_of(&far, "far").await;
    far.drain().await;
    let hit = round_trips(value_of(&far, "far")).await;
    let miss = round_trips(value_of(&far, "far and cold")).await;
    far.drain().await;

    let per_request = |commands: usize| commands as f64 / requests as f64;
    println!("one request ({requests} in turn)                    hit      miss    limits");
    println!("commands                            {:9.3} {:9.3}    1, 3", per_request(hits), per_request(misses));
    println!("round trips before the answer       {hit:9.2} {miss:9.2}    1, 2\n");
}

async fn round_trips(answer: impl Future<Output = ()>) -> f64 {
    let began = Instant::now();
    answer.await;
    began.elapsed().as_secs_f64() / (2 * ONE_WAY).as_secs_f64()
}

async fn value_of(guard: &StampedeGuard, key: &str) {
    guard.fetch(key, async || Ok::<_, Infallible>(7_u64)).await.expect("answered");
}

async fn herds(repetitions: usize) -> ExitCode {
    let server = RedisServer::start();
    let mut figures: [Vec<Figures>; HERDS.len()] = Default::default();
    for _ in 0..repetitions {
        server.flushall().await;
        let mut children = processes::spawn(PROCESSES, "", &Task { url: server.url() });
        for figures in &mut figures {
            for child in &mut children {
                child.wait_ready().await;
            }
            let monitor = Monitor::start(&server).await;
            for child in &mut children {
                child.go().await;
            }
            let mut parts: Vec<Part> = Vec::new();
            for child in &mut children {
                parts.push(child.result().await);
            }
            figures.push(Figures::of(&parts, monitor.stop().await.len()));
        }
        for child in children {
            child.passed().await;
        }
    }
    println!(
        "{PROCESSES} processes x {CALLERS} callers, one cold key, {COMPUTE:?} to compute, {repetitions} repetitions"
    );
    println!("                                       median       min       max    limit");
    for (name, figures) in HERDS.iter().zip(&figures) {
        println!("{name}");
        row("  origin calls", figures.iter().map(|f| f.origin_calls as f64), 0, 1);
        row("  last answer less compute, ms", figures.iter().map(|f| f.last_answer), 1, 50);
        row("  Redis commands", figures.iter().map(|f| f.commands as f64), 0, 3 + 6 * PROCESSES);
    }
    println!("tasks, waiters and map entries left: none");
    match figures.iter().flatten().all(|f| f.origin_calls == 1) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn row(name: &str, figures: impl Iterator<Item = f64>, digits: usize, limit: usize) {
    let mut figures: Vec<_> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let (min, max) = (figures[0], figures[figures.len() - 1]);
    let median = (figures[(figures.len() - 1) / 2] + figures[figures.len() / 2]) / 2.0;
    println!("{name:35} {median:9.digits$} {min:9.digits$} {max:9.digits$} {limit:8}");
}

/// The sums over the children of one herd.
struct Figures {
    origin_calls: usize,
    /// Time from the first request in any process to the last answer in any process, minus the fetch, in milliseconds.
    last_answer: f64,
    commands: usize,
}

impl Figures {
    fn of(parts: &[Part], commands: usize) -> Self {
        let began = parts.iter().map(|part| part.began).min().expect("there are children");
        let ended = parts.iter().map(|part| part.ended).max().expect("there are children");
        let took = ended.duration_since(began).expect("the clock was not set meanwhile");
        let origin_calls = parts.iter().map(|part| part.origin_calls).sum();
        Self { origin_calls, last_answer: took.saturating_sub(COMPUTE).as_secs_f64() * 1e3, commands }
    }
}

#[derive(Serialize, Deserialize)]
struct Task {
    url: String,
}

/// The result of a child for one herd. Times of day are comparable, because all children run on one host.
#[derive(Serialize, Deserialize)]
struct Part {
    origin_calls: usize,
    began: SystemTime,
    ended: SystemTime,
}

async fn be_part_of_herds(Task { url }: Task) {
    let store = Arc::new(RedisStore::new(redis::Client::open(url).expect("the URL is well-formed")));
    let guard = guard(store.clone());
    let mut tasks = None;
    for name in HERDS {
        child::ready_and_wait().await;
        let origin = Origin::new();
        let began = SystemTime::now();
        let answers = herd(CALLERS, |_| {
            let (guard, origin) = (guard.clone(), origin.clone());
            async move {
                let call = async move || Ok::<_, Infallible>(origin.work(COMPUTE).await as u64);
                guard.fetch(name, call).await.expect("answered")
            }
        })
        .await;
        let ended = SystemTime::now();
        assert!(answers.iter().all(|answer| *answer == 1), "all have the answer of one call");

        guard.drain().await; // the fill continues after the answers
        let idle = format!("{store:?}").contains("keys: 0");
        assert!(idle && guard.in_flight() == 0, "a waiter or a flight is left: {store:?}, {guard:?}");
        // The first herd leaves the tasks of the connections.
        let alive = || Handle::current().metrics().num_alive_tasks();
        match tasks {
            None => tasks = Some(alive()),
            Some(tasks) => eventually("no task is left", async || alive() <= tasks).await,
        }
        child::report(&Part { origin_calls: origin.calls(), began, ended });
    }
}

/// Returns a guard whose entries stay fresh longer than the bench runs.
fn guard(store: impl stampede_guard::IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).policy(Policy::fresh_for(Duration::from_secs(600)))
}

const PROCESSES: usize = 4;
const CALLERS: usize = 250;
const COMPUTE: Duration = Duration::from_millis(50);
/// The two herds, one after another in the same processes.
const HERDS: [&str; 2] = ["not yet connected", "connected"];
/// Long enough that other costs of a request are negligible.
const ONE_WAY: Duration = Duration::from_millis(25);
