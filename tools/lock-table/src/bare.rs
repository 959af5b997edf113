//! The lock that users write without this crate.

use redis::{AsyncConnectionConfig, RedisResult, Script, aio::MultiplexedConnection};
use std::time::Duration;

pub(crate) struct Bare {
    connection: MultiplexedConnection,
    release: Script,
}

/// The value stored under the name.
pub(crate) struct Token(String);

impl Bare {
    pub(crate) async fn connect(client: &redis::Client) -> RedisResult<Self> {
        Ok(Self { connection: connect(client).await?, release: Script::new(RELEASE) })
    }

    pub(crate) async fn try_acquire(&mut self, name: &str, ttl: Duration) -> RedisResult<Option<Token>> {
        let token = format!("{:032x}", fastrand::u128(..));
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&token).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
        let acquired: bool = set.query_async(&mut self.connection).await?;
        Ok(acquired.then_some(Token(token)))
    }

    /// Releases the lock. Returns `false` if it was lost.
    pub(crate) async fn release(&mut self, name: &str, token: &Token) -> RedisResult<bool> {
        self.release.key(name).arg(&token.0).invoke_async(&mut self.connection).await
    }
}

/// Connects without a response timeout. A reply may take long on a busy machine, and redis-rs gives up after half a
/// second by default.
pub(crate) async fn connect(client: &redis::Client) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const RELEASE: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
