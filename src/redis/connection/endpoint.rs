//! The endpoint of Redis: a server or a cluster, and its clients.
#![cfg_attr(not(feature = "lock"), allow(unreachable_pub, reason = "users name these types for locks alone"))]

use super::{
    connect::{self, Connect, Connection},
    log::{ClientEndpoint, ConnectionLog},
    reconnecting::{CommandLink, Handshake, Reconnecting},
};
use redis::aio::ConnectionLike;
use std::{fmt, sync::Arc};

/// A Redis server or cluster to connect to. Built from a client or connection of redis-rs by [`IntoEndpoint`].
#[derive(Clone)]
pub struct RedisEndpoint {
    connect_with: Arc<ConnectWith>,
    wakes: Option<ClientEndpoint>,
    client: Option<ClientEndpoint>,
    is_cluster: bool,
}

/// A function that connects with a handshake.
type ConnectWith = dyn Fn(Arc<dyn Handshake>) -> Arc<dyn CommandLink> + Send + Sync;

/// A type that names a Redis server or cluster: a client or an existing connection. A client connects on first use, and
/// again when the connection breaks.
pub trait IntoEndpoint {
    /// Converts `self` into an endpoint.
    fn into_endpoint(self) -> RedisEndpoint;
}

impl RedisEndpoint {
    /// Receives messages over a connection of this client. Needed for existing connections, which cannot be made a
    /// second time, and for clusters, for which a client of any node will do. A client of a replica will do as well;
    /// waiters for a lock then poll.
    ///
    /// ```no_run
    /// # async fn example() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{Lock, lock::IntoEndpoint, redis};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let server = client.get_multiplexed_async_connection().await?.into_endpoint().subscribe_via(client);
    /// let lock = Lock::new(server);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "lock")]
    #[must_use]
    pub fn subscribe_via(self, client: redis::Client) -> Self {
        Self { wakes: Some(ClientEndpoint::new(client)), ..self }
    }

    pub(crate) fn of_client(client: redis::Client) -> Self {
        let client = ClientEndpoint::new(connect::tuned(client));
        let endpoint = Self::over(client.client.clone(), client.log.clone());
        Self { wakes: Some(client.clone()), client: Some(client), ..endpoint }
    }

    pub(crate) fn of_connection<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::over(Connection(connection), Arc::default())
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(client: redis::cluster::ClusterClient) -> Self {
        Self { is_cluster: true, ..Self::over(client, Arc::default()) }
    }

    /// Builds an endpoint whose data connections come from `connect`.
    fn over(connect: impl Connect + Clone, log: Arc<ConnectionLog>) -> Self {
        let connect_with = move |handshake| {
            Arc::new(Reconnecting::new(connect.clone(), handshake, log.clone())) as Arc<dyn CommandLink>
        };
        Self { connect_with: Arc::new(connect_with), wakes: None, client: None, is_cluster: false }
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster_connection(connection: redis::cluster_async::ClusterConnection) -> Self {
        Self { is_cluster: true, ..Self::of_connection(connection) }
    }

    /// Makes a data connection that begins with this handshake.
    pub(crate) fn connect(&self, handshake: Arc<dyn Handshake>) -> Arc<dyn CommandLink> {
        (self.connect_with)(handshake)
    }

    /// Returns the client for the connection that receives messages, if there is one.
    pub(crate) fn wakes(&self) -> Option<ClientEndpoint> {
        self.wakes.clone()
    }

    /// Returns the client of a single server, if more connections to it can be made.
    pub(crate) fn client(&self) -> Option<ClientEndpoint> {
        self.client.clone()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }
}

/// Omits the connection, whose address may hold a password.
impl fmt::Debug for RedisEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisEndpoint").field("is_cluster", &self.is_cluster).finish_non_exhaustive()
    }
}

macro_rules! into_endpoint {
    ($($(#[$attribute:meta])* $from:ty => $make:path;)*) => {$(
        $(#[$attribute])*
        impl IntoEndpoint for $from {
            fn into_endpoint(self) -> RedisEndpoint {
                $make(self)
            }
        }
    )*};
}

into_endpoint! {
    redis::Client => RedisEndpoint::of_client;
    #[cfg(feature = "connection-manager")]
    redis::aio::ConnectionManager => RedisEndpoint::of_connection;
    redis::aio::MultiplexedConnection => RedisEndpoint::of_connection;
    #[cfg(feature = "cluster")]
    redis::cluster::ClusterClient => RedisEndpoint::of_cluster;
    #[cfg(feature = "cluster")]
    redis::cluster_async::ClusterConnection => RedisEndpoint::of_cluster_connection;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> IntoEndpoint for Connection<C> {
    fn into_endpoint(self) -> RedisEndpoint {
        RedisEndpoint::of_connection(self.0)
    }
}

impl IntoEndpoint for RedisEndpoint {
    fn into_endpoint(self) -> Self {
        self
    }
}
