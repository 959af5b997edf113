//! Counts the commands that clients send to a Redis.

use crate::Result;
use futures_util::{StreamExt, stream::BoxStream};
use redis::{RedisResult, aio::MultiplexedConnection};
use std::time::Duration;
use tokio::time::timeout;

/// Watches a Redis by `MONITOR`: `INFO commandstats` would count what scripts do as well.
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

    /// The commands that Redis has taken before this call.
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
            self.seen += u64::from(is_work(&line));
        }
        Err("Redis closed the connection that counts its commands".into())
    }
}

/// Whether a line of `MONITOR` is a command that a client sent once it was connected.
///
/// A line is `1339518083.107412 [0 127.0.0.1:60866] "GET" "key"`, with `lua` in place of the address when a script runs it.
fn is_work(line: &str) -> bool {
    let Some((source, command)) = line.split_once("] \"") else { return false };
    let name = command.split('"').next().unwrap_or_default().to_ascii_uppercase();
    !source.ends_with(" lua") && !CONNECTING.contains(&name.as_str())
}

/// What connections cost, not requests.
const CONNECTING: [&str; 13] = [
    "AUTH",
    "CLIENT",
    "COMMAND",
    "HELLO",
    "INFO",
    "MONITOR",
    "PING",
    "READONLY",
    "SCRIPT",
    "SELECT",
    "SUBSCRIBE",
    "TIME",
    "UNSUBSCRIBE",
];
const PATIENCE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_one_command() {
        assert!(is_work(r#"1700000000.000001 [0 127.0.0.1:60866] "EVALSHA" "ab" "2" "k] \"get" "l""#));
        assert!(!is_work(r#"1700000000.000002 [0 lua] "get" "k""#));
    }

    #[test]
    fn connecting_is_not_work() {
        assert!(!is_work(r#"1700000000.000003 [3 [::1]:60866] "client" "SETINFO" "LIB-NAME" "redis-rs""#));
        assert!(is_work(r#"1700000000.000004 [3 [::1]:60866] "get" "client""#));
    }
}
