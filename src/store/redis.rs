//! The store of a fleet: entries and leases in Redis (one server, Cluster, Valkey).
//!
//! A hit is one GET. The rest are scripts, each safe to run twice. Wake-ups come over a connection of their own, to an
//! inbox of this process alone; they are never on the data connection, where a reconnecting client hands surplus
//! subscription confirmations to other requests.

mod names;
mod reads;
mod script;
mod server_clock;
mod tracking;

use super::{
    Address, Answer, Ask, Entry, FORMAT, Filled, Hold, IntoStore, KeyHash, Lead, Lease, Listener, Right, Store,
    StoreError, Timestamp, Token, Tombstone, Track, Wakes, Write,
};
use crate::wire::{Call, Connection, Hear, IntoServer, Link, Server, Subscriber, TrackedLink, number, store_error};
use bytes::Bytes;
use names::entry_name;
#[cfg(feature = "cluster")]
use names::range_of_slots;
pub(crate) use names::{entry_names, lease_name};
use reads::Reads;
use redis::Value;
pub(super) use script::By;
use script::Scripts;
use server_clock::ServerClock;
use std::{fmt, sync::Arc, time::Duration};
use tracking::Tracking;

/// Entries and leases in Redis.
///
/// [`StampedeGuard::new`](crate::StampedeGuard::new) makes one of a client or connection by itself; make it by hand to
/// give wake-ups to a connection:
///
/// ```no_run
/// # async fn example() -> redis::RedisResult<()> {
/// use stampede_guard::{RedisStore, StampedeGuard, redis};
///
/// let client = redis::Client::open("redis://127.0.0.1/")?;
/// let connection = client.get_connection_manager().await?;
/// let guard = StampedeGuard::new(RedisStore::from_connection(connection).wakes_from(client));
/// # Ok(())
/// # }
/// ```
///
/// # Names
///
/// For namespace `sg` and key `user:42` the entry is `{sg:ruser:42}:v2.0` (envelope format and schema), the lease
/// `{sg:ruser:42}:l`. Keys that are long or not plain are hashed. Wake-ups are published to `stampede-guard:` and eight
/// letters.
pub struct RedisStore {
    link: Arc<dyn Link>,
    reads: Reads,
    scripts: Scripts,
    clock: Arc<ServerClock>,
    wakes: Wakes,
    subscriber: Option<Arc<Subscriber>>,
    /// Whose connections can tell what has changed.
    client: Option<redis::Client>,
    /// Which part of the deployment a name is in.
    part: fn(&Address) -> u16,
}

impl RedisStore {
    /// Over connections of its own: one for data, one for wake-ups. Both are made when they are needed for the first
    /// time, and again when they break.
    #[must_use]
    pub fn new(client: redis::Client) -> Self {
        Self::of(&client.into_server())
    }

    /// Over a connection that already is: a [`ConnectionManager`](redis::aio::ConnectionManager), which reconnects, a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), which does not, or anything of the like.
    ///
    /// It cannot be turned back into a client, so this process waits by polling, unless [`wakes_from`](Self::wakes_from)
    /// names one.
    #[must_use]
    pub fn from_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::of(&Connection(connection).into_server())
    }

    /// Over a Redis Cluster. This process waits by polling, unless [`wakes_from`](Self::wakes_from) names a client of
    /// any of its nodes.
    #[cfg(feature = "cluster")]
    #[must_use]
    pub fn from_cluster(client: redis::cluster::ClusterClient) -> Self {
        Self::of(&client.into_server())
    }

    /// Hears of wake-ups over a connection of this client.
    #[must_use]
    pub fn wakes_from(mut self, client: redis::Client) -> Self {
        self.subscriber = Some(Arc::new(Subscriber::new(client, Arc::new(self.wakes.clone()))));
        self
    }

    pub(crate) fn of(server: &Server) -> Self {
        Self::heard_by(server, |wakes| Arc::new(wakes))
    }

    /// The messages go by way of somebody else who wants to hear them.
    pub(super) fn heard_by(server: &Server, hearer: impl FnOnce(Wakes) -> Arc<dyn Hear>) -> Self {
        let (clock, wakes) = (Arc::new(ServerClock::default()), Wakes::new());
        let subscriber = server.wakes().map(|client| Arc::new(Subscriber::new(client, hearer(wakes.clone()))));
        let link = server.dial(clock.clone());
        Self {
            reads: Reads::over(link.clone(), !server.is_cluster()),
            link,
            scripts: Scripts::default(),
            clock,
            wakes,
            subscriber,
            client: server.client(),
            #[cfg(feature = "cluster")]
            part: if server.is_cluster() { range_of_slots } else { |_| 0 },
            #[cfg(not(feature = "cluster"))]
            part: |_| 0,
        }
    }

    async fn ask<T>(&self, call: Call, read: impl FnOnce(Value) -> Result<T, StoreError>) -> Result<T, StoreError> {
        let answer = read(call.run(&*self.link).await.map_err(store_error)?);
        if answer.is_err() {
            self.link.doubt().await;
        }
        answer
    }

    /// With the first question of all, so that wake-ups arrive by the time that somebody has to wait.
    fn hear(&self) {
        if let Some(subscriber) = &self.subscriber {
            subscriber.start();
        }
    }

    async fn get_now(&self, at: &Address) -> Result<Option<Entry>, StoreError> {
        self.hear();
        let Some(bytes) = self.reads.get(&entry_name(at)).await? else { return Ok(None) };
        let entry = Entry::from_envelope(at, &bytes, self.clock.offset());
        if entry.is_none() {
            self.link.doubt().await;
        }
        Ok(entry)
    }

    pub(super) async fn lead_by(&self, by: By, at: &Address, ask: Ask) -> Result<Lead, StoreError> {
        let inbox = match &self.subscriber {
            Some(subscriber) if subscriber.is_live().await => Some(self.wakes.inbox()),
            _ => None,
        };
        let (entry, lease) = (entry_name(at), lease_name(at));
        let mut seen = ask.seen.map(|id| Bytes::copy_from_slice(id.as_bytes()));
        let mut unreadable = false;
        for _ in 0..UNREADABLE_ENTRIES {
            let sent = Timestamp::now();
            let call = self.scripts.lead(&entry, &lease, ask, seen.as_deref(), inbox, by);
            match self.ask(call, |answer| script::led(answer, !unreadable)).await? {
                script::Led::Granted { stamp, seen_alive } => {
                    self.clock.learn(stamp, sent, Timestamp::now());
                    return Ok(Lead::Granted { lease: Lease { token: ask.token, stamp }, seen_alive });
                }
                script::Led::Other(lead) => return Ok(lead),
                script::Led::Hit(bytes) => match Entry::from_envelope(at, &bytes, self.clock.offset()) {
                    Some(entry) => return Ok(Lead::Hit(entry)),
                    // Not readable is as good as absent. No lease was granted, so the token is still unspent.
                    None => {
                        self.link.doubt().await;
                        seen = Some(bytes.slice(bytes.len().min(1)..bytes.len().min(17)));
                        unreadable = true; // from now on the script speaks of this, not of what the caller has seen
                    }
                },
            }
        }
        Err(StoreError::new("the entry keeps changing, and none of it can be read"))
    }

    async fn fill_now(&self, at: &Address, right: Right, writes: Vec<Write>) -> Result<Filled, StoreError> {
        let offset = self.clock.offset();
        let write = |write: &Write| {
            (
                entry_name(&write.at),
                write.entry.to_envelope(&write.at, offset),
                write.entry.meta().lifetimes.retention(),
            )
        };
        let writes: Vec<_> = writes.iter().map(write).collect();
        let call = self.scripts.fill(&lease_name(at), right, at.hash(), &writes);
        match self.ask(call, |answer| number(&answer)).await? {
            0 => Ok(Filled::Fenced),
            _ => Ok(Filled::Stored),
        }
    }

    async fn held(&self, call: Call) -> Result<Hold, StoreError> {
        match self.ask(call, |answer| number(&answer)).await? {
            0 => Ok(Hold::Lost),
            _ => Ok(Hold::Held),
        }
    }
}

impl Store for RedisStore {
    fn get<'a>(&'a self, at: &'a Address) -> Answer<'a, Option<Entry>> {
        Box::pin(self.get_now(at))
    }

    fn get_all<'a>(&'a self, at: &'a [Address]) -> Answer<'a, Vec<Option<Entry>>> {
        Box::pin(async move {
            if let [at] = at {
                return Ok(vec![self.get_now(at).await?]);
            }
            self.hear();
            let names: Vec<_> = at.iter().map(entry_name).collect();
            Ok(entries(at, self.reads.get_all(&names).await?, &self.clock, &*self.link).await)
        })
    }

    fn lead<'a>(&'a self, at: &'a Address, ask: Ask) -> Answer<'a, Lead> {
        Box::pin(self.lead_by(By::Lease, at, ask))
    }

    fn fill<'a>(&'a self, at: &'a Address, right: Right, writes: Vec<Write>) -> Answer<'a, Filled> {
        Box::pin(self.fill_now(at, right, writes))
    }

    fn abandon<'a>(&'a self, at: &'a Address, token: Token, tombstone: Option<Tombstone>) -> Answer<'a, Hold> {
        Box::pin(async move { self.held(self.scripts.abandon(&lease_name(at), token, tombstone, at.hash())).await })
    }

    fn extend<'a>(&'a self, at: &'a Address, lease: Lease, span: Duration) -> Answer<'a, Hold> {
        Box::pin(async move { self.held(self.scripts.extend(&lease_name(at), lease, span)).await })
    }

    fn invalidate<'a>(&'a self, at: &'a Address) -> Answer<'a, ()> {
        Box::pin(async move {
            let call = self.scripts.invalidate(&lease_name(at), &entry_names(at), at.hash());
            self.ask(call, |answer| number(&answer)).await.map(drop)
        })
    }

    fn part(&self, at: &Address) -> u16 {
        (self.part)(at)
    }

    /// Before the first connection nothing was acknowledged that could be lost: it begins no epoch.
    fn epoch(&self) -> u64 {
        self.link.connections()
    }

    fn listen(&self, at: &Address) -> Listener {
        self.hear();
        self.wakes.listen(at)
    }

    fn track(&self, every: Duration) -> Option<Arc<dyn Track>> {
        let link = TrackedLink::new(self.client.clone()?, self.clock.clone(), self.link.clone(), every);
        let (reads, clock) = (Reads::over(link.link(), true), self.clock.clone());
        Some(Arc::new(Tracking { link, reads, clock, subscriber: self.subscriber.clone() }))
    }
}

/// As what was found under these addresses. What cannot be read is nothing; it may be the answer to something else.
async fn entries(
    at: &[Address],
    found: Vec<Option<Bytes>>,
    clock: &ServerClock,
    link: &dyn Link,
) -> Vec<Option<Entry>> {
    let (offset, there) = (clock.offset(), found.iter().flatten().count());
    let read = |(at, bytes): (&Address, Option<Bytes>)| Entry::from_envelope(at, &bytes?, offset);
    let entries: Vec<_> = at.iter().zip(found).map(read).collect();
    if entries.iter().flatten().count() < there {
        link.doubt().await;
    }
    entries
}

/// Without the connection, whose address may hold a password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("wakes", &self.wakes).field("woken", &self.subscriber.is_some()).finish()
    }
}

macro_rules! into_store {
    ($($(#[$attribute:meta])* $from:ty)*) => {$(
        $(#[$attribute])*
        impl IntoStore for $from {
            fn into_store(self) -> Arc<dyn Store> {
                Arc::new(RedisStore::of(&self.into_server()))
            }
        }
    )*};
}

into_store! {
    redis::Client
    redis::aio::ConnectionManager
    redis::aio::MultiplexedConnection
    #[cfg(feature = "cluster")]
    redis::cluster::ClusterClient
    #[cfg(feature = "cluster")]
    redis::cluster_async::ClusterConnection
}

impl<C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static> IntoStore for Connection<C> {
    fn into_store(self) -> Arc<dyn Store> {
        Arc::new(RedisStore::of(&self.into_server()))
    }
}

/// So many entries in a row may turn out unreadable.
const UNREADABLE_ENTRIES: usize = 4;
