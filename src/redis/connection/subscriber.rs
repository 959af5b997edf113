//! The subscriber of messages to this process: one connection, one channel, nothing else.

use super::{
    connect::Connect,
    error_class::{ErrorClass, Misconfiguration, class},
    reconnecting::CommandLink,
    source::Source,
};
use crate::{backoff, clock, store::token::Inbox, sync::mutex::Mutex};
use redis::{ErrorKind, PushInfo, PushKind, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    task::JoinHandle,
    time::{MissedTickBehavior, interval_at, timeout},
};

/// The handler of messages.
pub(crate) trait MessageHandler: Send + Sync + 'static {
    fn inbox(&self) -> Inbox;

    /// Handles a message. Must not block, because the connection waits meanwhile.
    fn on_message(&self, message: &[u8]);

    /// Handles a gap: messages may have been lost.
    fn on_gap(&self);
}

/// A subscriber: connects when first used, and again whenever the connection is lost, until it is dropped.
///
/// It also subscribes again if a message that the data connection publishes does not arrive. A server may answer every
/// PING and yet hear nothing: an old master that was cut off, or a node that was removed from its cluster. It does so at
/// once if sentinels name another master.
pub(crate) struct Subscriber {
    listener: Listener,
    state: watch::Sender<State>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
struct Listener {
    source: Source,
    data: Arc<dyn CommandLink>,
    handler: Arc<dyn MessageHandler>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Live,
    Down,
}

impl Subscriber {
    /// Builds a subscriber. `data` is the data connection, whose scripts publish the messages.
    pub(crate) fn new(source: Source, data: Arc<dyn CommandLink>, handler: Arc<dyn MessageHandler>) -> Self {
        let listener = Listener { source, data, handler };
        Self { listener, state: watch::Sender::new(State::Down), task: Mutex::new(None) }
    }

    /// Starts to listen if it does not listen yet, or if the runtime of its task has ended.
    pub(crate) fn start(&self) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            self.state.send_replace(State::Connecting);
            *task = Some(tokio::spawn(self.listener.clone().listen(self.state.clone())));
        }
    }

    /// Reports whether messages arrive now.
    pub(crate) fn is_up(&self) -> bool {
        *self.state.borrow() == State::Live
    }

    /// Reports whether messages arrive. Waits up to `FIRST_SUBSCRIPTION_TIMEOUT` for a first attempt to connect.
    pub(crate) async fn is_live(&self) -> bool {
        let mut state = self.state.subscribe();
        let decided = state.wait_for(|state| *state != State::Connecting);
        matches!(timeout(FIRST_SUBSCRIPTION_TIMEOUT, decided).await, Ok(Ok(state)) if *state == State::Live)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl Listener {
    async fn listen(self, state: watch::Sender<State>) {
        let (mut failed, mut was_live) = (0, false);
        let timed_out = |_| Err(RedisError::from((ErrorKind::Io, "subscribing to redis timed out")));
        loop {
            let mut refused = false;
            match timeout(self.source.connect_timeout(), self.subscribe()).await.unwrap_or_else(timed_out) {
                Ok(channel) => {
                    failed = 0;
                    self.source.log.accepted();
                    state.send_replace(State::Live);
                    if std::mem::replace(&mut was_live, true) {
                        self.handler.on_gap(); // messages published since are lost
                    }
                    self.stay(channel).await;
                    state.send_replace(State::Down);
                    self.handler.on_gap(); // the server may be down, and leases lost with it
                }
                Err(error) => {
                    self.source.log.connect_failed(&error);
                    refused = matches!(class(&error), ErrorClass::Misconfigured(_));
                    failed += 1;
                }
            }
            state.send_replace(State::Down);
            // A misconfiguration that an operator has to correct is not worth two connections a second.
            let pause = if refused { CHECK_INTERVAL } else { backoff::poll(failed, clock::random_unit()) };
            tokio::time::sleep(pause).await;
        }
    }

    async fn subscribe(&self) -> RedisResult<Channel> {
        let (lost, heard) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (handler, is_lost, is_heard) = (self.handler.clone(), lost.clone(), heard.clone());
        let on_push = move |push: PushInfo| match (push.kind, push.data.get(1)) {
            (PushKind::Message, Some(Value::BulkString(message))) if message == PROBE => is_heard.notify_one(),
            (PushKind::Message, Some(Value::BulkString(message))) => handler.on_message(message),
            (PushKind::Disconnection, _) => is_lost.notify_one(),
            _ => {}
        };
        let mut connection = self.source.connect_with_pushes(on_push).await?;
        connection.subscribe(self.channel()).await?;
        Ok(Channel { connection, lost, heard })
    }

    fn channel(&self) -> Vec<u8> {
        let inbox = self.handler.inbox();
        [CHANNEL.as_bytes(), inbox.as_bytes()].concat()
    }

    /// Returns when the connection is lost, messages do not arrive, or connections lead to another server.
    async fn stay(&self, mut channel: Channel) {
        let mut watchdog = interval_at(clock::deadline_after(CHECK_INTERVAL), CHECK_INTERVAL);
        watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let lost = channel.lost.clone();
        let checks = async {
            loop {
                watchdog.tick().await;
                if !self.receives(&mut channel).await {
                    return;
                }
            }
        };
        tokio::select! {
            () = lost.notified() => {}
            () = self.source.moved() => {}
            () = checks => {}
        }
    }

    /// Checks that a message arrives. Only the connection is checked if none can be published.
    async fn receives(&self, channel: &mut Channel) -> bool {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(self.channel()).arg(PROBE);
        match timeout(CHECK_INTERVAL, self.data.send(&publish)).await {
            Ok(Ok(_)) => timeout(PROBE_TIMEOUT, channel.heard.notified()).await.is_ok(),
            _ => {
                let ping = redis::cmd("PING");
                let answer = timeout(CHECK_INTERVAL, ping.query_async::<Value>(&mut channel.connection)).await;
                answer.is_ok_and(|answer| is_working(answer.and_then(Value::extract_error)))
            }
        }
    }
}

/// A connection that is subscribed.
struct Channel {
    connection: MultiplexedConnection,
    /// Notified when the connection is lost.
    lost: Arc<Notify>,
    /// Notified when a probe arrives.
    heard: Arc<Notify>,
}

/// Reports whether the reply shows a working server. A server that serves no client publishes nothing either. A
/// permission error is a reply, so the connection works.
fn is_working(answer: RedisResult<Value>) -> bool {
    answer.map_or_else(|error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights), |_| true)
}

/// Prefix of a channel, followed by the inbox.
pub(crate) const CHANNEL: &str = "stampede-guard:";
/// Maximum time that a request waits for the first subscription.
const FIRST_SUBSCRIPTION_TIMEOUT: Duration = Duration::from_millis(20);
/// The message that shows that messages arrive.
const PROBE: &[u8] = b"?";
/// Maximum time from the reply to a probe to its arrival.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between checks of the connection, and maximum time for the reply.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
