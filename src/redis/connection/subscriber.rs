//! The subscriber of messages to this process: one connection, one channel, nothing else.

use super::{
    attempts::within,
    error_class::{ErrorClass, class},
    reconnecting::CommandLink,
    source::{Connect, Source},
    supervise::{CHECK_INTERVAL, KeptTask, Subscription, answers, supervise},
};
use crate::store::token::Inbox;
use redis::{ErrorKind, PushInfo, PushKind, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, timeout},
};

/// The handler of messages.
pub trait MessageHandler: Send + Sync + 'static {
    /// Returns the inbox whose messages it handles.
    fn inbox(&self) -> Inbox;

    /// Handles a message. Must not block, because the connection waits meanwhile.
    fn on_message(&self, message: &[u8]);

    /// Handles a gap: messages may have been lost.
    fn on_gap(&self);
}

/// A subscriber: connects when first used, and again whenever the connection is lost, until it is dropped.
///
/// It is live once a message has arrived that the data connection publishes, and subscribes again if a later one does
/// not arrive. A server may answer every PING and yet hear nothing: an old master that was cut off, or a node that was
/// removed from its cluster. It subscribes again at once if sentinels name another master.
pub(crate) struct Subscriber {
    listener: Listener,
    task: KeptTask,
}

#[derive(Clone)]
struct Listener {
    source: Source,
    data: Arc<dyn CommandLink>,
    handler: Arc<dyn MessageHandler>,
    channel: Vec<u8>,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Live,
    Down,
}

impl Subscriber {
    /// Builds a subscriber. `data` is the data connection, whose scripts publish the messages.
    pub(crate) fn new(source: Source, data: Arc<dyn CommandLink>, handler: Arc<dyn MessageHandler>) -> Self {
        let channel = [CHANNEL.as_bytes(), handler.inbox().as_bytes()].concat();
        let listener = Listener { source, data, handler, channel, state: watch::Sender::new(State::Idle) };
        Self { listener, task: KeptTask::default() }
    }

    /// Starts to listen if it does not listen yet, or if the runtime of its task has ended.
    pub(crate) fn start(&self) {
        self.task.start(|| {
            self.listener.enter(State::Connecting);
            supervise(self.listener.clone())
        });
    }

    /// Reports whether messages arrive now.
    pub(crate) fn is_up(&self) -> bool {
        *self.listener.state.borrow() == State::Live
    }

    /// Reports whether it was started.
    pub(super) fn is_started(&self) -> bool {
        *self.listener.state.borrow() != State::Idle
    }

    /// Reports whether messages arrive. Waits up to `FIRST_SUBSCRIPTION_TIMEOUT` for a first attempt to connect.
    pub(crate) async fn is_live(&self) -> bool {
        if matches!(*self.listener.state.borrow(), State::Connecting) {
            let mut state = self.listener.state.subscribe();
            let decided = state.wait_for(|state| !matches!(state, State::Connecting));
            _ = timeout(FIRST_SUBSCRIPTION_TIMEOUT, decided).await;
        }
        self.is_up()
    }
}

impl Subscription for Listener {
    /// Returns when the connection is lost, messages do not arrive, or connections lead to another server.
    async fn hold(&mut self) -> RedisResult<()> {
        let (lost, heard) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (handler, is_lost, is_heard) = (self.handler.clone(), lost.clone(), heard.clone());
        let on_push = move |push: PushInfo| match (push.kind, push.data.get(1)) {
            (PushKind::Message, Some(Value::BulkString(message))) if message == PROBE => is_heard.notify_one(),
            (PushKind::Message, Some(Value::BulkString(message))) => handler.on_message(message),
            (PushKind::Disconnection, _) => is_lost.notify_one(),
            _ => {}
        };
        let lead = self.source.lead();
        let mut connection = self.source.attempts.run(self.source.connect_with_pushes(on_push)).await?;
        within(CHECK_INTERVAL, connection.subscribe(&self.channel)).await?;
        self.source.attempts.log.accepted();
        let is_silent = async {
            let mut last = State::Live;
            while let Some(state) = self.probe(last, &mut connection, &heard).await {
                last = state;
                self.enter(state);
                sleep(CHECK_INTERVAL).await;
                // On a connection for reads a reply to another request may look like one to this.
                _ = timeout(CHECK_INTERVAL, self.data.verify()).await;
            }
        };
        tokio::select! {
            () = lost.notified() => {}
            () = self.source.moved(lead) => {}
            () = is_silent => {}
        }
        let was_live = self.enter(State::Down) == State::Live;
        was_live.then_some(()).ok_or_else(|| (ErrorKind::Io, "no message arrives at the subscriber").into())
    }

    fn on_failure(&self, error: &RedisError) {
        self.source.attempts.log.connect_failed(error);
        self.enter(State::Down);
    }
}

impl Listener {
    /// Changes the state, and returns the previous one. Before and after a change from or to `Live` messages may be lost,
    /// and leases with their server.
    fn enter(&self, state: State) -> State {
        let before = self.state.send_replace(state);
        if before != state && !matches!(before, State::Idle | State::Connecting) {
            self.handler.on_gap();
        }
        before
    }

    /// Publishes a probe, which notifies `heard`. Returns the state that it shows: `Down` if the server refuses it, because
    /// scripts may not publish either, and `last` if there is no reply. `None` means that the connection is to be replaced.
    async fn probe(&self, last: State, connection: &mut MultiplexedConnection, heard: &Notify) -> Option<State> {
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(&self.channel).arg(PROBE);
        let state = match timeout(CHECK_INTERVAL, self.data.send(&publish)).await {
            Ok(Ok(_)) => return timeout(PROBE_TIMEOUT, heard.notified()).await.ok().map(|()| State::Live),
            Ok(Err(error)) if matches!(class(&error), ErrorClass::Misconfigured(_) | ErrorClass::Refused) => {
                State::Down
            }
            _ => last,
        };
        answers(CHECK_INTERVAL, redis::cmd("PING").query_async(connection)).await.then_some(state)
    }
}

/// Prefix of a channel, followed by the inbox.
pub(crate) const CHANNEL: &str = "stampede-guard:";
/// Maximum time that a request waits for the first subscription.
const FIRST_SUBSCRIPTION_TIMEOUT: Duration = Duration::from_millis(20);
/// The message that shows that messages arrive.
const PROBE: &[u8] = b"?";
/// Maximum time from the reply to a probe to its arrival.
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
