//! The load of the simulated fleet, on real processes and a real Redis.

use crate::{
    Extent, Task,
    kit::{Usage, head, row},
    support::{Origin, RedisServer, child, processes},
};
use serde::{Deserialize, Serialize};
use stampede_guard::{NearCacheConfig, Policy, StampedeGuard};
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::sleep_until};

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Load {
    url: String,
    near: bool,
    rate: f64,
    seconds: f64,
}

#[derive(Serialize, Deserialize)]
struct Part {
    calls: usize,
    hits: u64,
    /// In seconds.
    took: Vec<f64>,
}

pub(crate) async fn measure(extent: Extent) {
    let (rates, seconds): (&[f64], f64) = if extent.smoke { (&[100.0], 0.5) } else { (&[250.0, 750.0], 10.0) };
    println!(
        "{PROCESSES} processes, {KEYS} keys, Zipf 1, fresh for {TTL:?} less up to a tenth, {COMPUTE:?} to compute, \
         {seconds} s from an empty Redis; simulated by `fleet --cold --processes {PROCESSES} --keys {KEYS} --ttl 2 \
         --compute 20 --spread 0 --workers 10000 --seconds {seconds}` with `--rate` and `--near`\n"
    );
    head(&[
        "requests/s per process",
        "near cache",
        "requests/s",
        "commands/s, `PING` included",
        "origin calls/s",
        "hits",
        "p50, µs",
        "p99, ms",
        "Redis busy",
    ]);
    for &rate in rates {
        for near in [false, true] {
            let server = RedisServer::start();
            let load = Load { url: server.url(), near, rate, seconds };
            let mut children = processes::spawn(PROCESSES, "", &Task::Load(load));
            for child in &mut children {
                child.wait_ready().await;
            }
            let before = Usage::of(&server).await;
            for child in &mut children {
                child.go().await;
            }
            let (mut calls, mut hits, mut took) = (0, 0, Vec::new());
            for child in &mut children {
                let part: Part = child.result().await;
                calls += part.calls;
                hits += part.hits;
                took.extend(part.took);
            }
            let usage = before.since(&server).await;
            for child in children {
                child.passed().await;
            }
            took.sort_by(f64::total_cmp);
            let quantile = |part: f64| took[(took.len() as f64 * part) as usize];
            row(&[
                rate.to_string(),
                if near { "on" } else { "off" }.to_owned(),
                format!("{:.0}", took.len() as f64 / seconds),
                format!("{:.0}", (usage.commands + usage.pings) as f64 / seconds),
                format!("{:.0}", calls as f64 / seconds),
                format!("{:.1} %", 100.0 * hits as f64 / took.len() as f64),
                format!("{:.0}", quantile(0.5) * 1e6),
                format!("{:.1}", quantile(0.99) * 1e3),
                format!("{:.1} %", 100.0 * usage.cpu.as_secs_f64() / seconds),
            ]);
        }
    }
}

/// Runs one process of the load. Requests arrive whether or not earlier ones have been answered.
pub(crate) async fn be_one(load: Load) {
    let client = redis::Client::open(load.url).expect("the URL is well-formed");
    let mut guard = StampedeGuard::new(client).policy(Policy::fresh_for(TTL));
    if load.near {
        guard = guard.near_cache(NearCacheConfig::max_bytes(64 << 20));
    }
    guard.fetch("connected", async || Ok::<_, Infallible>(String::new())).await.expect("answered");
    guard.drain().await;
    let mut up_to: Vec<f64> = (1..=KEYS).map(|rank| 1.0 / rank as f64).collect();
    (1..KEYS).for_each(|rank| up_to[rank] += up_to[rank - 1]);
    let (pages, before) = (guard.cache("key"), guard.stats().hits);

    child::ready_and_wait().await;
    let (origin, began, mut at, mut answers) = (Origin::new(), tokio::time::Instant::now(), 0.0, JoinSet::new());
    loop {
        at -= (1.0 - fastrand::f64()).ln() / load.rate;
        if at > load.seconds {
            break;
        }
        sleep_until(began + Duration::from_secs_f64(at)).await;
        let draw = fastrand::f64() * up_to[KEYS - 1];
        let key = up_to.partition_point(|sum| *sum < draw);
        let (pages, origin) = (pages.clone(), origin.clone());
        answers.spawn(async move {
            let asked = Instant::now();
            let call = async move || {
                origin.work(COMPUTE).await;
                Ok::<_, Infallible>("x".repeat(1024))
            };
            pages.entry(key).fetch_arc(call).await.expect("answered");
            asked.elapsed().as_secs_f64()
        });
    }
    let took = answers.join_all().await;
    guard.drain().await;
    child::report(&Part { calls: origin.calls(), hits: guard.stats().hits - before, took });
}

const PROCESSES: usize = 4;
const KEYS: usize = 1_000;
const TTL: Duration = Duration::from_secs(2);
const COMPUTE: Duration = Duration::from_millis(20);
