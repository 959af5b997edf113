//! A connection that hears what has changed of what was read over it: `CLIENT TRACKING`, over RESP3.
//!
//! The server remembers which keys were read over the connection, and says so once when one of them changes, is deleted,
//! expires or is evicted, whoever did it. What it says comes in one stream with its answers, and is taken in before a later
//! answer is.

use super::{
    class::{Class, Setting, Spoken, class},
    connect::{self, Connect},
    link::{Dialled, Greet, Link},
    tls,
};
use crate::{clock::Timestamp, store::Line};
use redis::{ProtocolVersion, PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

/// Connects when it is needed, again when the connection breaks, and again when the one beside it was made anew: its name
/// may lead to another server by then, and what is written there is not heard of here. Each time with a [`Line`] of its own.
pub(crate) struct TrackedLink {
    link: Arc<Dialled<Tracking>>,
    current: Current,
    every: Duration,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// The connection that was made last, unless another one is being made.
type Current = Arc<Mutex<Option<Made>>>;

struct Made {
    /// None if its server does not track.
    line: Option<Arc<Line>>,
    /// How many connections the link beside it had made before.
    beside: u64,
}

impl TrackedLink {
    /// Asks that often whether the connection still holds. `beside` is what is written over.
    pub(crate) fn new(client: redis::Client, greet: Arc<dyn Greet>, beside: Arc<dyn Link>, every: Duration) -> Self {
        let current = Current::default();
        let connect = Tracking { client, beside, current: current.clone(), spoken: Spoken::default() };
        Self { link: Arc::new(Dialled::new(connect, greet)), current, every, watchdog: Mutex::default() }
    }

    /// Connects, if there is no connection: what is read before is heard of by nobody.
    pub(crate) async fn connected(&self) -> RedisResult<()> {
        self.link.connected().await
    }

    pub(crate) fn link(&self) -> Arc<dyn Link> {
        self.link.clone()
    }

    /// What hears of all that is read from now on, unless there is another one when it has been read.
    pub(crate) fn line(&self) -> Option<Arc<Line>> {
        of(&self.current)
    }

    /// Starts to watch the connection, if it is not watched yet, or if the runtime in which it was has ended.
    pub(crate) fn start(&self) {
        let mut watchdog = self.watchdog.lock().unwrap_or_else(PoisonError::into_inner);
        if watchdog.as_ref().is_none_or(JoinHandle::is_finished) {
            let (link, current, every) = (self.link.clone(), self.current.clone(), self.every);
            *watchdog = Some(tokio::spawn(async move { match watch(&link, &current, every).await {} }));
        }
    }
}

impl Drop for TrackedLink {
    fn drop(&mut self) {
        let watchdog = self.watchdog.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(watchdog) = watchdog {
            watchdog.abort();
        }
    }
}

/// Confirms, again and again, that nothing went unheard. A connection that is lost is made anew.
async fn watch(link: &Dialled<Tracking>, current: &Current, every: Duration) -> Infallible {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let (line, asked) = (of(current), Timestamp::now());
        let ping = redis::cmd("PING");
        // Given up, it counts as silence: the link replaces a connection that is silent.
        let Ok(answer) = timeout(PATIENCE, link.send(&ping)).await else { continue };
        // Who may not ask is answered as well.
        let answered = answer.map_or_else(|error| class(&error) == Class::Misconfigured(Setting::Rights), |_| true);
        if let (true, Some(line), Some(now)) = (answered, line, of(current))
            && Arc::ptr_eq(&line, &now)
        {
            line.confirm(asked);
        }
    }
}

fn of(current: &Current) -> Option<Arc<Line>> {
    lock(current).as_ref()?.line.clone()
}

/// Nothing in here panics while it holds the lock.
fn lock(current: &Current) -> MutexGuard<'_, Option<Made>> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Tracking {
    client: redis::Client,
    beside: Arc<dyn Link>,
    current: Current,
    spoken: Spoken,
}

impl Tracking {
    async fn tracked(&self, line: Arc<Line>) -> RedisResult<MultiplexedConnection> {
        tls::prepare(&self.client);
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = redis::Client::open(info.clone().set_redis_settings(settings))?;
        let config = connect::config().set_push_sender(move |push: PushInfo| {
            take_in(&line, &push);
            Ok::<_, Infallible>(())
        });
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        redis::cmd("CLIENT").arg("TRACKING").arg("ON").exec_async(&mut connection).await?;
        Ok(connection)
    }
}

impl Connect for Tracking {
    type Connection = MultiplexedConnection;
    const MENDS_ITSELF: bool = false;
    const PATIENCE: Duration = <redis::Client as Connect>::PATIENCE;

    /// A server that does not track is read all the same; what was read is bounded by time alone.
    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        *lock(&self.current) = None;
        let (line, beside) = (Arc::new(Line::new()), self.beside.connections());
        let (connection, line) = match self.tracked(line.clone()).await {
            Ok(connection) => (connection, Some(line)),
            Err(error) if matches!(class(&error), Class::Disconnected | Class::Unavailable) => return Err(error),
            Err(error) => {
                self.spoken.once("near cache", &error);
                (self.client.connect().await?, None)
            }
        };
        *lock(&self.current) = Some(Made { line, beside });
        Ok(connection)
    }

    fn outdated(&self) -> bool {
        let mut current = lock(&self.current);
        current.take_if(|made| made.beside != self.beside.connections()).is_some()
    }
}

/// `invalidate` names keys, or none if all are gone (`FLUSHALL`).
fn take_in(line: &Line, push: &PushInfo) {
    if push.kind != PushKind::Invalidate {
        return;
    }
    let Some(Value::Array(names)) = push.data.first() else { return line.all_changed() };
    for name in names {
        match name {
            Value::BulkString(name) => line.changed(&name[..]),
            _ => line.all_changed(),
        }
    }
}

/// So long the server may take to say that the connection holds.
const PATIENCE: Duration = Duration::from_secs(1);
