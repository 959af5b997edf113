//! The master that sentinels watch: the vote of the sentinels, and their announcements (`+switch-master`).

use super::{
    attempts::{Attempts, within},
    error_class::{ErrorClass, by_sentinel, class},
    supervise::{CHECK_INTERVAL, KeptTask, Subscription, answers, supervise},
};
use crate::{clock, sync::mutex::Mutex, sync::shared::WeakShared};
use futures_util::{StreamExt, TryFutureExt, future::join_all, stream::FuturesUnordered};
use redis::{Client, ConnectionAddr, ErrorKind, RedisError, RedisResult, sentinel::SentinelClient};
use std::{convert::Infallible, sync::Arc, time::Duration};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout},
};

/// The way to the master.
#[derive(Clone)]
pub(super) struct ToMaster {
    sentinels: Arc<Sentinels>,
    /// Follows the announcements of the sentinels from the first connection on. Shared by all connections of an endpoint.
    announcements: Arc<KeptTask>,
}

impl ToMaster {
    pub(super) fn of(clients: Vec<SentinelClient>, attempts: Arc<Attempts>) -> Self {
        let sentinel = |client| Sentinel {
            client: tokio::sync::Mutex::new(client),
            attempts: Attempts::new(attempts.log.clone()),
        };
        let sentinels = Sentinels {
            all: clients.into_iter().map(sentinel).collect(),
            attempts,
            master: watch::Sender::default(),
            question: Mutex::default(),
        };
        Self { sentinels: Arc::new(sentinels), announcements: Arc::default() }
    }

    /// Returns a client of the master, for a connection that is about to be made.
    pub(super) async fn client(&self) -> RedisResult<Client> {
        self.announcements.start(|| listen(self.sentinels.clone()));
        let sentinels = self.sentinels.clone();
        let named = self.sentinels.question.lock().join_or(|| async move { sentinels.ask().await });
        named.await
    }

    /// Returns how often the sentinels have named another master than before.
    pub(super) fn lead(&self) -> u64 {
        self.sentinels.master.borrow().lead
    }

    /// Returns when the sentinels have named another master.
    pub(super) async fn moved(&self, lead: u64) {
        let mut master = self.sentinels.master.subscribe();
        // Never an error, because the sender lives as long as `self`.
        let _ = master.wait_for(|master| master.lead != lead).await;
    }
}

/// The sentinels of one master, and the master that they have named last.
struct Sentinels {
    all: Box<[Sentinel]>,
    /// The attempts to connect to the master.
    attempts: Arc<Attempts>,
    master: watch::Sender<Master>,
    /// The question of connections that are made now. A master that hangs delays the answer, and a question for each
    /// connection would wait for the one before.
    question: Mutex<WeakShared<RedisResult<Client>>>,
}

/// One sentinel, with a client of its own, so that a sentinel that hangs delays no other one.
struct Sentinel {
    /// Locked, because a client needs `&mut` and keeps a connection to its sentinel.
    client: tokio::sync::Mutex<SentinelClient>,
    /// The attempts to connect to this sentinel.
    attempts: Arc<Attempts>,
}

impl Sentinel {
    /// Returns the client of the master that this sentinel names. It has confirmed that it is a master.
    async fn vote(&self) -> RedisResult<Client> {
        let mut client = self.client.lock().await;
        self.reach(&mut client).await?;
        client.async_get_client().await
    }

    /// Returns a client for subscriptions, once the sentinel has answered. Only a failure of this keeps it from being asked
    /// again: the client of an application that lists several sentinels may lead to one of them that is gone.
    async fn reach(&self, client: &mut SentinelClient) -> RedisResult<Client> {
        self.attempts.run(within(SENTINEL_TIMEOUT, client.async_get_sentinel_client()).map_err(by_sentinel)).await
    }
}

/// The master that was named last.
#[derive(Default)]
struct Master {
    address: Option<ConnectionAddr>,
    /// When its question began.
    asked_at: Option<Instant>,
    /// Grows with each change of the address.
    lead: u64,
}

impl Sentinels {
    /// Returns a client of the master, once a change of its address is published. A question that began earlier than the
    /// one before publishes nothing.
    async fn ask(&self) -> RedisResult<Client> {
        let asked_at = Some(clock::now());
        let client = self.named_by_most().await?;
        self.master.send_if_modified(|master| {
            if master.asked_at > asked_at {
                return false;
            }
            master.asked_at = asked_at;
            let before = master.address.replace(address(&client).clone());
            let is_new = before.is_some_and(|before| before != *address(&client));
            if is_new {
                self.attempts.end(None); // an address that is newly named is tried at once
                master.lead += 1;
            }
            is_new
        });
        Ok(client)
    }

    /// Reports the loss of all sentinels.
    fn check(&self) {
        self.attempts.log.check_named(self.all.iter().map(|sentinel| sentinel.attempts.last_error()));
    }

    /// Asks all sentinels at once, and returns the server that most of them name; it has confirmed that it is a master.
    /// Does not wait for further answers once more than half of them agree.
    ///
    /// The first answer alone would not do: a sentinel that is cut off, together with the old master, names that one. If
    /// two sentinels disagree, the connections must not alternate between two masters.
    async fn named_by_most(&self) -> RedisResult<Client> {
        let mut answers: FuturesUnordered<_> = self.all.iter().map(Sentinel::vote).collect();
        let (mut named, mut last_error) = (Vec::new(), RedisError::from(NO_SENTINELS));
        while let Some(answer) = answers.next().await {
            answer.map_or_else(|error| last_error = error, |client| named.push(client));
            if named.last().is_some_and(|client| 2 * votes(&named, client) > self.all.len()) {
                break;
            }
        }
        // If the votes are equal, the connections stay.
        let is_current = |client: &Client| self.master.borrow().address.as_ref() == Some(address(client));
        let most = named.iter().max_by_key(|client| (votes(&named, client), is_current(client)));
        most.cloned().ok_or(last_error)
    }
}

/// Returns the number of votes for the server of this client.
fn votes(named: &[Client], client: &Client) -> usize {
    named.iter().filter(|other| address(other) == address(client)).count()
}

fn address(client: &Client) -> &ConnectionAddr {
    client.get_connection_info().addr()
}

/// Follows the announcements of the sentinels.
///
/// Without it, a process whose connections do not break would stay with an old master that sentinels cannot reach.
async fn listen(sentinels: Arc<Sentinels>) -> Infallible {
    let announced = Notify::new();
    let (sentinels, announced) = (&*sentinels, &announced);
    let following = sentinels.all.iter().map(|sentinel| supervise(Follower { sentinels, sentinel, announced }));
    // All announcements that arrive during a question lead to one more question: it may have been answered before the
    // other sentinels have learnt of the new master. A vote may also fail while that master changes its role, and without
    // it the connections stay, so the question is repeated once. An address that is newly named is tried at once.
    let asking = async {
        let mut pause = Duration::MAX;
        loop {
            let is_announced = timeout(pause, announced.notified()).await.is_ok();
            if is_announced {
                sentinels.attempts.end(None); // the master may be another one
            }
            let again = if is_announced { CHECK_INTERVAL } else { Duration::MAX };
            pause = if sentinels.attempts.run(sentinels.ask()).await.is_ok() { again } else { RETRY_PAUSE };
        }
    };
    tokio::join!(join_all(following), asking).1
}

/// Listens to one sentinel.
struct Follower<'a> {
    sentinels: &'a Sentinels,
    sentinel: &'a Sentinel,
    announced: &'a Notify,
}

impl Subscription for Follower<'_> {
    /// Passes announcements on. Returns when the connection is lost, or when the sentinel does not answer.
    async fn hold(&mut self) -> RedisResult<()> {
        let sentinel = self.sentinel.reach(&mut *self.sentinel.client.lock().await).await?;
        self.sentinels.check();
        let mut channel = within(SENTINEL_TIMEOUT, sentinel.get_async_pubsub()).await.map_err(by_sentinel)?;
        within(SENTINEL_TIMEOUT, channel.subscribe("+switch-master")).await.map_err(by_sentinel)?;
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
        if let ErrorClass::Misconfigured(_) = class(error) {
            self.sentinels.attempts.log.connect_failed(error);
        }
        self.sentinels.check();
    }
}

pub(super) const NO_SENTINELS: (ErrorKind, &str) = (ErrorKind::EmptySentinelList, "at least one sentinel is needed");
/// Pause before the sentinels are asked again, when none of them has named a master.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Maximum time to connect to a sentinel, and to subscribe there.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::connection::log::ConnectionLog;
    use redis::{
        IntoConnectionInfo,
        sentinel::{SentinelClientBuilder, SentinelServerType},
    };
    use stampede_guard_support::{
        RedisServer,
        relay::{Mode, Relay},
    };
    use std::{
        future::{Future, poll_fn},
        task::Poll,
    };

    fn sentinels<const N: usize>(ports: [u16; N]) -> Arc<Sentinels> {
        let client = |port| {
            let info = format!("redis://127.0.0.1:{port}").into_connection_info().expect("a URL");
            SentinelClientBuilder::new([info.addr().clone()], "main", SentinelServerType::Master)
                .and_then(|it| it.build())
        };
        let clients = ports.map(|port| client(port).expect("a client")).into();
        ToMaster::of(clients, Attempts::new(ConnectionLog::default())).sentinels
    }

    /// The failover happens between the answers to the first question, whose last answer comes after the second question.
    ///
    /// Seen to fail (the old master) if an answer that comes later counts.
    #[tokio::test]
    async fn earlier_question_does_not_bring_back_the_old_master() {
        let [old, new] = [(); 2].map(|()| RedisServer::start());
        let watch = |server: &RedisServer| {
            RedisServer::sentinel(&[&format!("sentinel monitor main 127.0.0.1 {} 1", server.port())])
        };
        let [first, second, last] = [&old, &new, &old].map(watch);
        let relay = Relay::to(([127, 0, 0, 1], last.port()).into()).await;
        let asked = sentinels([first.port(), second.port(), relay.address().port()]);
        asked.ask().await.expect("two of three agree");
        assert_eq!(address(&old.client()), asked.master.borrow().address.as_ref().expect("an address"));

        relay.set(Mode::HoldReplies);
        let mut earlier = Box::pin(asked.ask());
        let is_free = |n: usize| asked.all[n].client.try_lock().is_ok();
        poll_fn(|cx| {
            assert!(earlier.as_mut().poll(cx).is_pending());
            if is_free(0) && is_free(1) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut admin = first.connection().await;
        for change in ["REMOVE main".to_owned(), format!("MONITOR main 127.0.0.1 {} 1", new.port())] {
            let words: Vec<_> = change.split(' ').collect();
            redis::cmd("SENTINEL").arg(words).exec_async(&mut admin).await.expect("done");
        }
        asked.ask().await.expect("two of three agree");
        relay.set(Mode::Pass);
        earlier.await.expect("two of three agreed");
        assert_eq!(address(&new.client()), asked.master.borrow().address.as_ref().expect("an address"));
    }
}
