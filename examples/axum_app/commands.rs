//! Counts the commands that clients send to a Redis.

use crate::Result;
use example_support::monitor;
use futures_util::{StreamExt, stream::BoxStream};
use redis::{RedisResult, aio::MultiplexedConnection};
use std::time::Duration;
use tokio::time::timeout;

/// Watches a Redis with `MONITOR`, because `INFO commandstats` would also count the commands that scripts run.
pub(crate) struct Commands {
    lines: BoxStream<'static, String>,
    connection: MultiplexedConnection,
    seen: u64,
}

impl Commands {
    pub(crate) async fn watch(redis: &str) -> Result<Self> {
        let watching: RedisResult<Self> = async {
            let redis = redis::Client::open(redis)?;
            let connection = redis.get_multiplexed_async_connection().await?;
            let lines = redis.get_async_monitor().await?.into_on_message().boxed();
            Ok(Self { lines, connection, seen: 0 })
        }
        .await;
        Ok(watching.map_err(|error| format!("cannot watch Redis: {error}"))?)
    }

    /// Returns the number of commands that Redis has received before this call.
    pub(crate) async fn so_far(&mut self) -> Result<u64> {
        let marker = format!("counted-{:016x}", fastrand::u64(..));
        let () = redis::cmd("ECHO").arg(&marker).query_async(&mut self.connection).await?;
        timeout(PATIENCE, self.read_to(&marker)).await.map_err(|_| "MONITOR shows nothing: is it permitted?")??;
        Ok(self.seen)
    }

    async fn read_to(&mut self, marker: &str) -> Result<()> {
        while let Some(line) = self.lines.next().await {
            if line.contains(marker) {
                return Ok(());
            }
            self.seen += u64::from(monitor::work(&line).is_some());
        }
        Err("Redis closed the connection that counts its commands".into())
    }
}

const PATIENCE: Duration = Duration::from_secs(5);
