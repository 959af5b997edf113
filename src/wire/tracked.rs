//! A connection that hears what has changed of what was read over it: `CLIENT TRACKING`, over RESP3.
//!
//! The server remembers which keys were read over the connection, and says so once when one of them changes, is deleted,
//! expires or is evicted, whoever did it. What it says comes in one stream with its answers, and is taken in before a later
//! answer is.

use super::{
    class::{Class, Setting, Spoken, class},
    connect::{CONNECT_TIMEOUT, Connect},
    link::{Dialled, Greet, Link},
    tls,
};
use crate::{clock::Timestamp, store::Line};
use redis::{ProtocolVersion, PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

/// Connects when it is needed and again when the connection breaks, each time with a [`Line`] of its own.
pub(crate) struct TrackedLink {
    link: Arc<dyn Link>,
    current: Current,
    every: Duration,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// The line of the connection that was made last. None if its server does not track.
type Current = Arc<Mutex<Option<Arc<Line>>>>;

impl TrackedLink {
    /// Asks that often whether the connection still holds.
    pub(crate) fn new(client: redis::Client, greet: Arc<dyn Greet>, every: Duration) -> Self {
        let current = Current::default();
        let connect = Tracking { client, current: current.clone(), spoken: Spoken::default() };
        Self { link: Arc::new(Dialled::new(connect, greet)), current, every, watchdog: Mutex::default() }
    }

    pub(crate) fn link(&self) -> &dyn Link {
        &*self.link
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
            *watchdog = Some(tokio::spawn(async move { match watch(&*link, &current, every).await {} }));
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
async fn watch(link: &dyn Link, current: &Current, every: Duration) -> Infallible {
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
    current.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

struct Tracking {
    client: redis::Client,
    current: Current,
    spoken: Spoken,
}

impl Tracking {
    async fn tracked(&self, line: Arc<Line>) -> RedisResult<MultiplexedConnection> {
        tls::prepare(&self.client);
        let info = self.client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = redis::Client::open(info.clone().set_redis_settings(settings))?;
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(1024)
            .set_push_sender(move |push: PushInfo| {
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
        let line = Arc::new(Line::new());
        let (connection, line) = match self.tracked(line.clone()).await {
            Ok(connection) => (connection, Some(line)),
            Err(error) if matches!(class(&error), Class::Disconnected | Class::Unavailable) => return Err(error),
            Err(error) => {
                self.spoken.once("near cache", &error);
                (self.client.connect().await?, None)
            }
        };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = line;
        Ok(connection)
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
