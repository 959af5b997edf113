//! Compare-and-delete without a script: `WATCH`, `GET`, compare, `MULTI`, `DEL`, `EXEC`.
//!
//! What is watched belongs to the connection: any `EXEC` of somebody else on it forgets it, and then the `DEL` is not
//! conditional any more. So this takes a connection that nobody else uses for each operation, and it takes it from a
//! [`redis::Client`], which can make one; of a connection that others have clones of there is no such thing.

use super::recipe::{Claim, Doing, Held};
use crate::{
    lease::Hold,
    store::StoreError,
    wire::{connect_alone, millis, store_error},
};
use redis::{Pipeline, Value, aio::MultiplexedConnection};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Connections that one operation at a time uses.
pub(crate) struct Exclusive {
    client: redis::Client,
    idle: Mutex<Vec<MultiplexedConnection>>,
}

impl Exclusive {
    pub(crate) fn new(client: redis::Client) -> Arc<Self> {
        Arc::new(Self { client, idle: Mutex::default() })
    }

    /// Executes the steps if the value is the token's, all the while.
    ///
    /// Dropped at an await, the connection is closed, and with it what it watches.
    async fn compare_and(&self, name: &str, token: &[u8], steps: &Pipeline) -> Result<Hold, StoreError> {
        let idle = self.lock().pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => connect_alone(&self.client).await.map_err(store_error)?,
        };
        let held = compare_and(&mut connection, name, token, steps).await.map_err(store_error);
        let mut idle = self.lock();
        match held {
            Ok(_) if idle.len() < MOST_IDLE => idle.push(connection),
            Ok(_) => {}
            // What ended this one may have ended them all: the next one is dialled.
            Err(_) => idle.clear(),
        }
        held
    }

    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, Vec<MultiplexedConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Without the client, whose address may hold a password.
impl fmt::Debug for Exclusive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive").field("idle", &self.lock().len()).finish_non_exhaustive()
    }
}

async fn compare_and(
    connection: &mut MultiplexedConnection,
    name: &str,
    token: &[u8],
    steps: &Pipeline,
) -> redis::RedisResult<Hold> {
    let mut look = redis::pipe();
    look.cmd("WATCH").arg(name).ignore().cmd("GET").arg(name);
    loop {
        let (value,): (Value,) = look.query_async(connection).await?;
        if !matches!(&value, Value::BulkString(value) if value == token) {
            let () = redis::cmd("UNWATCH").query_async(connection).await?;
            return Ok(Hold::Lost);
        }
        if steps.query_async::<Value>(connection).await? != Value::Nil {
            return Ok(Hold::Held);
        }
        // It was touched since. That may have been an expiry for a lock that had none, and it is still the token's.
    }
}

/// A lock whose value is its holder's token.
pub(crate) struct Watched {
    pub(crate) exclusive: Arc<Exclusive>,
    pub(crate) claim: Arc<Claim>,
    pub(crate) name: String,
}

impl Watched {
    fn compare_and(&self, steps: Pipeline) -> Doing<Hold> {
        let (exclusive, claim, name) = (self.exclusive.clone(), self.claim.clone(), self.name.clone());
        Box::pin(async move { exclusive.compare_and(&name, claim.token.as_bytes(), &steps).await })
    }
}

impl Held for Watched {
    fn release(&self) -> Doing<Hold> {
        let mut steps = redis::pipe();
        steps.atomic().cmd("DEL").arg(&self.name);
        self.compare_and(steps)
    }

    fn extend(&self, ttl: Duration) -> Doing<Hold> {
        let mut steps = redis::pipe();
        steps.atomic().cmd("PEXPIRE").arg(&self.name).arg(millis(ttl));
        self.compare_and(steps)
    }

    fn check(&self) -> Doing<Hold> {
        super::owned::check(self.claim.clone(), &self.name)
    }
}

const MOST_IDLE: usize = 8;
