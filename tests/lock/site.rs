//! The servers on which a recipe is tested, with a namespace per test.

use crate::{
    Guarantees,
    support::{RedisServer, Relay, SECOND},
};
use futures_util::future::join_all;
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
use stampede_guard::{
    Lock,
    lock::{IntoEndpoint, RedisEndpoint},
};
use std::{
    ops::RangeFrom,
    process,
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

/// A recipe under test.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    /// Label of its row in the table of src/guide/locks.md.
    pub(crate) label: &'static str,
    pub(crate) servers: usize,
    pub(crate) guarantees: fn() -> Guarantees,
    pub(crate) make: fn(Lock, &Site) -> Lock,
}

impl Subject {
    /// Returns a site on the servers that all tests share.
    pub(crate) fn shared(&self) -> Site {
        static MORE: OnceLock<Vec<RedisServer>> = OnceLock::new();
        let one = std::iter::once(RedisServer::shared());
        match self.servers {
            1 => Site::of(one),
            n => Site::of(one.chain(MORE.get_or_init(|| start(n - 1)))),
        }
    }

    /// Starts servers for one test.
    pub(crate) fn start(&self) -> Vec<RedisServer> {
        start(self.servers)
    }

    pub(crate) fn guarantees(&self) -> Guarantees {
        (self.guarantees)()
    }
}

fn start(n: usize) -> Vec<RedisServer> {
    (0..n).map(|_| RedisServer::start()).collect()
}

/// Servers, the connections to them, and a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) namespace: String,
    pub(crate) clients: Vec<Client>,
    pub(crate) servers: Vec<RedisEndpoint>,
}

impl Site {
    pub(crate) fn of<'a>(servers: impl IntoIterator<Item = &'a RedisServer>) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("site-{}-{}.", process::id(), NEXT.fetch_add(1, Relaxed));
        Self::new(servers.into_iter().map(RedisServer::client).collect(), namespace)
    }

    pub(crate) fn new(clients: Vec<Client>, namespace: String) -> Self {
        let servers = clients.iter().cloned().map(IntoEndpoint::into_endpoint).collect();
        Self { namespace, clients, servers }
    }

    /// Starts one relay per server.
    pub(crate) async fn relays(&self) -> Vec<Relay> {
        let addresses = self.clients.iter().map(|client| client.get_connection_info().addr().to_string());
        join_all(addresses.map(async |to| Relay::to(to.parse().expect("an address")).await)).await
    }

    /// Returns the same site, reached through the relays.
    pub(crate) fn through(&self, relays: &[Relay]) -> Self {
        Self::new(relays.iter().map(Relay::client).collect(), self.namespace.clone())
    }

    /// Returns the same site over connections that are shared with other clients.
    pub(crate) fn over(&self, connections: &[MultiplexedConnection]) -> Self {
        let servers = connections.iter().cloned().map(IntoEndpoint::into_endpoint).collect();
        Self { servers, ..self.clone() }
    }

    /// Returns a lock with connections of its own. Its timeouts tolerate a busy machine, and its TTL outlasts every
    /// test that does not wait for the expiry.
    pub(crate) fn lock(&self, recipe: &Subject) -> Lock {
        let lock = Lock::new(self.servers[0].clone()).namespace(&self.namespace);
        (recipe.make)(lock.store_timeout(LONG).ttl(LONG).delay(Duration::from_millis(5)), self)
    }

    pub(crate) async fn connections(&self) -> Vec<MultiplexedConnection> {
        join_all(self.clients.iter().map(connect)).await
    }

    /// Returns the keys of the namespace, per server.
    pub(crate) async fn names(&self) -> Vec<Vec<Vec<u8>>> {
        self.ask(async |mut connection| keys(&self.namespace, &mut connection).await).await
    }

    /// Returns the string values of the namespace, per server.
    pub(crate) async fn values(&self) -> Vec<Vec<Vec<u8>>> {
        self.ask(async |mut connection| {
            let mut values = Vec::new();
            for name in keys(&self.namespace, &mut connection).await {
                // Sets and queues answer with an error and are skipped.
                let value: redis::RedisResult<Option<Vec<u8>>> =
                    redis::cmd("GET").arg(name).query_async(&mut connection).await;
                values.extend(value.ok().flatten());
            }
            values
        })
        .await
    }

    /// Returns the longest remaining TTL of any key of the namespace, per server.
    pub(crate) async fn longest(&self) -> Vec<Longest> {
        self.ask(async |mut connection| {
            let mut longest = Longest::Absent;
            for name in keys(&self.namespace, &mut connection).await {
                let left: i64 = redis::cmd("PTTL").arg(name).query_async(&mut connection).await.expect("up");
                longest = longest.max(match left {
                    -2 => Longest::Absent,
                    -1 => Longest::Ever,
                    left => Longest::For(Duration::from_millis(left.unsigned_abs())),
                });
            }
            longest
        })
        .await
    }

    /// Deletes the keys of the namespace on the servers in the range, as after a restart without data.
    pub(crate) async fn delete(&self, on: RangeFrom<usize>) {
        for client in &self.clients[on] {
            let mut connection = connect(client).await;
            for name in keys(&self.namespace, &mut connection).await {
                let () = redis::cmd("DEL").arg(name).query_async(&mut connection).await.expect("up");
            }
        }
    }

    async fn ask<T>(&self, what: impl AsyncFn(MultiplexedConnection) -> T) -> Vec<T> {
        let mut answers = Vec::new();
        for client in &self.clients {
            answers.push(what(connect(client).await).await);
        }
        answers
    }
}

/// The remaining lifetime of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Longest {
    Absent,
    For(Duration),
    Ever,
}

async fn connect(client: &Client) -> MultiplexedConnection {
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("the server is up")
}

async fn keys(namespace: &str, connection: &mut MultiplexedConnection) -> Vec<Vec<u8>> {
    redis::cmd("KEYS").arg(format!("*{namespace}*")).query_async(connection).await.expect("the server is up")
}

pub(crate) const LONG: Duration = SECOND.saturating_mul(30);
