//! A herd, and hits, in an increasing number of processes.

use crate::{
    Extent, Task,
    kit::{self, Usage, head, ms, row},
    support::{Monitor, Origin, RedisServer, child, herd, processes},
};
use serde::{Deserialize, Serialize};
use std::{
    convert::Infallible,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::{Duration, Instant, SystemTime},
};

#[derive(Serialize, Deserialize)]
pub(crate) struct Crowd {
    url: String,
    hits_for: Duration,
}

#[derive(Serialize, Deserialize)]
struct Herd {
    calls: usize,
    began: SystemTime,
    ended: SystemTime,
}

pub(crate) async fn measure(extent: Extent) {
    head(&[
        "processes",
        "origin calls",
        "Redis commands",
        "last answer less 50 ms, ms",
        "hits/s, all",
        "Redis busy",
        "Redis CPU per hit, µs",
    ]);
    let hits_for = Duration::from_millis(if extent.smoke { 50 } else { 2_000 });
    for &n in extent.of(&[1, 2, 4, 8, 16, 32]) {
        let server = RedisServer::start();
        let task = Task::Crowd(Crowd { url: server.url(), hits_for });
        let mut children = processes::spawn(n, "", &task);
        for child in &mut children {
            child.wait_ready().await;
        }
        let monitor = Monitor::start(&server).await;
        for child in &mut children {
            child.go().await;
        }
        let mut herds: Vec<Herd> = Vec::new();
        for child in &mut children {
            herds.push(child.result().await);
        }
        let commands = monitor.stop().await.len();
        let began = herds.iter().map(|herd| herd.began).min().expect("there are children");
        let ended = herds.iter().map(|herd| herd.ended).max().expect("there are children");
        let took = ended.duration_since(began).expect("the clock was not set meanwhile").saturating_sub(COMPUTE);
        let calls: usize = herds.iter().map(|herd| herd.calls).sum();

        for child in &mut children {
            child.wait_ready().await;
        }
        let (before, began) = (Usage::of(&server).await, Instant::now());
        for child in &mut children {
            child.go().await;
        }
        let mut hits = 0;
        for child in &mut children {
            hits += child.result::<usize>().await;
        }
        let (cpu, lasted) = (before.since(&server).await.cpu.as_secs_f64(), began.elapsed().as_secs_f64());
        for child in children {
            child.passed().await;
        }
        row(&[
            n.to_string(),
            calls.to_string(),
            commands.to_string(),
            format!("{:.1}", ms(took)),
            format!("{:.0}", hits as f64 / lasted),
            format!("{:.0} %", 100.0 * cpu / lasted),
            format!("{:.1}", cpu * 1e6 / hits as f64),
        ]);
    }
}

pub(crate) async fn be_one(crowd: Crowd) {
    let guard = kit::guard(redis::Client::open(crowd.url).expect("the URL is well-formed"));
    for key in 0..CALLERS {
        guard.fetch(format!("hit:{key}"), async || Ok::<_, Infallible>("x".repeat(1024))).await.expect("answered");
    }
    child::ready_and_wait().await;
    let (origin, began) = (Origin::new(), SystemTime::now());
    herd(CALLERS, |_| {
        let (guard, origin) = (guard.clone(), origin.clone());
        async move {
            let call = async move || Ok::<_, Infallible>(origin.work(COMPUTE).await as u64);
            guard.fetch("herd", call).await.expect("answered")
        }
    })
    .await;
    let ended = SystemTime::now();
    guard.drain().await;
    child::report(&Herd { calls: origin.calls(), began, ended });

    child::ready_and_wait().await;
    let (until, hits) = (Instant::now() + crowd.hits_for, AtomicUsize::new(0));
    let work = async |worker: usize| {
        while Instant::now() < until {
            let page = async || Ok::<_, Infallible>(String::new());
            guard.fetch(format!("hit:{worker}"), page).await.expect("answered");
            hits.fetch_add(1, Relaxed);
        }
    };
    kit::per_second(WORKERS, WORKERS, work).await;
    child::report(&hits.into_inner());
}

const CALLERS: usize = 100;
const WORKERS: usize = 16;
const COMPUTE: Duration = Duration::from_millis(50);
