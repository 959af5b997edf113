//! The endpoint of Redis: a server, a cluster or sentinels, and how to connect to it.

use super::{
    connect::{self, Connect, Connection},
    log::ConnectionLog,
    reconnecting::{CommandLink, Handshake, Reconnecting},
    source::Source,
};
use redis::{AsyncConnectionConfig, aio::ConnectionLike};
use std::{fmt, sync::Arc};
#[cfg(feature = "cluster")]
use {
    super::{connect::tuned_tcp, nodes::Nodes},
    redis::{
        ErrorKind, IntoConnectionInfo, RedisResult,
        cluster::{ClusterClient, ClusterClientBuilder},
    },
    std::time::Duration,
};

/// A Redis server, the nodes of a cluster or the sentinels of a master, and how to connect to them. Cheap to clone:
/// connections are made by the guards and locks that are built from it.
///
/// Clients and connections of redis-rs turn into an endpoint where one is asked for ([`IntoEndpoint`]). Build it
/// explicitly to list the nodes of a cluster or the sentinels of a master, or to set how connections are made:
///
/// ```no_run
/// # fn example() -> stampede_guard::redis::RedisResult<()> {
/// use stampede_guard::{IntoEndpoint, StampedeGuard, redis};
/// use std::time::Duration;
///
/// let server = redis::Client::open("redis://127.0.0.1/")?.into_endpoint();
/// let patient = server.connection_config(|config| config.set_connection_timeout(Some(Duration::from_secs(5))));
/// let guard = StampedeGuard::new(patient);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisEndpoint {
    data: DataSource,
    /// For the connection that receives messages.
    wakes: Option<Source>,
    is_cluster: bool,
    /// The settings of the user for connections that are made here.
    config: Option<AsyncConnectionConfig>,
}

/// Where the data connections come from.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each endpoint")]
enum DataSource {
    Server(Source),
    Other(Arc<ConnectWith>),
}

/// A function that connects with a handshake.
type ConnectWith = dyn Fn(Arc<dyn Handshake>) -> Arc<dyn CommandLink> + Send + Sync;

/// A type that leads to a Redis server, a cluster or the master of sentinels: a client, an existing connection, or a
/// [`RedisEndpoint`]. A client connects on first use, and again when the connection breaks.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not lead to a Redis server, a cluster or the master of sentinels",
    label = "neither a client nor a connection of the redis-rs that this crate was compiled with",
    note = "pass a `stampede_guard::redis::Client`, a `ClusterClient`, a `SentinelClient` or a `ConnectionManager` \
            (features `cluster`, `sentinel` and `connection-manager`), or a `RedisEndpoint`; another connection that is \
            `ConnectionLike + Clone` goes into `stampede_guard::Connection(..)`",
    note = "a guard needs no pool: it sends the commands of all requests over one connection"
)]
pub trait IntoEndpoint {
    /// Converts `self` into an endpoint.
    fn into_endpoint(self) -> RedisEndpoint;
}

impl RedisEndpoint {
    /// Lists some nodes of a Redis Cluster, at least one; the cluster reports the others. User, password and TLS of the
    /// first node, with the certificates that `redis::Client::build_with_tls` has put into its address, are those of all
    /// nodes.
    ///
    /// Unlike a `ClusterClient` alone, which does not tell its nodes, the endpoint can receive messages: over one of the
    /// nodes that are listed here, at random. Without one that works, waiters poll.
    /// A copy in a near cache ends with its age, because no node reports the changes of all keys.
    ///
    /// The cluster client makes up to three retries, with pauses of at most 20 ms: enough to follow a slot that moves to
    /// another node, and short, because the origin answers for a node that is dead. A reply may take one second, so that
    /// the client can learn of a failover while the old master hangs.
    ///
    /// # Errors
    ///
    /// A node is not a URL of Redis, there is none, or the nodes differ in their user, password or protocol.
    ///
    /// ```no_run
    /// # fn example() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{RedisEndpoint, StampedeGuard};
    ///
    /// let guard = StampedeGuard::new(RedisEndpoint::cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])?);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cluster")]
    pub fn cluster<N: IntoConnectionInfo>(nodes: impl IntoIterator<Item = N>) -> RedisResult<Self> {
        Self::cluster_with(nodes, |client| client)
    }

    /// Does the same as [`cluster`](Self::cluster), and lets `configure` change the settings of the cluster client:
    /// retries, timeouts, TLS certificates, a provider of credentials. It may be called twice.
    ///
    /// Messages have a connection of their own. It has the user, password and TLS of the first node, and the settings of
    /// [`connection_config`](Self::connection_config): certificates and a provider have to be given to both.
    ///
    /// The client reads from replicas only if `configure` sets a `read_routing_strategy` or `read_from_replicas()`. A
    /// lookup may then find an entry that this guard has invalidated, and the check of a lock may report a lock that was
    /// just acquired as lost or free. Give the guard a client of its own without it. The client must not cache replies,
    /// for the same reason.
    ///
    /// # Errors
    ///
    /// Those of [`cluster`](Self::cluster), and what the settings cause. Also if the client uses TLS and the nodes are
    /// named without it (`redis://`): the connection for messages would send the password as plain text.
    #[cfg(feature = "cluster")]
    pub fn cluster_with<N: IntoConnectionInfo>(
        nodes: impl IntoIterator<Item = N>,
        configure: impl Fn(ClusterClientBuilder) -> ClusterClientBuilder,
    ) -> RedisResult<Self> {
        let infos = nodes.into_iter().map(IntoConnectionInfo::into_connection_info).collect::<RedisResult<Vec<_>>>()?;
        let builder = ClusterClient::builder(infos.clone())
            .retries(3) // to the new node of a slot that moves, on to the one that has the key, and once more
            .min_retry_wait(5)
            .max_retry_wait(20)
            .response_timeout(RESPONSE_TIMEOUT)
            .overall_response_timeout(None);
        let client = configure(builder.tcp_settings(tuned_tcp(Default::default()))).build()?;
        let nodes = Nodes::new(&infos).ok_or(NO_NODES)?;
        if nodes.differ_in_tls().is_some_and(|pair| configure(ClusterClient::builder(pair)).build().is_ok()) {
            return Err(TLS_OF_CLIENT_ALONE.into());
        }
        Ok(Self { wakes: Some(Source::of_nodes(nodes)), ..Self::of_cluster(client) })
    }

    /// Changes how connections are made: timeouts, a provider of credentials that change, a resolver of host names.
    /// `configure` gets the settings so far: at first a connection timeout of one second, and no response timeout,
    /// because the guard has a limit of its own ([`store_timeout`](crate::StampedeGuard::store_timeout)).
    ///
    /// A connection timeout of more than 30 s has no effect, and a push sender is replaced on the connections for
    /// messages. The client-side cache of redis-rs must stay off: a lookup could otherwise find an entry that this guard
    /// has invalidated.
    ///
    /// The settings are for connections that the guard or lock makes itself: not for connections that exist already,
    /// and not for those of a cluster client, which [`cluster_with`](Self::cluster_with) has settings for. Over sentinels
    /// redis-rs also checks the role of a master on a connection without these settings (see
    /// `RedisEndpoint::sentinel`).
    #[must_use]
    pub fn connection_config(self, configure: impl FnOnce(AsyncConnectionConfig) -> AsyncConnectionConfig) -> Self {
        let config = configure(self.config.unwrap_or_else(connect::config));
        Self { config: Some(config), ..self }
    }

    /// Receives messages over a connection of this client. Needed for existing connections, which cannot be made a
    /// second time, and for a cluster client, for which a client of any node will do. A client of a replica will do as
    /// well; waiters for a lock then poll.
    ///
    /// ```no_run
    /// # async fn example() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{IntoEndpoint, StampedeGuard, redis};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let server = client.get_multiplexed_async_connection().await?.into_endpoint().subscribe_via(client);
    /// let guard = StampedeGuard::new(server);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn subscribe_via(self, client: redis::Client) -> Self {
        Self { wakes: Some(Source::of_client(client)), ..self }
    }

    pub(crate) fn of_client(client: redis::Client) -> Self {
        Self::of_server(Source::of_client(client))
    }

    /// Builds an endpoint whose connections all come from one source.
    pub(super) fn of_server(server: Source) -> Self {
        Self { wakes: Some(server.clone()), ..Self::of(DataSource::Server(server)) }
    }

    pub(crate) fn of_connection<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::over(Connection(connection))
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(client: ClusterClient) -> Self {
        Self { is_cluster: true, ..Self::over(client) }
    }

    /// Builds an endpoint whose data connections come from `connect`.
    fn over(connect: impl Connect + Clone) -> Self {
        let log: Arc<ConnectionLog> = Arc::default();
        let connect_with = move |handshake| {
            Arc::new(Reconnecting::new(connect.clone(), handshake, log.clone())) as Arc<dyn CommandLink>
        };
        Self::of(DataSource::Other(Arc::new(connect_with)))
    }

    fn of(data: DataSource) -> Self {
        Self { data, wakes: None, is_cluster: false, config: None }
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster_connection(connection: redis::cluster_async::ClusterConnection) -> Self {
        Self { is_cluster: true, ..Self::of_connection(connection) }
    }

    /// Makes a data connection that begins with this handshake.
    pub(crate) fn connect(&self, handshake: Arc<dyn Handshake>) -> Arc<dyn CommandLink> {
        match &self.data {
            DataSource::Server(server) => {
                Arc::new(Reconnecting::new(self.configured(server), handshake, server.log.clone()))
            }
            DataSource::Other(connect_with) => connect_with(handshake),
        }
    }

    /// Returns the source of the connection that receives messages, if there is one.
    pub(crate) fn wakes(&self) -> Option<Source> {
        self.wakes.as_ref().map(|source| self.configured(source))
    }

    /// Returns the source of a single server, if more connections to it can be made.
    pub(crate) fn server(&self) -> Option<Source> {
        match &self.data {
            DataSource::Server(server) => Some(self.configured(server)),
            DataSource::Other(_) => None,
        }
    }

    fn configured(&self, source: &Source) -> Source {
        match &self.config {
            Some(config) => source.clone().with_config(config.clone()),
            None => source.clone(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }
}

#[cfg(feature = "cluster")]
const TLS_OF_CLIENT_ALONE: (ErrorKind, &str) = (
    ErrorKind::InvalidClientConfig,
    "the settings of the cluster client ask for TLS, but the nodes are named without: use rediss:// for the nodes",
);
/// Maximum time for the reply of a node of a cluster. Without it the client would wait for a node that hangs while it
/// asks the others for the new slots, and hold up all requests. The store timeout ends a request of the guard earlier.
#[cfg(feature = "cluster")]
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Never returned: without a node the cluster client is an error already.
#[cfg(feature = "cluster")]
const NO_NODES: (ErrorKind, &str) = (ErrorKind::InvalidClientConfig, "a cluster needs at least one node");

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
    ClusterClient => RedisEndpoint::of_cluster;
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
