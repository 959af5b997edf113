//! The subscriber of messages to this process: one connection, one channel, nothing else.

use super::{
    reconnecting::CommandLink,
    source::{Connect, Source},
    supervise::{CHECK_INTERVAL, KeptTask, Subscription, answers, supervise, within},
};
use crate::store::token::Inbox;
use redis::{PushInfo, PushKind, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use std::{
    sync::{Arc, atomic::AtomicU64},
    time::Duration,
};
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
/// It also subscribes again if a message that the data connection publishes does not arrive. A server may answer every
/// PING and yet hear nothing: an old master that was cut off, or a node that was removed from its cluster. It does so at
/// once if sentinels name another master.
pub(crate) struct Subscriber {
    listener: Listener,
    task: KeptTask,
}

#[derive(Clone)]
struct Listener {
    source: Source,
    data: Arc<dyn CommandLink>,
    handler: Arc<dyn MessageHandler>,
    state: watch::Sender<State>,
    was_live: bool,
}

#[derive(PartialEq, Eq)]
enum State {
    Idle,
    Connecting,
    Live,
    Down,
}

impl Subscriber {
    /// Builds a subscriber. `data` is the data connection, whose scripts publish the messages.
    pub(crate) fn new(source: Source, data: Arc<dyn CommandLink>, handler: Arc<dyn MessageHandler>) -> Self {
        let listener = Listener { source, data, handler, state: watch::Sender::new(State::Idle), was_live: false };
        Self { listener, task: KeptTask::default() }
    }

    /// Starts to listen if it does not listen yet, or if the runtime of its task has ended.
    pub(crate) fn start(&self) {
        self.task.start(|| {
            self.listener.state.send_replace(State::Connecting);
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
        let server = AtomicU64::default();
        let subscribed = async {
            let mut connection = self.source.connect_with_pushes(on_push, &server).await?;
            connection.subscribe(self.channel()).await?;
            Ok(connection)
        };
        let mut connection = within(self.source.connect_timeout(), subscribed).await?;
        self.source.log.accepted();
        self.state.send_replace(State::Live);
        if std::mem::replace(&mut self.was_live, true) {
            self.handler.on_gap(); // messages published since are lost
        }
        let is_silent = async {
            sleep(CHECK_INTERVAL).await;
            while self.receives(&mut connection, &heard).await {
                sleep(CHECK_INTERVAL).await;
            }
        };
        tokio::select! {
            () = lost.notified() => {}
            () = self.source.moved(&server) => {}
            () = is_silent => {}
        }
        self.state.send_replace(State::Down);
        self.handler.on_gap(); // the server may be down, and leases lost with it
        Ok(())
    }

    fn on_failure(&self, error: &RedisError) {
        self.source.log.connect_failed(error);
        self.state.send_replace(State::Down);
    }
}

impl Listener {
    fn channel(&self) -> Vec<u8> {
        let inbox = self.handler.inbox();
        [CHANNEL.as_bytes(), inbox.as_bytes()].concat()
    }

    /// Checks that a message arrives: a probe, which notifies `heard`. Only the connection is checked if none can be
    /// published.
    ///
    /// Also checks the data connections. On one for reads a reply to another request may look like one to this.
    async fn receives(&self, connection: &mut MultiplexedConnection, heard: &Notify) -> bool {
        _ = timeout(CHECK_INTERVAL, self.data.verify()).await;
        let mut publish = redis::cmd("PUBLISH");
        publish.arg(self.channel()).arg(PROBE);
        match timeout(CHECK_INTERVAL, self.data.send(&publish)).await {
            Ok(Ok(_)) => timeout(PROBE_TIMEOUT, heard.notified()).await.is_ok(),
            _ => answers(CHECK_INTERVAL, redis::cmd("PING").query_async(connection)).await,
        }
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
