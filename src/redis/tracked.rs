//! The tracked connection: the server reports changes of the keys that were read over it (`CLIENT TRACKING` over
//! RESP3).
//!
//! The server remembers which keys were read over the connection. It reports once when one of them is changed, deleted,
//! expired or evicted, by any client. Messages and replies come in one stream, and each message is handled before a
//! later reply.

use super::{
    batch::ReadBatcher,
    connection::{
        attempts::within,
        error_class::store_error,
        reconnecting::{CommandLink, Reconnecting},
        script::introduction,
        source::{Connect, Connections, Source, info_of_process, is_one_process},
        supervise::{KeptTask, answers},
    },
    entries::EntryDecoder,
    names::shard_of,
};
use crate::{
    clock::Timestamp,
    key::CacheKey,
    store::{
        error::{Answer, StoreError},
        tracking::{InvalidationFeed, TrackedRead, TrackedReader},
    },
    sync::mutex::Mutex,
};
use redis::{ErrorKind, PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::sleep;

/// Reads over a connection of their own, which reports changes to an [`InvalidationFeed`].
///
/// It connects in the background after the data connection, over which entries are written, and again when it breaks or
/// when the data connection was made again. The host name may have resolved to another server by then, whose writes are
/// not reported over the old connection. No command waits for it, because a server may be unable to accept a connection
/// while its existing connections work.
pub(super) struct TrackedReads {
    tracking: Arc<Tracking>,
    link: Arc<Reconnecting<Tracking>>,
    reads: ReadBatcher,
    decoder: Arc<EntryDecoder>,
    watchdog: KeptTask,
}

/// The source of tracked connections.
struct Tracking {
    source: Source,
    data: Arc<dyn CommandLink>,
    feed: Arc<InvalidationFeed>,
    /// Time between two checks of the connection.
    every: Duration,
    /// The number of the connection that was made last. `None` while a new one is being made, and if the server does not
    /// support tracking.
    current: Mutex<Option<u64>>,
}

impl TrackedReads {
    /// Builds a reader whose connection is checked once per `every`.
    pub(super) fn new(
        source: Source,
        data: Arc<dyn CommandLink>,
        decoder: Arc<EntryDecoder>,
        feed: Arc<InvalidationFeed>,
        every: Duration,
    ) -> Self {
        let tracking = Arc::new(Tracking { source, data, feed, every, current: Mutex::default() });
        let link = Arc::new(Reconnecting::new(tracking.clone(), introduction(&[]), tracking.source.attempts.clone()));
        let reads = ReadBatcher::over(link.clone(), false);
        Self { tracking, link, reads, decoder, watchdog: KeptTask::default() }
    }
}

impl TrackedReader for TrackedReads {
    /// The entries are tracked if they were read over one connection that reports changes.
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(async move {
            // A connection made before the data connection would be replaced at once.
            let has_data = self.tracking.data.connection(b"") != 0;
            if has_data {
                self.watchdog.start(|| self.tracking.clone().check_regularly(self.link.clone()));
            }
            if !has_data || !self.link.is_connected() {
                return Err(StoreError::new("the tracked connection is not made yet"));
            }
            let before = self.tracking.tracked();
            let entries = self.decoder.read_all(keys, &self.reads).await?;
            // Another connection may have been made since, and the reads may have gone over it.
            Ok(TrackedRead { entries, is_tracked: before.is_some() && self.tracking.tracked() == before })
        })
    }
}

impl Tracking {
    /// Returns the number of the connection that reports the changes of all later reads. If the number has changed
    /// after a read, the read may be untracked.
    fn tracked(&self) -> Option<u64> {
        *self.current.lock()
    }

    /// Confirms once per `every` that no message was lost. Begins to make a lost connection again.
    async fn check_regularly(self: Arc<Self>, link: Arc<dyn CommandLink>) -> Infallible {
        loop {
            let (before, sent_at) = (self.tracked(), Timestamp::now());
            // A timeout counts as silence: the link replaces a silent connection.
            let is_answered = answers(CHECK_TIMEOUT, link.send(&redis::cmd("PING"))).await;
            if is_answered && before.is_some() && self.tracked() == before {
                self.feed.confirm_up_to(sent_at);
            }
            sleep(self.every).await;
        }
    }

    async fn connect_tracked(&self) -> RedisResult<MultiplexedConnection> {
        let feed = self.feed.clone();
        let mut connection = self.source.connect_with_pushes(move |push| handle_push(&feed, &push)).await?;
        within(CHECK_TIMEOUT, redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection)).await?;
        Ok(connection)
    }
}

impl Connect for Tracking {
    type Connection = MultiplexedConnection;

    /// Connects even to a server that does not support tracking; the age of a copy is then its only bound.
    async fn connect(&self) -> RedisResult<Connections<MultiplexedConnection>> {
        *self.current.lock() = None;
        let (connections, is_tracked) = match self.connect_tracked().await {
            Ok(main) => (Connections { main, reads: None }, true),
            Err(error) if store_error(error.clone()).is_refused() => {
                self.source.attempts.log.command_failed(&error);
                (self.source.connect().await?, false)
            }
            Err(error) => return Err(error),
        };
        // Another server may have lost what the data connection has invalidated.
        let (info, mut tracked) = (info_of_process(), connections.main.clone());
        let is_one = is_one_process(self.data.read(&info), info.query_async(&mut tracked)).await;
        if !is_one.unwrap_or_else(|| !self.data.is_paired()) {
            return Err(OTHER_SERVER.into());
        }
        // Messages of the last connection may be lost, so this one must not confirm copies that were read before.
        *self.current.lock() = is_tracked.then_some(self.feed.all_changed());
        Ok(connections)
    }

    /// The data connection is a part of it: the host name may have resolved to another server when it was made again.
    fn lead(&self) -> u64 {
        self.source.lead() + self.data.connection(b"")
    }
}

/// Handles a message of the server. `invalidate` names keys, or none if all have changed (`FLUSHALL`).
fn handle_push(feed: &InvalidationFeed, push: &PushInfo) {
    match push.data.first() {
        _ if push.kind != PushKind::Invalidate => {}
        Some(Value::Array(names)) => names.iter().for_each(|name| match name {
            Value::BulkString(name) => feed.shard_changed(shard_of(name)),
            _ => _ = feed.all_changed(),
        }),
        _ => _ = feed.all_changed(),
    }
}

/// Only a tracked connection depends on that, so this is no failed attempt to connect.
const OTHER_SERVER: (ErrorKind, &str) =
    (ErrorKind::Client, "the tracked connection leads to another server than the data connection");
/// Maximum time for the reply that confirms the connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{redis::connection::endpoint::IntoEndpoint, store::wake::WakeRegistry};

    /// The clock of the server was set back by ten seconds. Only a lease shows it, which the data link gets. All entries
    /// would be from the future for the reads, and each request would fetch.
    ///
    /// Seen to fail when each link has a clock of its own.
    #[tokio::test]
    async fn tracked_reads_follow_the_clock_that_the_data_link_learns() {
        let server = redis::Client::open("redis://127.0.0.1/").expect("a URL").into_endpoint();
        let (data, _) = server.connect(introduction(&[]), Arc::new(WakeRegistry::new()), true);
        let (feed, source) = (Arc::new(InvalidationFeed::new(Arc::default())), server.server().expect("one server"));
        let tracked = TrackedReads::new(source, data.clone(), Arc::default(), feed, CHECK_TIMEOUT);
        let learnt = [&data, &tracked.reads.link].map(|link| link.clock(&String::new));
        let now = Timestamp::now();
        for stamp in [1_010_000_000, 1_000_000_000] {
            learnt[0].learn(stamp, now, now);
            assert_eq!(learnt[1].offset(), learnt[0].offset());
        }
    }
}
