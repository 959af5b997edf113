//! A pool of connections as a connection, as src/guide/redis.md shows it.

use deadpool_redis::Pool;
use stampede_guard::redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisFuture, Value, aio::ConnectionLike};
use std::error::Error;

/// Sends each command over another connection of a pool.
#[derive(Clone)]
pub(crate) struct Pooled(pub(crate) Pool);

impl ConnectionLike for Pooled {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move { self.0.get().await.map_err(unavailable)?.req_packed_command(cmd).await })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(
            async move { self.0.get().await.map_err(unavailable)?.req_packed_commands(pipeline, offset, count).await },
        )
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// Turns the error of a pool into one of redis-rs: there is no connection.
pub(crate) fn unavailable(error: impl Error) -> RedisError {
    (ErrorKind::Io, "the pool has no connection", error.to_string()).into()
}
