//! The loop that guides to locks in Redis recommend.

use super::raw::aside;
use crate::{
    Result,
    origin::Origin,
    subject::{Boxed, Entry, Kind, Setting, Subject},
};
use redis::{AsyncCommands, Client, Script, aio::ConnectionManager};
use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::time::sleep;

pub(crate) const ENTRY: Entry = Entry {
    name: "SET NX loop",
    how: "GET; SET NX PX 5000 with a token; if the lock is held, sleep 50 ms and start again; fetch, SET EX, delete \
        the lock by a script that compares the token; an error of Redis or of the origin fails the request",
    kind: Kind::Shared,
    make: |Setting { url, origin }| {
        Box::pin(async move {
            let connection = Client::open(url)?.get_connection_manager().await?;
            let next = Arc::new(AtomicU64::new(0));
            Ok(Box::new(SetNxLoop { connection, origin, next }) as _)
        })
    },
};

struct SetNxLoop {
    connection: ConnectionManager,
    origin: Origin,
    next: Arc<AtomicU64>,
}

impl Subject for SetNxLoop {
    fn get(&self, key: &str) -> Boxed<Result<usize, String>> {
        let (connection, origin, key) = (self.connection.clone(), self.origin.clone(), key.to_owned());
        let token = format!("{}-{}", std::process::id(), self.next.fetch_add(1, Relaxed));
        Box::pin(async move { get(connection, origin, &key, &token).await.map_err(|error| error.to_string()) })
    }
}

async fn get(mut redis: ConnectionManager, origin: Origin, key: &str, token: &str) -> Result<usize> {
    let lock = format!("lock:{key}");
    loop {
        if let Some(value) = redis.get::<_, Option<Vec<u8>>>(key).await? {
            return Ok(value.len());
        }
        let mut set = redis::cmd("SET");
        let locked: Option<String> =
            set.arg(&lock).arg(token).arg("NX").arg("PX").arg(5_000).query_async(&mut redis).await?;
        if locked.is_some() {
            break;
        }
        sleep(PAUSE).await;
    }
    // Another process may have filled the key between the two commands.
    let answer = aside(&mut redis, &origin, key).await?;
    let () = RELEASE.key(lock).arg(token).invoke_async(&mut redis).await?;
    answer
}

const PAUSE: Duration = Duration::from_millis(50);
static RELEASE: LazyLock<Script> = LazyLock::new(|| {
    Script::new("if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0")
});
