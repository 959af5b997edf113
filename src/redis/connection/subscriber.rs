//! The subscriber of messages to this process: one connection, one channel, nothing else.

use super::{
    connect::CONNECT_TIMEOUT,
    error_class::{ErrorClass, Misconfiguration, class},
    log::{ClientEndpoint, ConnectionLog},
    tls,
};
use crate::{backoff, clock, store::token::Inbox, sync::mutex::Mutex};
use futures_util::StreamExt;
use redis::{ErrorKind, RedisError, RedisResult};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval_at, timeout},
};

/// The handler of messages.
pub(crate) trait MessageHandler: Send + Sync + 'static {
    fn inbox(&self) -> Inbox;

    fn on_message(&self, message: &[u8]);

    /// Handles a gap: messages may have been lost.
    fn on_gap(&self);
}

/// A subscriber: connects when first used, and again whenever the connection is lost, until it is dropped.
pub(crate) struct Subscriber {
    client: redis::Client,
    log: Arc<ConnectionLog>,
    handler: Arc<dyn MessageHandler>,
    state: watch::Sender<State>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Connecting,
    Live,
    Down,
}

impl Subscriber {
    pub(crate) fn new(endpoint: ClientEndpoint, handler: Arc<dyn MessageHandler>) -> Self {
        let ClientEndpoint { client, log } = endpoint;
        Self { client, log, handler, state: watch::Sender::new(State::Down), task: Mutex::new(None) }
    }

    /// Starts to listen if it does not listen yet, or if the runtime of its task has ended.
    pub(crate) fn start(&self) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            self.state.send_replace(State::Connecting);
            let (client, log) = (self.client.clone(), self.log.clone());
            *task = Some(tokio::spawn(listen(client, log, self.handler.clone(), self.state.clone())));
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

async fn listen(
    client: redis::Client,
    log: Arc<ConnectionLog>,
    handler: Arc<dyn MessageHandler>,
    state: watch::Sender<State>,
) {
    let (mut failed, mut was_live) = (0, false);
    let timed_out = |_| Err(RedisError::from((ErrorKind::Io, "subscribing to redis timed out")));
    loop {
        let mut refused = false;
        match timeout(CONNECT_TIMEOUT, subscribe(&client, &*handler)).await.unwrap_or_else(timed_out) {
            Ok(channel) => {
                failed = 0;
                log.accepted();
                state.send_replace(State::Live);
                if std::mem::replace(&mut was_live, true) {
                    handler.on_gap(); // messages published since are lost
                }
                forward_messages(channel, &*handler).await;
                state.send_replace(State::Down);
                handler.on_gap(); // the server may be down, and leases lost with it
            }
            Err(error) => {
                log.connect_failed(&error);
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

async fn subscribe(client: &redis::Client, handler: &dyn MessageHandler) -> RedisResult<redis::aio::PubSub> {
    tls::prepare(client);
    let mut channel = client.get_async_pubsub().await?;
    let inbox = handler.inbox();
    channel.subscribe([CHANNEL.as_bytes(), inbox.as_bytes()].concat()).await?;
    Ok(channel)
}

/// Passes on messages until the connection breaks, or does not answer a PING.
async fn forward_messages(channel: redis::aio::PubSub, handler: &dyn MessageHandler) {
    let (mut sink, mut stream) = channel.split();
    let mut watchdog = interval_at(clock::deadline_after(CHECK_INTERVAL), CHECK_INTERVAL);
    watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(message) => handler.on_message(message.get_payload_bytes()),
                None => return,
            },
            _ = watchdog.tick() => {
                // The stream is not polled meanwhile, but its messages queue up.
                let answer = timeout(CHECK_INTERVAL, sink.ping::<redis::Value>()).await;
                if !answer.is_ok_and(|answer| is_working(answer.and_then(redis::Value::extract_error))) {
                    return;
                }
            }
        }
    }
}

/// Reports whether the reply shows a working server. A server that serves no client publishes nothing either. A
/// permission error is a reply, so the connection works.
fn is_working(answer: RedisResult<redis::Value>) -> bool {
    answer.map_or_else(|error| class(&error) == ErrorClass::Misconfigured(Misconfiguration::Rights), |_| true)
}

/// Prefix of a channel, followed by the inbox.
pub(crate) const CHANNEL: &str = "stampede-guard:";
/// Maximum time that a request waits for the first subscription.
const FIRST_SUBSCRIPTION_TIMEOUT: Duration = Duration::from_millis(20);
/// Interval between checks of the connection, and maximum time for the reply.
const CHECK_INTERVAL: Duration = Duration::from_secs(5);
