//! What one writes without this crate.

use redis::{RedisResult, Script, aio::MultiplexedConnection};
use std::time::Duration;

pub(crate) struct Bare {
    connection: MultiplexedConnection,
    release: Script,
}

/// What was stored under the name.
pub(crate) struct Token(String);

impl Bare {
    pub(crate) async fn connect(client: &redis::Client) -> RedisResult<Self> {
        let connection = client.get_multiplexed_async_connection().await?;
        Ok(Self { connection, release: Script::new(RELEASE) })
    }

    pub(crate) async fn try_acquire(&mut self, name: &str, ttl: Duration) -> RedisResult<Option<Token>> {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&token).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        let acquired: bool = set.query_async(&mut self.connection).await?;
        Ok(acquired.then_some(Token(token)))
    }

    /// `false` if it was lost.
    pub(crate) async fn release(&mut self, name: &str, token: &Token) -> RedisResult<bool> {
        self.release.key(name).arg(&token.0).invoke_async(&mut self.connection).await
    }
}

const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
