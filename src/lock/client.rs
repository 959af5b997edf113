//! The client that all locks over one server share: the connections, and the waiters for messages.

use crate::{
    redis::connection::{
        endpoint::{RedisEndpoint, Subscribers},
        error_class::store_error,
        reconnecting::CommandLink,
        script::{Script, ScriptCall, digits, introduction},
        subscriber::MessageHandler,
    },
    store::{
        error::StoreError,
        token::{Inbox, Token},
    },
    sync::mutex::Mutex,
};
use redis::{Cmd, Pipeline, Value};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, LazyLock},
};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

/// The client of all locks over one server.
pub struct LockClient {
    link: Arc<dyn CommandLink>,
    waiters: Arc<WaitTable>,
    subscribers: Subscribers,
    /// Background work: releases and cancelled acquisitions.
    pub background: TaskTracker,
}

impl LockClient {
    /// Creates a client, which connects on first use. It loads `scripts` on each connection, besides its own.
    #[must_use]
    pub fn new(server: &RedisEndpoint, scripts: &'static [&'static str]) -> Self {
        let own = [QUEUE_ACQUIRE.text, QUEUE_RELEASE.text, QUEUE_EXTEND.text];
        let scripts = [&own, scripts].concat();
        let waiters = Arc::new(WaitTable { inbox: Inbox::unique(), senders: Mutex::default() });
        let (link, subscribers) = server.connect(introduction(&scripts), waiters.clone(), false);
        Self { link, waiters, subscribers, background: TaskTracker::new() }
    }

    /// Sends a command.
    ///
    /// # Errors
    ///
    /// The server did not reply, or refused the command.
    pub async fn send(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        self.link.send(cmd).await.map_err(store_error)
    }

    /// Sends the commands in one write, and returns the reply to the last one.
    ///
    /// # Errors
    ///
    /// The server did not reply, or refused one of the commands.
    pub async fn send_all(&self, pipeline: &Pipeline) -> Result<Value, StoreError> {
        self.link.send_all(pipeline).await.map_err(store_error)
    }

    /// Runs a script.
    ///
    /// # Errors
    ///
    /// The server did not reply, or refused the script.
    pub async fn run(&self, call: ScriptCall) -> Result<Value, StoreError> {
        call.run(&*self.link).await.map_err(store_error)
    }

    pub(crate) fn token(&self) -> Token {
        Token::unique(self.waiters.inbox)
    }

    /// Registers a waiter for messages to `token`. Call it before sending the token, so that no message is missed.
    pub(crate) fn register_waiter(&self, token: Token) -> WaitHandle {
        let (sender, notifications) = mpsc::unbounded_channel();
        self.waiters.senders.lock().insert(token, sender);
        WaitHandle { waiters: self.waiters.clone(), token, notifications }
    }

    /// Returns how a waiter registers in the queue of this lock: it is notified if the subscriber is connected. The
    /// script of the queue checks that messages reach it.
    pub(super) async fn registration(&self, name: &str) -> Registration {
        if self.subscribers.is_live(name).await { Registration::Notified } else { Registration::Polling }
    }
}

/// Omits the connection, because its address may contain a password.
impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").field("waiting", &self.waiters.senders.lock().len()).finish_non_exhaustive()
    }
}

pub(super) static QUEUE_ACQUIRE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("queue/hand_over.lua"), include_str!("queue/acquire.lua"))));
pub(super) static QUEUE_RELEASE: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("queue/hand_over.lua"), include_str!("queue/release.lua"))));
pub(super) static QUEUE_EXTEND: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("queue/extend.lua")));

/// The registration in the queue that an attempt requests if the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Registration {
    /// Do not join the queue.
    None,
    /// Join the queue; a message notifies the process if the server sees its subscriber.
    Notified,
    /// Join the queue; the process polls.
    Polling,
}

/// The waiters of this process, by token.
struct WaitTable {
    inbox: Inbox,
    senders: Mutex<HashMap<Token, mpsc::UnboundedSender<Notification>>>,
}

/// A message to a waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notification {
    /// The waiter holds the lock since `stamp`, in microseconds of the server's clock.
    HandedOver { stamp: u64 },
    /// A message may have been lost, or cannot be parsed.
    TryAgain,
}

/// Parses messages: `h`, a stamp and a token (handed over). Messages for unknown tokens are ignored.
impl MessageHandler for WaitTable {
    fn inbox(&self) -> Inbox {
        self.inbox
    }

    fn on_message(&self, message: &[u8]) {
        let Some((rest, token)) = message.split_last_chunk::<16>() else { return };
        let stamp = rest.strip_prefix(b"h").and_then(digits);
        let notification = stamp.map_or(Notification::TryAgain, |stamp| Notification::HandedOver { stamp });
        if let Some(sender) = self.senders.lock().get(&Token::from_bytes(*token)) {
            let _ = sender.send(notification); // fails only if the waiter is being dropped
        }
    }

    fn on_gap(&self) {
        for sender in self.senders.lock().values() {
            let _ = sender.send(Notification::TryAgain);
        }
    }
}

/// The registration of one waiter. Receives the messages to its token until it is dropped.
pub(crate) struct WaitHandle {
    waiters: Arc<WaitTable>,
    token: Token,
    notifications: mpsc::UnboundedReceiver<Notification>,
}

impl WaitHandle {
    /// Waits for the next message. Cancel safe.
    pub(crate) async fn notified(&mut self) -> Notification {
        self.notifications.recv().await.unwrap_or(Notification::TryAgain)
    }
}

impl Drop for WaitHandle {
    fn drop(&mut self) {
        self.waiters.senders.lock().remove(&self.token);
    }
}
