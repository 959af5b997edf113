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
/// It also subscribes again when the data connection was made again: the source may lead to another server by then,
/// one whose messages the old server does not receive.
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
        let (handler, lost) = (self.handler.clone(), Arc::new(Notify::new()));
        let (generation, is_lost) = (self.data.generation(), lost.clone());
        let on_push = move |push: PushInfo| match (push.kind, push.data.get(1)) {
            (PushKind::Message, Some(Value::BulkString(message))) => handler.on_message(message),
            (PushKind::Disconnection, _) => is_lost.notify_one(),
            _ => {}
        };
        let mut connection = self.source.connect_with_pushes(on_push).await?;
        let inbox = self.handler.inbox();
        connection.subscribe([CHANNEL.as_bytes(), inbox.as_bytes()].concat()).await?;
        Ok(Channel { connection, lost, generation })
    }

    /// Returns when the connection is lost, does not answer a PING, or may lead to the wrong server.
    async fn stay(&self, channel: Channel) {
        let Channel { mut connection, lost, mut generation } = channel;
        let mut watchdog = interval_at(clock::deadline_after(CHECK_INTERVAL), CHECK_INTERVAL);
        watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = lost.notified() => return,
                _ = watchdog.tick() => {
                    let ping = redis::cmd("PING");
                    let answer = timeout(CHECK_INTERVAL, ping.query_async::<Value>(&mut connection)).await;
                    if !answer.is_ok_and(|answer| is_working(answer.and_then(Value::extract_error))) {
                        return;
                    }
                    // The first data connection may have been made later than this one.
                    let current = self.data.generation();
                    if std::mem::replace(&mut generation, current) != current && current > 1 {
                        return;
                    }
                }
            }
        }
    }
}

/// A connection that is subscribed.
struct Channel {
    connection: MultiplexedConnection,
    /// Notified when the connection is lost.
    lost: Arc<Notify>,
    /// Generation of the data connection before this one was made.
    generation: u64,
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
/// Interval between checks of the connection, and maximum time for the reply.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
