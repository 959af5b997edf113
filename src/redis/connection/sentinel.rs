//! The master that sentinels watch: the vote of the sentinels, and their announcements (`+switch-master`).

use super::{
    error_class::{ErrorClass, class},
    log::ConnectionLog,
    supervise::{CHECK_INTERVAL, KeptTask, Subscription, answers, supervise, within},
};
use crate::{
    clock,
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
};
use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, RedisResult, sentinel::SentinelClient};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::{sleep, sleep_until},
};

/// The way to the master.
#[derive(Clone)]
pub(super) struct ToMaster {
    sentinels: Arc<Sentinels>,
    /// Follows the announcements of the sentinels from the first connection on. Shared by all connections of an endpoint.
    announcements: Arc<KeptTask>,
}

impl ToMaster {
    pub(super) fn of(clients: Vec<SentinelClient>) -> Self {
        let sentinels = Sentinels {
            clients: clients.into_iter().map(tokio::sync::Mutex::new).collect(),
            log: Arc::default(),
            master: watch::Sender::default(),
            asking: Mutex::default(),
        };
        Self { sentinels: Arc::new(sentinels), announcements: Arc::default() }
    }

    /// Returns the log that all connections share.
    pub(super) fn log(&self) -> &Arc<ConnectionLog> {
        &self.sentinels.log
    }

    /// Returns a client of the master, for a connection that is about to be made, and stores its number.
    pub(super) async fn client(&self, server: &AtomicU64) -> RedisResult<Client> {
        self.announcements.start(|| listen(self.sentinels.clone()));
        let (client, number) = self.sentinels.asked().await?;
        server.store(number, Relaxed);
        Ok(client)
    }

    /// Returns the number of the master that the sentinels have named last.
    pub(super) fn number(&self) -> u64 {
        self.sentinels.master.borrow().number
    }

    /// Returns when the sentinels name another master than this one.
    pub(super) async fn moved(&self, server: &AtomicU64) {
        let from = server.load(Relaxed);
        let mut master = self.sentinels.master.subscribe();
        // Never an error, because the sender lives as long as `self`.
        let _ = master.wait_for(|master| master.number != from).await;
    }
}

/// The sentinels of one master, and the master that they have named last.
struct Sentinels {
    /// One client for each sentinel, so that a sentinel that hangs delays no other one. Locked, because a client needs
    /// `&mut` and keeps a connection to its sentinel.
    clients: Box<[tokio::sync::Mutex<SentinelClient>]>,
    log: Arc<ConnectionLog>,
    master: watch::Sender<Master>,
    /// The question of connections that are made now. A master that hangs delays the answer, and a question for each
    /// connection would wait for the one before.
    asking: Mutex<Option<WeakShared<Named>>>,
}

/// A client of the master, with its number.
type Named = RedisResult<(Client, u64)>;

/// The master that was named last. The number grows with each change, and is zero before the first answer.
#[derive(Default)]
struct Master {
    address: Option<ConnectionAddr>,
    number: u64,
}

impl Sentinels {
    /// Returns a client of the master and its number. Joins a question that is in flight.
    fn asked(self: &Arc<Self>) -> Shared<Named> {
        let mut asking = self.asking.lock();
        let in_flight = asking.as_ref().and_then(WeakShared::upgrade);
        in_flight.filter(|answer| !answer.is_done_and(|_| true)).unwrap_or_else(|| {
            let sentinels = self.clone();
            let answer = Shared::new(async move { sentinels.ask().await });
            *asking = Some(answer.downgrade());
            answer
        })
    }

    /// Returns a client of the master and its number.
    async fn ask(&self) -> Named {
        let client = self.named_by_most().await?;
        let mut number = 0;
        self.master.send_if_modified(|master| {
            let address = client.get_connection_info().addr();
            let is_new = master.address.as_ref() != Some(address);
            if is_new {
                *master = Master { address: Some(address.clone()), number: master.number + 1 };
            }
            number = master.number;
            is_new
        });
        Ok((client, number))
    }

    /// Asks all sentinels at once, and returns the server that most of them name; it has confirmed that it is a master.
    /// Does not wait for further answers once more than half of them agree, nor for longer than `VOTE_TIMEOUT` once
    /// there is an answer.
    ///
    /// The first answer alone would not do: a sentinel that is cut off, together with the old master, names that one. If
    /// two sentinels disagree, the connections must not alternate between two masters.
    async fn named_by_most(&self) -> RedisResult<Client> {
        let ask = async |client: &tokio::sync::Mutex<SentinelClient>| client.lock().await.async_get_client().await;
        let mut answers: FuturesUnordered<_> = self.clients.iter().map(ask).collect();
        let (mut named, mut last_error) = (Vec::<(Client, usize)>::new(), None);
        let deadline = clock::deadline_after(VOTE_TIMEOUT);
        loop {
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = sleep_until(deadline), if !named.is_empty() => None,
            };
            let Some(answer) = answer else { break };
            match answer {
                Ok(client) => {
                    let known = named.iter_mut().find(|(known, _)| address(known) == address(&client));
                    match known {
                        Some((_, votes)) => *votes += 1,
                        None => named.push((client, 1)),
                    }
                }
                Err(error) => last_error = Some(error),
            }
            if named.iter().any(|(_, votes)| 2 * votes > self.clients.len()) {
                break;
            }
        }
        // If the votes are equal, the connections stay.
        let is_current = |client: &Client| self.master.borrow().address.as_ref() == Some(address(client));
        let most = named.into_iter().max_by_key(|(client, votes)| (*votes, is_current(client)));
        most.map(|(client, _)| client).ok_or_else(|| last_error.unwrap_or_else(no_sentinels))
    }
}

fn address(client: &Client) -> &ConnectionAddr {
    client.get_connection_info().addr()
}

pub(super) fn no_sentinels() -> RedisError {
    (ErrorKind::EmptySentinelList, "at least one sentinel is needed").into()
}

/// Follows the announcements of the sentinels.
///
/// Without it, a process whose connections do not break would stay with an old master that sentinels cannot reach.
async fn listen(sentinels: Arc<Sentinels>) -> Infallible {
    let announced = Notify::new();
    let (sentinels, announced) = (&*sentinels, &announced);
    let following = sentinels.clients.iter().map(|client| supervise(Follower { sentinels, client, announced }));
    tokio::join!(join_all(following), ask_when(announced, sentinels)).1
}

/// Asks after announcements. All that arrive during a question lead to one more question: it may have been answered
/// before the other sentinels have learnt of the new master.
async fn ask_when(announced: &Notify, sentinels: &Sentinels) -> Infallible {
    loop {
        announced.notified().await;
        while sentinels.ask().await.is_err() {
            sleep(RETRY_PAUSE).await;
        }
    }
}

/// Listens to one sentinel.
struct Follower<'a> {
    sentinels: &'a Sentinels,
    client: &'a tokio::sync::Mutex<SentinelClient>,
    announced: &'a Notify,
}

impl Subscription for Follower<'_> {
    /// Passes announcements on. Returns when the connection is lost, or when the sentinel does not answer.
    async fn hold(&mut self) -> RedisResult<()> {
        let subscribed = async {
            let sentinel = self.client.lock().await.async_get_sentinel_client().await?;
            let mut channel = sentinel.get_async_pubsub().await?;
            channel.subscribe("+switch-master").await?;
            Ok(channel)
        };
        let channel = within(SUBSCRIBE_TIMEOUT, subscribed).await?;
        self.announced.notify_one(); // the master may have changed before the subscription
        let (mut sink, mut messages) = channel.split();
        loop {
            tokio::select! {
                message = messages.next() => match message {
                    Some(_) => self.announced.notify_one(),
                    None => return Ok(()),
                },
                () = sleep(CHECK_INTERVAL) => if !answers(CHECK_INTERVAL, sink.ping()).await {
                    return Ok(());
                },
            }
        }
    }

    fn on_failure(&self, error: &RedisError) {
        if let ErrorClass::Misconfigured(setting) = class(error) {
            self.sentinels.log.misconfigured(&setting.hint(error), error);
        }
    }
}

/// Pause before the sentinels are asked again, when none of them has named a master.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time after which the most votes so far decide. Sentinels that hang would delay each connection by 1.5 s.
const VOTE_TIMEOUT: Duration = Duration::from_millis(700);
/// Maximum time to subscribe at a sentinel.
const SUBSCRIBE_TIMEOUT: Duration = Duration::from_secs(3);
