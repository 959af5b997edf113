//! The faults: kind, time and duration, all drawn from the seed.

use crate::{Result, fleet::Fleet, worker::LEASE};
use example_support::RedisServer;
use fastrand::Rng;
use std::{collections::BTreeMap, time::Duration};
use tokio::{
    process::Command,
    time::{Instant, timeout},
};

pub(crate) struct Faults {
    rng: Rng,
    /// `None` if the Redis was given by `--redis`: it gets no faults.
    server: Option<RedisServer>,
    redis_is_down: bool,
    mending: Vec<(Instant, Mend)>,
    /// How many times each fault was injected.
    pub(crate) done: BTreeMap<&'static str, u32>,
}

enum Mend {
    ContinueRedis,
    StartRedis,
    ContinueWorker(usize),
}

impl Faults {
    pub(crate) fn new(seed: u64, server: Option<RedisServer>) -> Self {
        let (mending, done) = (Vec::new(), BTreeMap::new());
        Self { rng: Rng::with_seed(seed), server, redis_is_down: false, mending, done }
    }

    /// Returns the time of the next fault.
    pub(crate) fn next(&mut self) -> Instant {
        Instant::now() + Duration::from_millis(self.rng.u64(100..1_500))
    }

    /// Returns the time of the first repair.
    pub(crate) fn mending(&self) -> Option<Instant> {
        self.mending.iter().map(|(at, _)| *at).min()
    }

    pub(crate) async fn strike(&mut self, fleet: &mut Fleet) -> Result<()> {
        let ours = self.server.is_some() && !self.redis_is_down;
        let what = match self.rng.u8(..100) {
            0..=14 if ours => {
                self.redis_is_down = true;
                self.mend_in(50..1_800, Mend::ContinueRedis);
                signal("STOP", self.server.as_ref().and_then(RedisServer::pid)).await?;
                "redis stopped"
            }
            15..=27 if ours => {
                self.redis_is_down = true;
                self.mend_in(1..1_200, Mend::StartRedis);
                if let Some(server) = &mut self.server {
                    server.kill().await?;
                }
                "redis killed"
            }
            28..=39 if ours => self.order("connections cut", "CLIENT KILL TYPE normal").await?,
            40..=51 if ours => self.order("wake-ups cut", "CLIENT KILL TYPE pubsub").await?,
            52..=59 if ours => self.order("scripts flushed", "SCRIPT FLUSH").await?,
            60..=67 if ours => self.order("keys flushed", "FLUSHALL").await?,
            68..=75 if ours => {
                let pause = format!("CLIENT PAUSE {} ALL", self.rng.u32(20..700));
                self.order("clients paused", &pause).await?
            }
            76..=90 => match self.worker(fleet) {
                Some(worker) => {
                    self.mend_in(LEASE.as_millis() as u64..3_000, Mend::ContinueWorker(worker));
                    signal("STOP", fleet.workers[&worker].id()).await?;
                    "worker stopped"
                }
                None => return Ok(()),
            },
            91.. => match self.worker(fleet) {
                Some(worker) => {
                    fleet.kill(worker).await?;
                    fleet.spawn()?;
                    "worker killed"
                }
                None => return Ok(()),
            },
            _ => return Ok(()),
        };
        *self.done.entry(what).or_default() += 1;
        Ok(())
    }

    /// Makes the repairs that are due, or all of them without a time.
    pub(crate) async fn mend(&mut self, fleet: &Fleet, due: Option<Instant>) -> Result<()> {
        let is_due = |at: &Instant| due.is_none_or(|due| *at <= due);
        let mending: Vec<_> = self.mending.extract_if(.., |(at, _)| is_due(at)).collect();
        for (_, mend) in mending {
            match mend {
                Mend::ContinueRedis => {
                    signal("CONT", self.server.as_ref().and_then(RedisServer::pid)).await?;
                    self.redis_is_down = false;
                }
                Mend::StartRedis => {
                    if let Some(server) = &mut self.server {
                        server.start_again().await?;
                    }
                    self.redis_is_down = false;
                }
                Mend::ContinueWorker(worker) => {
                    signal("CONT", fleet.workers.get(&worker).and_then(tokio::process::Child::id)).await?;
                }
            }
        }
        Ok(())
    }

    fn mend_in(&mut self, millis: std::ops::Range<u64>, mend: Mend) {
        let at = Instant::now() + Duration::from_millis(self.rng.u64(millis));
        self.mending.push((at, mend));
    }

    /// Draws a worker that is not stopped.
    fn worker(&mut self, fleet: &Fleet) -> Option<usize> {
        let stopped = |worker: &usize| {
            self.mending.iter().any(|(_, mend)| matches!(mend, Mend::ContinueWorker(stopped) if stopped == worker))
        };
        let mut going: Vec<usize> = fleet.workers.keys().copied().filter(|worker| !stopped(worker)).collect();
        going.sort_unstable(); // the draw must not depend on the order of a map
        self.rng.choice(going)
    }

    /// Sends a command to the server. There may be no reply, because the next fault may have begun.
    async fn order(&self, what: &'static str, command: &str) -> Result<&'static str> {
        let Some(server) = &self.server else { return Ok(what) };
        let client = redis::Client::open(&*server.url)?;
        let mut words = command.split(' ');
        let mut order = redis::cmd(words.next().unwrap_or_default());
        words.for_each(|word| _ = order.arg(word));
        let given = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            order.exec_async(&mut connection).await
        };
        let _ = timeout(Duration::from_secs(1), given).await;
        Ok(what)
    }
}

/// Sends a signal with the shell's built-in `kill`, because std has no such function and `kill` may be missing on the
/// PATH.
async fn signal(name: &str, pid: Option<u32>) -> Result<()> {
    let Some(pid) = pid else { return Ok(()) };
    let status = Command::new("sh").args(["-c", r#"kill -s "$0" "$1""#, name, &pid.to_string()]).status().await?;
    if status.success() { Ok(()) } else { Err(format!("process {pid} does not take the signal {name}").into()) }
}
