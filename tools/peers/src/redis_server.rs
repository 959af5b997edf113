//! Starts a `redis-server`.

#[allow(dead_code, reason = "the examples use the rest of it")]
#[path = "../../../examples/support/redis_server.rs"]
mod examples;

use crate::Result;
use redis::{Client, aio::MultiplexedConnection};
use rustix::process::{Pid, Signal, kill_process};

/// The server of the examples, with the functions that are needed here.
pub(crate) struct RedisServer(examples::RedisServer);

impl RedisServer {
    pub(crate) async fn start() -> Result<Self> {
        Ok(Self(examples::RedisServer::start().await?))
    }

    pub(crate) fn url(&self) -> String {
        self.0.url.clone()
    }

    /// Host and port.
    pub(crate) fn address(&self) -> &str {
        self.0.url.trim_start_matches("redis://")
    }

    pub(crate) async fn connection(&self) -> Result<MultiplexedConnection> {
        Ok(Client::open(&*self.0.url)?.get_multiplexed_async_connection().await?)
    }

    pub(crate) async fn flush(&self) -> Result<()> {
        let mut connection = self.connection().await?;
        Ok(redis::cmd("FLUSHALL").query_async(&mut connection).await?)
    }

    /// Returns the number of lookups since the start of the server that found their key.
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
        let pid = self.0.pid().and_then(|pid| Pid::from_raw(pid.try_into().ok()?));
        Ok(kill_process(pid.ok_or("redis-server is not running")?, signal)?)
    }

    /// Kills the server by SIGKILL. From then on connections are refused.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.0.kill().await
    }

    /// Starts a killed server again, empty and on the same port.
    pub(crate) async fn start_again(&mut self) -> Result<()> {
        self.0.start_again().await
    }
}
