//! A `redis-server` of our own.

use crate::Result;
use redis::{Client, aio::MultiplexedConnection};
use rustix::process::{Pid, Signal, kill_process};
use std::{net::TcpListener, process::Stdio, time::Duration};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::{sleep, timeout},
};

/// Keeps nothing on disk; killed when this is dropped.
pub(crate) struct RedisServer {
    port: u16,
    process: Child,
    dir: TempDir,
}

impl RedisServer {
    /// Starts the `redis-server` of the PATH on a free port of the loopback interface.
    pub(crate) async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let process = run(port, &dir).await?;
        Ok(Self { port, process, dir })
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn address(&self) -> (&'static str, u16) {
        ("127.0.0.1", self.port)
    }

    pub(crate) async fn connection(&self) -> Result<MultiplexedConnection> {
        Ok(Client::open(self.url())?.get_multiplexed_async_connection().await?)
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        Ok(redis::cmd("FLUSHALL").query_async(&mut connection).await?)
    }

    /// Lookups that found their key, since the server was started.
    pub(crate) async fn hits(&self) -> Result<u64> {
        let mut connection = self.connection().await?;
        let info: String = redis::cmd("INFO").arg("stats").query_async(&mut connection).await?;
        let hits = info.lines().find_map(|line| line.strip_prefix("keyspace_hits:")).ok_or("no keyspace_hits")?;
        Ok(hits.trim().parse()?)
    }

    pub(crate) fn stop(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    pub(crate) fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.process.id().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        Ok(kill_process(pid.ok_or("redis-server is not running")?, signal)?)
    }

    /// By SIGKILL. From then on connections are refused.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        Ok(self.process.kill().await?)
    }

    /// Starts a killed one again, empty and on the same port.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        let mut tried = 0;
        loop {
            match run(self.port, &self.dir).await {
                Ok(process) => {
                    self.process = process;
                    return Ok(());
                }
                // For a moment the port may be that of somebody's outgoing connection.
                Err(_) if tried < TRIES => tried += 1,
                Err(error) => return Err(error),
            }
            sleep(PAUSE).await;
        }
    }
}

async fn run(port: u16, dir: &TempDir) -> Result<Child> {
    let mut process = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--daemonize", "no"])
        .arg("--dir")
        .arg(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("cannot start redis-server: {error}"))?;
    timeout(PATIENCE, ready(&mut process)).await.map_err(|_| "redis-server does not get ready")??;
    Ok(process)
}

/// Reads the log until it says so.
async fn ready(process: &mut Child) -> Result<()> {
    let stdout = process.stdout.take().ok_or("redis-server has no stdout")?;
    let mut log = BufReader::new(stdout).lines();
    let mut last = String::new();
    while let Some(line) = log.next_line().await? {
        if line.contains("Ready to accept connections") {
            return Ok(());
        }
        last = line;
    }
    Err(format!("redis-server does not start: {last}").into())
}

const PATIENCE: Duration = Duration::from_secs(10);
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(50);
