//! redis-rs without a cache: the time of one GET, and of code without a lock.

use super::TTL;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Subject},
};
use redis::{
    AsyncCommands, Client,
    aio::{ConnectionManager, MultiplexedConnection},
};

pub(crate) const GET: Entry = Entry {
    name: "redis-rs GET",
    how: "one GET over a MultiplexedConnection, no origin: the reference",
    kind: Kind::Floor,
    make: |setting| {
        Box::pin(async move {
            let connection = Client::open(setting.url)?.get_multiplexed_async_connection().await?;
            Ok(Box::new(Get { connection }) as _)
        })
    },
};

pub(crate) const ASIDE: Entry = Entry {
    name: "redis-rs, no lock",
    how: "GET; on a miss fetch, SET EX; a ConnectionManager; an error of Redis fails the request",
    kind: Kind::Shared,
    make: |setting| {
        Box::pin(async move {
            let connection = Client::open(setting.url)?.get_connection_manager().await?;
            Ok(Box::new(Aside { connection, origin: setting.origin }) as _)
        })
    },
};

struct Get {
    connection: MultiplexedConnection,
}

impl Subject for Get {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (mut connection, key) = (self.connection.clone(), key.to_owned());
        Box::pin(async move {
            let value: Option<Vec<u8>> = connection.get(key).await.map_err(|error| error.to_string())?;
            Ok(value.map_or(0, |value| value.len()))
        })
    }
}

struct Aside {
    connection: ConnectionManager,
    origin: Origin,
}

impl Subject for Aside {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (mut connection, origin, key) = (self.connection.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move {
            let answer = aside(&mut connection, &origin, &key).await;
            answer.and_then(|answer| answer).map_err(|error| error.to_string())
        })
    }
}

/// Returns the cached value, or calls the origin and stores its value. The outer error is an error of Redis, the inner
/// one an error of the origin.
pub(super) async fn aside(redis: &mut ConnectionManager, origin: &Origin, key: &str) -> Result<Result<usize>> {
    if let Some(value) = redis.get::<_, Option<Vec<u8>>>(key).await? {
        return Ok(Ok(value.len()));
    }
    let value = match origin.value(key).await {
        Ok(value) => value,
        Err(error) => return Ok(Err(error)),
    };
    let () = redis.set_ex(key, &value, TTL.as_secs()).await?;
    Ok(Ok(value.len()))
}
