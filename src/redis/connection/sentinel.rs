//! The master that sentinels name.

use super::{log::ConnectionLog, tls};
use crate::{
    clock,
    sync::{
        mutex::Mutex,
        shared::{Shared, WeakShared},
    },
};
use futures_util::{StreamExt, future::pending, stream::FuturesUnordered};
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, RedisResult, sentinel::SentinelClient};
use std::{sync::Arc, time::Duration};
use tokio::{sync::watch, time::sleep_until};

/// The sentinels of one master, and the master that they have named last.
pub(super) struct Sentinels {
    /// One client for each sentinel, so that a sentinel that hangs delays no other one. Locked, because a client needs
    /// `&mut` and keeps a connection to its sentinel.
    pub(super) clients: Box<[tokio::sync::Mutex<SentinelClient>]>,
    pub(super) log: Arc<ConnectionLog>,
    pub(super) master: watch::Sender<Master>,
    /// The question of connections that are made now. A master that hangs delays the answer, and a question for each
    /// connection would wait for the one before.
    asking: Mutex<Option<WeakShared<Named>>>,
}

/// A client of the master, with its number.
pub(super) type Named = RedisResult<(Client, u64)>;

/// The master that was named last. The number grows with each change, and is zero before the first answer.
#[derive(Default)]
pub(super) struct Master {
    address: Option<ConnectionAddr>,
    pub(super) number: u64,
}

impl Sentinels {
    pub(super) fn of(clients: impl IntoIterator<Item = SentinelClient>) -> Self {
        let clients = clients.into_iter().map(tokio::sync::Mutex::new).collect();
        Self { clients, log: Arc::default(), master: watch::Sender::new(Master::default()), asking: Mutex::default() }
    }

    /// Returns a client of the master and its number. Joins a question that is in flight.
    pub(super) fn asked(self: &Arc<Self>) -> Shared<Named> {
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
    pub(super) async fn ask(&self) -> Named {
        tls::choose_provider(); // a sentinel client does not say whether it uses TLS
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
    /// Does not wait for the others once more than half of them agree, nor for longer than `VOTE_TIMEOUT` once there is
    /// an answer.
    ///
    /// The first answer alone would not do: a sentinel that is cut off, together with the old master, names that one. If
    /// two sentinels disagree, the connections must not alternate between two masters.
    async fn named_by_most(&self) -> RedisResult<Client> {
        let ask = async |client: &tokio::sync::Mutex<SentinelClient>| client.lock().await.async_get_client().await;
        let mut answers: FuturesUnordered<_> = self.clients.iter().map(ask).collect();
        let (mut named, mut last_error) = (Vec::<(Client, usize)>::new(), None);
        let deadline = clock::deadline_after(VOTE_TIMEOUT);
        loop {
            let is_decided = async {
                match named.is_empty() {
                    true => pending().await,
                    false => sleep_until(deadline).await,
                }
            };
            let answer = tokio::select! {
                answer = answers.next() => answer,
                () = is_decided => None,
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

/// Pause before a sentinel is asked again that did not answer, or that named no master.
pub(super) const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Time after which the most votes so far decide. Sentinels that hang would delay each connection by 1.5 s.
const VOTE_TIMEOUT: Duration = Duration::from_millis(700);
