//! The tracked connection: the server reports changes of the keys that were read over it (`CLIENT TRACKING` over
//! RESP3).
//!
//! The server remembers which keys were read over the connection. It reports once when one of them is changed, deleted,
//! expired or evicted, by any client. Messages and replies come in one stream, and each message is handled before a
//! later reply.

use super::{
    connect::Connect,
    error_class::{ErrorClass, class},
    reconnecting::{CommandLink, Handshake, Reconnecting},
    source::Source,
    supervise::{KeptTask, answers},
};
use crate::{clock::Timestamp, redis::names::shard_of, store::tracking::InvalidationFeed, sync::mutex::Mutex};
use redis::{PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::time::sleep;

/// A connection for tracked reads, which reports changes to an [`InvalidationFeed`].
///
/// It connects in the background after the data connection, over which entries are written, and again when it breaks or
/// when the data connection was made again. The host name may have resolved to another server by then, whose writes are
/// not reported over the old connection. No command waits for it, because a server may be unable to accept a connection
/// while the others work.
pub(crate) struct TrackedConnection {
    link: Arc<Reconnecting<TrackingClient>>,
    data: Arc<dyn CommandLink>,
    feed: Arc<InvalidationFeed>,
    current: CurrentConnection,
    every: Duration,
    watchdog: KeptTask,
}

/// The connection that was made last, unless a new one is being made.
type CurrentConnection = Arc<Mutex<Option<Established>>>;

struct Established {
    /// The number of the connection. `None` if the server does not support tracking.
    tracked: Option<u64>,
    /// Generation of the data connection before the connection was made.
    generation: u64,
}

impl TrackedConnection {
    /// Builds a connection that is checked once per `every`.
    pub(crate) fn new(
        source: Source,
        data: Arc<dyn CommandLink>,
        handshake: Arc<dyn Handshake>,
        feed: Arc<InvalidationFeed>,
        every: Duration,
    ) -> Self {
        let current = CurrentConnection::default();
        let log = source.log.clone();
        let connect = TrackingClient { source, data: data.clone(), feed: feed.clone(), current: current.clone() };
        let link = Arc::new(Reconnecting::new(connect, handshake, log));
        Self { link, data, feed, current, every, watchdog: KeptTask::default() }
    }

    /// Reports whether there is a connection. Otherwise begins to connect, in the background.
    pub(crate) fn is_connected(&self) -> bool {
        // A connection made before the data connection would be replaced at once.
        if self.data.generation() == 0 {
            return false;
        }
        let Self { link, feed, current, every, .. } = self;
        self.watchdog.start(|| check_regularly(link.clone(), feed.clone(), current.clone(), *every));
        self.link.is_connected()
    }

    pub(crate) fn link(&self) -> Arc<dyn CommandLink> {
        self.link.clone()
    }

    /// Returns the number of the connection that reports the changes of all later reads. If there is another one after a
    /// read, the read may be untracked.
    pub(crate) fn tracked(&self) -> Option<u64> {
        of(&self.current)
    }
}

/// Confirms once per `every` that no message was lost. Begins to make a lost connection again.
async fn check_regularly(
    link: Arc<dyn CommandLink>,
    feed: Arc<InvalidationFeed>,
    current: CurrentConnection,
    every: Duration,
) -> Infallible {
    let every = every.clamp(Duration::from_millis(1), Duration::from_secs(3600));
    loop {
        let (before, sent_at) = (of(&current), Timestamp::now());
        // A timeout counts as silence: the link replaces a silent connection.
        let is_answered = answers(CHECK_TIMEOUT, link.send(&redis::cmd("PING"))).await;
        if is_answered && before.is_some() && of(&current) == before {
            feed.confirm_up_to(sent_at);
        }
        sleep(every).await;
    }
}

fn of(current: &CurrentConnection) -> Option<u64> {
    current.lock().as_ref()?.tracked
}

struct TrackingClient {
    source: Source,
    data: Arc<dyn CommandLink>,
    feed: Arc<InvalidationFeed>,
    current: CurrentConnection,
}

impl TrackingClient {
    async fn tracked(&self) -> RedisResult<MultiplexedConnection> {
        let feed = self.feed.clone();
        let mut connection = self.source.connect_with_pushes(move |push| handle_push(&feed, &push)).await?;
        redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
        Ok(connection)
    }
}

impl Connect for TrackingClient {
    type Connection = MultiplexedConnection;
    const SELF_HEALING: bool = false;
    const AWAITED: bool = false;

    /// Connects even to a server that does not support tracking; the age of a copy is then its only bound.
    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        *self.current.lock() = None;
        let generation = self.data.generation();
        let (connection, is_tracked) = match self.tracked().await {
            Ok(connection) => (connection, true),
            Err(error) if matches!(class(&error), ErrorClass::Refused | ErrorClass::Misconfigured(_)) => {
                self.source.log.command_failed(&error);
                (self.source.connect().await?, false)
            }
            Err(error) => return Err(error),
        };
        // Messages of the last connection may be lost, so this one must not confirm copies that were read before.
        let number = self.feed.all_changed();
        *self.current.lock() = Some(Established { tracked: is_tracked.then_some(number), generation });
        Ok(connection)
    }

    fn connect_timeout(&self) -> Duration {
        self.source.connect_timeout()
    }

    fn is_superseded(&self) -> bool {
        // Asked first, because it answers once: a process that only reads copies sends nothing on the data connection.
        let has_moved = self.source.is_superseded();
        let mut current = self.current.lock();
        let is_old = |established: &mut Established| has_moved || established.generation != self.data.generation();
        current.take_if(is_old).is_some() || has_moved
    }
}

/// Handles a message of the server. `invalidate` names keys, or none if all have changed (`FLUSHALL`).
fn handle_push(feed: &InvalidationFeed, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    let Some(Value::Array(names)) = push.data.first() else {
        feed.all_changed();
        return;
    };
    for name in names {
        match name {
            Value::BulkString(name) => feed.shard_changed(shard_of(name)),
            _ => _ = feed.all_changed(),
        }
    }
}

/// Maximum time for the reply that confirms the connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
