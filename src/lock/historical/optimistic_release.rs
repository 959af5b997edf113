//! For the historical recipes `Watch` and `SetnxExpire`: compare-and-delete without a script.
//!
//! The commands are `WATCH`, `GET`, compare, `MULTI`, `DEL`, `EXEC`. A watch belongs to its connection: the `EXEC` of
//! another user of the connection ends the watch, and the `DEL` is no longer conditional. Each operation therefore uses
//! a dedicated connection. It comes from a [`redis::Client`], which can open it.

use crate::{
    lock::attempt::{Acquisition, HeldState, LockFuture},
    redis::connection::{error_class::store_error, script::millis, source::Source},
    store::{error::StoreError, lease::LeaseStatus},
    sync::mutex::Mutex,
};
use redis::{Pipeline, Value, aio::MultiplexedConnection};
use std::{fmt, sync::Arc, time::Duration};

/// A pool of dedicated connections: at most one operation at a time uses each.
pub(crate) struct DedicatedConnections {
    source: Source,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

impl DedicatedConnections {
    pub(crate) fn new(client: redis::Client) -> Arc<Self> {
        Arc::new(Self { source: Source::of_client(client), idle: Mutex::default() })
    }

    /// Executes `steps` atomically if the value is `token`.
    ///
    /// If the future is dropped, the connection is closed, which ends its watch.
    async fn compare_and(&self, name: &str, token: &[u8], steps: &Pipeline) -> Result<LeaseStatus, StoreError> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.source.connect().await.map_err(store_error)?,
        };
        let held = compare_and(&mut connection, name, token, steps).await.map_err(store_error);
        let mut idle = self.idle.lock();
        match held {
            Ok(_) if idle.len() < MAX_IDLE => idle.push(connection),
            Ok(_) => {}
            // The cause of this error may have broken the idle connections too, so the next operation opens a new one.
            Err(_) => idle.clear(),
        }
        held
    }
}

/// Omits the client, because its address may contain a password.
impl fmt::Debug for DedicatedConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DedicatedConnections").field("idle", &self.idle.lock().len()).finish_non_exhaustive()
    }
}

async fn compare_and(
    connection: &mut MultiplexedConnection,
    name: &str,
    token: &[u8],
    steps: &Pipeline,
) -> redis::RedisResult<LeaseStatus> {
    let mut look = redis::pipe();
    look.cmd("WATCH").arg(name).ignore().cmd("GET").arg(name);
    loop {
        let (value,): (Value,) = look.query_async(connection).await?;
        if !matches!(&value, Value::BulkString(value) if value == token) {
            let () = redis::cmd("UNWATCH").query_async(connection).await?;
            return Ok(LeaseStatus::Lost);
        }
        if steps.query_async::<Value>(connection).await? != Value::Nil {
            return Ok(LeaseStatus::Held);
        }
        // The key was modified after `WATCH`. Look again: a contender may only have set an expiry, and the token is
        // still the value.
    }
}

/// A held lock whose value is the token of its holder.
pub(crate) struct OptimisticRelease {
    pub(crate) connections: Arc<DedicatedConnections>,
    pub(crate) acquisition: Arc<Acquisition>,
    pub(crate) name: String,
}

impl OptimisticRelease {
    fn compare_and(&self, steps: Pipeline) -> LockFuture<LeaseStatus> {
        let (connections, acquisition, name) = (self.connections.clone(), self.acquisition.clone(), self.name.clone());
        Box::pin(async move { connections.compare_and(&name, acquisition.token.as_bytes(), &steps).await })
    }
}

impl HeldState for OptimisticRelease {
    fn release(&self) -> LockFuture<LeaseStatus> {
        let mut steps = redis::pipe();
        steps.atomic().cmd("DEL").arg(&self.name);
        self.compare_and(steps)
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        let mut steps = redis::pipe();
        steps.atomic().cmd("PEXPIRE").arg(&self.name).arg(millis(ttl));
        self.compare_and(steps)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        crate::lock::token_lock::check_token(self.acquisition.clone(), &self.name)
    }
}

/// Maximum number of idle connections that are kept.
const MAX_IDLE: usize = 8;
