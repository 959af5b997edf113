//! What all locks over one server share: the connections, and who waits for a message.

use super::{owned, queue};
use crate::{
    lease::{Inbox, Token},
    store::StoreError,
    wire::{Call, Greet, Hear, Link, Server, Subscriber, load, store_error},
};
use redis::{Cmd, Pipeline, Value};
use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;

pub(crate) struct Hub {
    link: Arc<dyn Link>,
    seats: Arc<Seats>,
    subscriber: Option<Subscriber>,
    is_cluster: bool,
    /// What is brought to its end behind.
    pub(crate) behind: TaskTracker,
}

impl Hub {
    pub(crate) fn new(server: &Server) -> Self {
        let seats = Arc::new(Seats { inbox: Inbox::unique(), taken: Mutex::default() });
        let subscriber = server.wakes().map(|client| Subscriber::new(client, seats.clone()));
        let (link, is_cluster) = (server.dial(Arc::new(Greeting)), server.is_cluster());
        Self { link, seats, subscriber, is_cluster, behind: TaskTracker::new() }
    }

    pub(crate) async fn send(&self, cmd: &Cmd) -> Result<Value, StoreError> {
        self.link.send(cmd).await.map_err(store_error)
    }

    pub(crate) async fn transact(&self, pipeline: &Pipeline) -> Result<Value, StoreError> {
        self.link.transact(pipeline).await.map_err(store_error)
    }

    pub(crate) async fn run(&self, call: Call) -> Result<Value, StoreError> {
        call.run(&*self.link).await.map_err(store_error)
    }

    pub(crate) fn token(&self) -> Token {
        Token::unique(self.seats.inbox)
    }

    /// Takes a seat for that token. Before it is sent, so that no message falls in between.
    pub(crate) fn seat(&self, token: Token) -> Seat {
        let (tell, told) = mpsc::unbounded_channel();
        self.seats.lock().insert(token, tell);
        Seat { seats: self.seats.clone(), token, told }
    }

    /// Whether messages arrive, and the server knows whether they did: in a cluster it does not.
    pub(crate) async fn is_woken(&self) -> bool {
        let Some(subscriber) = &self.subscriber else { return false };
        subscriber.start();
        subscriber.is_live().await && !self.is_cluster
    }
}

/// Without the connection, whose address may hold a password.
impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("waiting", &self.seats.lock().len()).finish_non_exhaustive()
    }
}

struct Greeting;

impl Greet for Greeting {
    fn words(&self) -> Pipeline {
        load(&[queue::ACQUIRE, queue::RELEASE, owned::RELEASE, owned::EXTEND])
    }
}

/// Who waits in this process.
struct Seats {
    inbox: Inbox,
    taken: Mutex<HashMap<Token, mpsc::UnboundedSender<Told>>>,
}

/// What somebody who waits is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// The lock is theirs, since that moment of the server's clock.
    HandedOver { stamp: u64 },
    /// The lock is free, or a message may have been lost.
    TryAgain,
}

impl Seats {
    /// Nothing in here panics while it holds the lock.
    fn lock(&self) -> MutexGuard<'_, HashMap<Token, mpsc::UnboundedSender<Told>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message is `h`, a stamp and a token, or `f` and a token. What the token says is between the server and its owner.
impl Hear for Seats {
    fn inbox(&self) -> Inbox {
        self.inbox
    }

    fn hear(&self, message: &[u8]) {
        let Some((rest, token)) = message.split_last_chunk::<16>() else { return };
        let told = match rest.split_first() {
            Some((b'h', stamp)) => match std::str::from_utf8(stamp).ok().and_then(|stamp| stamp.parse().ok()) {
                Some(stamp) => Told::HandedOver { stamp },
                None => return,
            },
            _ => Told::TryAgain,
        };
        if let Some(seat) = self.lock().get(&Token::from_bytes(*token)) {
            let _ = seat.send(told); // whoever sits there is about to leave, then
        }
    }

    fn missed(&self) {
        for seat in self.lock().values() {
            let _ = seat.send(Told::TryAgain);
        }
    }
}

/// Hears what is said to one token, until it is dropped.
pub(crate) struct Seat {
    seats: Arc<Seats>,
    token: Token,
    told: mpsc::UnboundedReceiver<Told>,
}

impl Seat {
    /// Dropping the future loses nothing.
    pub(crate) async fn told(&mut self) -> Told {
        self.told.recv().await.unwrap_or(Told::TryAgain)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().remove(&self.token);
    }
}
