//! The tracked connection: the server reports changes of the keys that were read over it (`CLIENT TRACKING` over
//! RESP3).
//!
//! The server remembers which keys were read over the connection. It reports once when one of them is changed, deleted,
//! expired or evicted, by any client. Messages and replies come in one stream, and each message is handled before a
//! later reply.

use super::{
    connect::{Connect, RECONNECT_PAUSE},
    error_class::{ErrorClass, Misconfiguration, class},
    reconnecting::{CommandLink, Handshake, Reconnecting},
    source::Source,
};
use crate::{
    clock::Timestamp,
    store::{error::BoxFuture, tracking::InvalidationFeed},
    sync::mutex::Mutex,
};
use redis::{PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{sleep, timeout},
};

/// Decides whether the messages of a tracked connection count: whether its server takes the writes.
pub(crate) trait Authority: Send + Sync + 'static {
    /// Returns a number that changes when connections made before are to be replaced. 0: none is to be made yet.
    fn generation(&self) -> u64;

    /// Returns the longest pause between attempts to connect, which grows with each that failed.
    fn longest_pause(&self) -> Duration {
        RECONNECT_PAUSE
    }

    /// Checks the server over its connection.
    fn check<'a>(&'a self, link: &'a dyn CommandLink) -> BoxFuture<'a, Check>;
}

/// The result of a check.
#[derive(Default)]
pub(crate) struct Check {
    /// Whether the server has ceased to take the writes of some of the names. All versions end then.
    pub(crate) has_lost: bool,
    /// The time until which all changes were reported.
    pub(crate) confirmed: Option<Timestamp>,
}

/// The authority of a single server: the data connection, over which entries are written.
///
/// Tracked reads have a connection after it has one, and again when it was made again. The host name may have resolved
/// to another server by then, whose writes are not reported over the old connection.
pub(crate) struct SingleServer(pub(crate) Arc<dyn CommandLink>);

impl Authority for SingleServer {
    fn generation(&self) -> u64 {
        self.0.generation()
    }

    fn check<'a>(&'a self, link: &'a dyn CommandLink) -> BoxFuture<'a, Check> {
        Box::pin(async move {
            let sent_at = Timestamp::now();
            let answer = link.send(&redis::cmd("PING")).await;
            // A permission error is a reply, so the connection works.
            let is_answered = answer
                .map_or_else(|error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights), |_| true);
            Check { has_lost: false, confirmed: is_answered.then_some(sent_at) }
        })
    }
}

/// A connection for tracked reads, with a new [`InvalidationFeed`] for each connection that is made.
///
/// It connects in the background, and again when it breaks or when its [`Authority`] says so. No command waits for it,
/// because a server may be unable to accept a connection while the others work.
pub(crate) struct TrackedConnection {
    link: Arc<Reconnecting<TrackingClient>>,
    authority: Arc<dyn Authority>,
    current: CurrentConnection,
    every: Duration,
    /// Asks the watchdog for a check.
    check: Arc<Notify>,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// The connection that was made last, unless a new one is being made.
type CurrentConnection = Arc<Mutex<Option<Established>>>;

struct Established {
    /// `None` if the server does not support tracking.
    feed: Option<Arc<InvalidationFeed>>,
    /// Generation of the authority before the connection was made.
    generation: u64,
}

impl TrackedConnection {
    /// Builds a connection that its authority checks once per `every`.
    pub(crate) fn new(
        source: Source,
        handshake: Arc<dyn Handshake>,
        authority: Arc<dyn Authority>,
        every: Duration,
    ) -> Self {
        let current = CurrentConnection::default();
        let log = source.log.clone();
        let connect = TrackingClient {
            source,
            authority: authority.clone(),
            current: current.clone(),
            failures: AtomicU32::new(0),
        };
        let link = Arc::new(Reconnecting::new(connect, handshake, log));
        Self { link, authority, current, every, check: Arc::default(), watchdog: Mutex::default() }
    }

    /// Reports whether there is a connection. Otherwise begins to connect, in the background.
    pub(crate) fn is_connected(&self) -> bool {
        // A connection made before the data connection would be replaced at once.
        if self.authority.generation() == 0 {
            return false;
        }
        self.start_watchdog();
        self.link.is_connected()
    }

    /// Asks for a check before the next regular one. It comes at most once a second.
    pub(crate) fn check_soon(&self) {
        self.check.notify_one();
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
            let (link, authority, current) = (self.link.clone(), self.authority.clone(), self.current.clone());
            let (every, check) = (self.every, self.check.clone());
            *watchdog = Some(tokio::spawn(async move {
                match check_regularly(&*link, &*authority, &current, every, &check).await {}
            }));
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

/// Confirms once per `every` that no message was lost, and when it is asked to. Begins to make a lost connection again.
async fn check_regularly(
    link: &dyn CommandLink,
    authority: &dyn Authority,
    current: &CurrentConnection,
    every: Duration,
    asked: &Notify,
) -> Infallible {
    let every = every.clamp(Duration::from_millis(1), Duration::from_secs(3600));
    loop {
        let before = of(current);
        // A timeout counts as silence: the link replaces a silent connection.
        if let Ok(check) = timeout(CHECK_TIMEOUT, authority.check(link)).await
            && let Some(feed) = of(current)
        {
            let is_unbroken = before.is_some_and(|before| Arc::ptr_eq(&before, &feed));
            apply(&check, &feed, is_unbroken);
        }
        let pause = every.min(CHECK_PAUSE);
        sleep(pause).await;
        _ = timeout(every - pause, asked.notified()).await;
    }
}

fn apply(check: &Check, feed: &InvalidationFeed, is_unbroken: bool) {
    if check.has_lost {
        feed.all_changed();
    }
    if let Some(confirmed) = check.confirmed.filter(|_| is_unbroken) {
        feed.confirm_up_to(confirmed);
    }
}

fn of(current: &CurrentConnection) -> Option<Arc<InvalidationFeed>> {
    current.lock().as_ref()?.feed.clone()
}

struct TrackingClient {
    source: Source,
    authority: Arc<dyn Authority>,
    current: CurrentConnection,
    /// Attempts to connect since the last one that succeeded.
    failures: AtomicU32,
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
        let failures = self.failures.load(Relaxed);
        self.failures.store(failures.saturating_add(1), Relaxed);
        let (feed, generation) = (Arc::new(InvalidationFeed::new()), self.authority.generation());
        let (connection, feed) = match self.tracked(feed.clone()).await {
            Ok(connection) => (connection, Some(feed)),
            Err(error) if matches!(class(&error), ErrorClass::Refused | ErrorClass::Misconfigured(_)) => {
                self.source.log.command_failed(&error);
                (self.source.connect().await?, None)
            }
            Err(error) => return Err(error),
        };
        *self.current.lock() = Some(Established { feed, generation });
        self.failures.store(0, Relaxed);
        Ok(connection)
    }

    fn reconnect_pause(&self) -> Duration {
        let doublings = self.failures.load(Relaxed).saturating_sub(1).min(10);
        (RECONNECT_PAUSE * (1 << doublings)).min(self.authority.longest_pause())
    }

    fn connect_timeout(&self) -> Duration {
        self.source.connect_timeout()
    }

    fn is_superseded(&self) -> bool {
        // Asked first, because it answers once: a process that only reads copies sends nothing on the data connection.
        let has_moved = self.source.is_superseded();
        let mut current = self.current.lock();
        let is_old = |established: &mut Established| has_moved || established.generation != self.authority.generation();
        current.take_if(is_old).is_some() || has_moved
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
/// Minimum time before a check that was asked for.
const CHECK_PAUSE: Duration = Duration::from_secs(1);
