//! The tracked connection: the server reports changes of the keys that were read over it (`CLIENT TRACKING` over
//! RESP3).
//!
//! The server remembers which keys were read over the connection. It reports once when one of them is changed, deleted,
//! expired or evicted, by any client. Messages and replies come in one stream, and each message is handled before a
//! later reply.

use super::{
    connect::Connect,
    error_class::{ErrorClass, Misconfiguration, class},
    reconnecting::{CommandLink, Handshake, Reconnecting},
    source::Source,
};
use crate::{clock::Timestamp, store::tracking::InvalidationFeed, sync::mutex::Mutex};
use redis::{PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

/// A connection for tracked reads, with a new [`InvalidationFeed`] for each connection that is made.
///
/// It connects in the background after the data connection has done so, and again when it breaks. No command waits for
/// it, because a server may be unable to accept a connection while the others work. It also connects again after the
/// data connection has done so. The host name may have resolved to another server by then, whose writes are not
/// reported here.
pub(crate) struct TrackedConnection {
    link: Arc<Reconnecting<TrackingClient>>,
    data: Arc<dyn CommandLink>,
    current: CurrentConnection,
    every: Duration,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// The connection that was made last, unless a new one is being made.
type CurrentConnection = Arc<Mutex<Option<Established>>>;

struct Established {
    /// `None` if the server does not support tracking.
    feed: Option<Arc<InvalidationFeed>>,
    /// Generation of the data connection before this one was made.
    data: u64,
}

impl TrackedConnection {
    /// Builds a link that confirms once per `every` that the connection works. `data` is the data connection, over
    /// which entries are written.
    pub(crate) fn new(
        source: Source,
        handshake: Arc<dyn Handshake>,
        data: Arc<dyn CommandLink>,
        every: Duration,
    ) -> Self {
        let current = CurrentConnection::default();
        let log = source.log.clone();
        let connect = TrackingClient { source, data: data.clone(), current: current.clone() };
        let link = Arc::new(Reconnecting::new(connect, handshake, log));
        Self { link, data, current, every, watchdog: Mutex::default() }
    }

    /// Reports whether there is a connection. Otherwise begins to connect, in the background.
    pub(crate) fn is_connected(&self) -> bool {
        // A connection made before the data connection would be replaced at once.
        if self.data.generation() == 0 {
            return false;
        }
        self.start_watchdog();
        self.link.is_connected()
    }

    pub(crate) fn link(&self) -> Arc<dyn CommandLink> {
        self.link.clone()
    }

    /// Returns the feed that gets the changes of all later reads. If another feed is current after a read, the read may
    /// be untracked.
    pub(crate) fn feed(&self) -> Option<Arc<InvalidationFeed>> {
        of(&self.current)
    }

    /// Starts the task that confirms the connection, if it does not run yet or if its runtime has ended.
    fn start_watchdog(&self) {
        let mut watchdog = self.watchdog.lock();
        if watchdog.as_ref().is_none_or(JoinHandle::is_finished) {
            let (link, current, every) = (self.link.clone(), self.current.clone(), self.every);
            *watchdog = Some(tokio::spawn(async move { match confirm_regularly(&link, &current, every).await {} }));
        }
    }
}

impl Drop for TrackedConnection {
    fn drop(&mut self) {
        if let Some(watchdog) = self.watchdog.get_mut() {
            watchdog.abort();
        }
    }
}

/// Confirms at each tick that no message was lost. Begins to make a lost connection again.
async fn confirm_regularly(
    link: &Reconnecting<TrackingClient>,
    current: &CurrentConnection,
    every: Duration,
) -> Infallible {
    // An interval must not be zero, and a tick must not lie beyond the range of an `Instant`.
    let mut ticks = interval(every.clamp(Duration::from_millis(1), Duration::from_secs(3600)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (feed, sent_at) = (of(current), Timestamp::now());
        let ping = redis::cmd("PING");
        // A timeout counts as silence: the link replaces a silent connection.
        let Ok(answer) = timeout(CHECK_TIMEOUT, link.send(&ping)).await else { continue };
        // A permission error is a reply, so the connection works.
        let is_answered =
            answer.map_or_else(|error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights), |_| true);
        if let (true, Some(feed), Some(now)) = (is_answered, feed, of(current))
            && Arc::ptr_eq(&feed, &now)
        {
            feed.confirm_up_to(sent_at);
        }
    }
}

fn of(current: &CurrentConnection) -> Option<Arc<InvalidationFeed>> {
    current.lock().as_ref()?.feed.clone()
}

struct TrackingClient {
    source: Source,
    data: Arc<dyn CommandLink>,
    current: CurrentConnection,
}

impl TrackingClient {
    async fn tracked(&self, feed: Arc<InvalidationFeed>) -> RedisResult<MultiplexedConnection> {
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
        let (feed, data) = (Arc::new(InvalidationFeed::new()), self.data.generation());
        let (connection, feed) = match self.tracked(feed.clone()).await {
            Ok(connection) => (connection, Some(feed)),
            Err(error) if matches!(class(&error), ErrorClass::Disconnected | ErrorClass::Unavailable) => {
                return Err(error);
            }
            Err(error) => {
                self.source.log.command_failed(&error);
                (self.source.connect().await?, None)
            }
        };
        *self.current.lock() = Some(Established { feed, data });
        Ok(connection)
    }

    fn connect_timeout(&self) -> Duration {
        self.source.connect_timeout()
    }

    fn is_superseded(&self) -> bool {
        let mut current = self.current.lock();
        current.take_if(|established| established.data != self.data.generation()).is_some()
    }
}

/// Handles a message of the server. `invalidate` names keys, or none if all have changed (`FLUSHALL`).
fn handle_push(feed: &InvalidationFeed, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    let Some(Value::Array(names)) = push.data.first() else { return feed.all_changed() };
    for name in names {
        match name {
            Value::BulkString(name) => feed.changed(&name[..]),
            _ => feed.all_changed(),
        }
    }
}

/// Maximum time for the reply that confirms the connection.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
