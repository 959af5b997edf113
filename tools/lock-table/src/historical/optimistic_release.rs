//! For the historical recipes `Watch` and `SetnxExpire`: compare-and-delete without a script.
//!
//! The commands are `WATCH`, `GET`, compare, `MULTI`, `DEL`, `EXEC`. A watch belongs to its connection: the `EXEC` of
//! another user of the connection ends the watch, and the `DEL` is no longer conditional. Each operation therefore uses
//! a dedicated connection. It comes from a [`redis::Client`], which can open it.

use crate::mutex::Mutex;
use crate::token_lock::TokenLock;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisResult, Value, aio::MultiplexedConnection};
use stampede_guard::{
    lock::{
        LeaseStatus,
        recipe::{Acquisition, HeldState, LockFuture, millis, release_with_retry, store_error},
    },
    store::StoreError,
};
use std::{fmt, sync::Arc, time::Duration};

/// A pool of dedicated connections: at most one operation at a time uses each.
pub(crate) struct DedicatedConnections {
    client: Client,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

impl DedicatedConnections {
    pub(crate) fn new(client: Client) -> Arc<Self> {
        Arc::new(Self { client, idle: Mutex::default() })
    }

    /// Connects without a response timeout: the lock has a timeout for its operations.
    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let config =
            AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None);
        self.client.get_multiplexed_async_connection_with_config(&config).await
    }

    /// Executes `steps` atomically if the value is `token`.
    ///
    /// If the future is dropped, the connection is closed, which ends its watch.
    async fn compare_and(&self, name: &str, token: &[u8], steps: &Pipeline) -> Result<LeaseStatus, StoreError> {
        let idle = self.idle.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect().await.map_err(store_error)?,
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
) -> RedisResult<LeaseStatus> {
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
#[derive(Debug)]
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
        release_with_retry(self.compare_and(steps.clone()), self.compare_and(steps))
    }

    fn extend(&self, ttl: Duration) -> LockFuture<LeaseStatus> {
        let mut steps = redis::pipe();
        steps.atomic().cmd("PEXPIRE").arg(&self.name).arg(millis(ttl));
        self.compare_and(steps)
    }

    fn check(&self) -> LockFuture<LeaseStatus> {
        TokenLock::new(self.acquisition.clone(), self.name.clone()).check()
    }
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of idle connections that are kept.
const MAX_IDLE: usize = 8;
