//! Helpers shared by the measurements.

use crate::support::RedisServer;
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use stampede_guard::{IntoStore, Policy, StampedeGuard};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;

/// Prints a row of a table.
pub(crate) fn row(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

pub(crate) fn head(cells: &[&str]) {
    println!("| {} |\n|{}", cells.join(" | "), "---|".repeat(cells.len()));
}

pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

pub(crate) fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns a guard whose entries stay fresh longer than the bench runs.
pub(crate) fn guard(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).policy(Policy::fresh_for(Duration::from_secs(600)))
}

/// Runs `work` `times` times, on this number of concurrent workers. Returns the rate per second.
pub(crate) async fn per_second<F: Future>(workers: usize, times: usize, work: impl Fn(usize) -> F) -> f64 {
    let (began, rounds, work) = (Instant::now(), times.div_ceil(workers), &work);
    join_all((0..workers).map(|worker| async move {
        for round in 0..rounds {
            work(round * workers + worker).await;
        }
    }))
    .await;
    (rounds * workers) as f64 / began.elapsed().as_secs_f64()
}

/// The same with a task for each worker, like the requests of a service.
pub(crate) async fn per_second_in_tasks<F>(
    workers: usize,
    times: usize,
    work: impl Fn(usize) -> F + Send + Sync + 'static,
) -> f64
where
    F: Future + Send,
{
    let (began, rounds, work) = (Instant::now(), times.div_ceil(workers), Arc::new(work));
    let worker = |worker| {
        let work = work.clone();
        async move {
            for round in 0..rounds {
                work(round * workers + worker).await;
            }
        }
    };
    (0..workers).map(worker).collect::<JoinSet<_>>().join_all().await;
    (rounds * workers) as f64 / began.elapsed().as_secs_f64()
}

/// The work that a server has done so far.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// Its processor time.
    pub(crate) cpu: Duration,
    /// Commands that clients of the guard sent, except `PING`. Each of its scripts executes exactly one `GET`, so the
    /// calls of `GET` count them.
    pub(crate) commands: u64,
    pub(crate) pings: u64,
}

impl Usage {
    pub(crate) async fn of(server: &RedisServer) -> Self {
        let mut connection = server.connection().await;
        let mut info = async |section: &str| -> String {
            redis::cmd("INFO").arg(section).query_async(&mut connection).await.expect("the server is up")
        };
        let (cpu, stats) = (info("cpu").await, info("commandstats").await);
        let seconds = |name: &str| -> f64 {
            cpu.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).expect("the server reports it")
        };
        let calls = |name: &str| -> u64 {
            let of = |line: &str| line.strip_prefix(name)?.strip_prefix(":calls=")?.split(',').next()?.parse().ok();
            stats.lines().find_map(of).unwrap_or_default()
        };
        let cpu = Duration::from_secs_f64(seconds("used_cpu_sys:") + seconds("used_cpu_user:"));
        Self { cpu, commands: calls("cmdstat_get"), pings: calls("cmdstat_ping") }
    }

    pub(crate) async fn since(self, server: &RedisServer) -> Self {
        let now = Self::of(server).await;
        Self { cpu: now.cpu - self.cpu, commands: now.commands - self.commands, pings: now.pings - self.pings }
    }
}

pub(crate) async fn connections(server: &RedisServer, n: usize) -> Vec<MultiplexedConnection> {
    join_all((0..n).map(|_| server.connection())).await
}
