//! The loop of the post "Redis as a mutex service" (2012).

use super::raw::aside;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use redis::{AsyncCommands, Client, aio::ConnectionManager};
use std::time::Duration;
use tokio::time::sleep;

pub(crate) const ENTRY: Entry = Entry {
    name: "SADD loop",
    how: "GET; SADD the name of the lock; if the lock is held, sleep 100 ms and start again; fetch, SET EX, SREM. \
        The lock has no TTL; an error of Redis or of the origin fails the request, the latter after SREM",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move {
            let connection = Client::open(url)?.get_connection_manager().await?;
            Ok(Box::new(SeedLoop { connection, origin }) as _)
        })
    },
};

struct SeedLoop {
    connection: ConnectionManager,
    origin: Origin,
}

impl Subject for SeedLoop {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (connection, origin, key) = (self.connection.clone(), self.origin.clone(), key.to_owned());
        Box::pin(async move { get(connection, origin, &key).await.map_err(|error| error.to_string()) })
    }
}

async fn get(mut redis: ConnectionManager, origin: Origin, key: &str) -> Result<usize> {
    loop {
        if let Some(value) = redis.get::<_, Option<Vec<u8>>>(key).await? {
            return Ok(value.len());
        }
        let locked: usize = redis.sadd(LOCKS, key).await?;
        if locked == 1 {
            break;
        }
        sleep(PAUSE).await;
    }
    // Another process may have filled the key between the two commands.
    let answer = aside(&mut redis, &origin, key).await?;
    let () = redis.srem(LOCKS, key).await?;
    answer
}

const LOCKS: &str = "locks";
const PAUSE: Duration = Duration::from_millis(100);
