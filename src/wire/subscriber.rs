//! Hears the messages to this process: one connection, one channel, nothing else.

use super::{
    class::{Class, Setting, Spoken, class},
    connect::CONNECT_TIMEOUT,
    tls,
};
use crate::{backoff, clock, lease::Inbox};
use futures_util::StreamExt;
use redis::RedisResult;
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{MissedTickBehavior, interval_at, timeout},
};

/// Whom the messages are for.
pub(crate) trait Hear: Send + Sync + 'static {
    fn inbox(&self) -> Inbox;

    fn hear(&self, message: &[u8]);

    /// Messages may have been lost.
    fn missed(&self);
}

/// Connects when it is first needed and whenever the connection is lost, for as long as it is needed.
pub(crate) struct Subscriber {
    client: redis::Client,
    hearer: Arc<dyn Hear>,
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
    pub(crate) fn new(client: redis::Client, hearer: Arc<dyn Hear>) -> Self {
        Self { client, hearer, state: watch::Sender::new(State::Down), task: Mutex::new(None) }
    }

    /// Starts to listen, if it does not yet, or if the runtime in which it did has ended.
    pub(crate) fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            self.state.send_replace(State::Connecting);
            *task = Some(tokio::spawn(listen(self.client.clone(), self.hearer.clone(), self.state.clone())));
        }
    }

    /// Whether wake-ups arrive. Waits for a first attempt that is under way, but not for long.
    pub(crate) async fn is_live(&self) -> bool {
        let mut state = self.state.subscribe();
        let decided = state.wait_for(|state| *state != State::Connecting);
        matches!(timeout(PATIENCE, decided).await, Ok(Ok(state)) if *state == State::Live)
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        let task = self.task.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(task) = task {
            task.abort();
        }
    }
}

async fn listen(client: redis::Client, hearer: Arc<dyn Hear>, state: watch::Sender<State>) {
    let (mut failed, mut was_live, spoken) = (0, false, Spoken::default());
    loop {
        let mut refused = false;
        match timeout(CONNECT_TIMEOUT, subscribe(&client, &*hearer)).await {
            Ok(Ok(channel)) => {
                failed = 0;
                state.send_replace(State::Live);
                if std::mem::replace(&mut was_live, true) {
                    hearer.missed(); // what was published meanwhile is lost
                }
                hear(channel, &*hearer).await;
                state.send_replace(State::Down);
                hearer.missed(); // the server may be gone, and with it what they wait for
            }
            Ok(Err(error)) => {
                spoken.once("wake-ups", &error);
                refused = matches!(class(&error), Class::Misconfigured(_));
                failed += 1;
            }
            Err(_) => failed += 1,
        }
        state.send_replace(State::Down);
        // What somebody has to set right first is not worth two connections a second.
        let pause = if refused { WATCH } else { backoff::poll(failed, false, clock::draw()) };
        tokio::time::sleep(pause).await;
    }
}

async fn subscribe(client: &redis::Client, hearer: &dyn Hear) -> RedisResult<redis::aio::PubSub> {
    tls::prepare(client);
    let mut channel = client.get_async_pubsub().await?;
    let inbox = hearer.inbox();
    channel.subscribe([CHANNEL.as_bytes(), inbox.as_bytes()].concat()).await?;
    Ok(channel)
}

/// Until the connection breaks, or does not answer.
async fn hear(channel: redis::aio::PubSub, hearer: &dyn Hear) {
    let (mut sink, mut stream) = channel.split();
    let mut watchdog = interval_at(clock::in_future(WATCH), WATCH);
    watchdog.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = stream.next() => match message {
                Some(message) => hearer.hear(message.get_payload_bytes()),
                None => return,
            },
            _ = watchdog.tick() => {
                // The stream is not polled meanwhile, but its messages queue up.
                let answer = timeout(WATCH, sink.ping::<redis::Value>()).await;
                if !answer.is_ok_and(|answer| is_well(answer.and_then(redis::Value::extract_error))) {
                    return;
                }
            }
        }
    }
}

/// A server that serves nobody any more wakes nobody either. Who may not ask is answered as well.
fn is_well(answer: RedisResult<redis::Value>) -> bool {
    answer.map_or_else(|error| class(&error) == Class::Misconfigured(Setting::Rights), |_| true)
}

/// Followed by the inbox.
pub(crate) const CHANNEL: &str = "stampede-guard:";
/// How long a request waits for the subscriber to get ready.
const PATIENCE: Duration = Duration::from_millis(20);
/// So often the connection is tried, and so long it may take to answer.
const WATCH: Duration = Duration::from_secs(5);
