//! The endpoint of Redis: a server, a cluster or sentinels, and how to connect to it.

use super::{
    attempts::Attempts,
    log::ConnectionLog,
    reconnecting::{CommandLink, Reconnecting},
    source::{Connect, Connection, Source, config},
    subscriber::{MessageHandler, Subscriber},
};
#[cfg(feature = "cluster")]
use super::{router::Router, topology::Seeds};
use redis::{AsyncConnectionConfig, Client, Pipeline, aio::ConnectionLike};
#[cfg(any(feature = "cluster", feature = "sentinel"))]
use redis::{IntoConnectionInfo, RedisResult};
use std::{fmt, sync::Arc};
#[cfg(feature = "sentinel")]
use {
    super::sentinel::NO_SENTINELS,
    redis::{
        ErrorKind,
        sentinel::{SentinelClientBuilder, SentinelServerType},
    },
};

/// A Redis server, the nodes of a cluster or the sentinels of a master, and how to connect to them. Cheap to clone:
/// connections are made by the guards and locks that are built from it.
///
/// Clients and connections of redis-rs turn into an endpoint where one is asked for ([`IntoEndpoint`]). Build it
/// explicitly to list the nodes of a cluster or the sentinels of a master, or to set how connections are made:
///
/// ```
/// # fn main() -> stampede_guard::redis::RedisResult<()> {
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
    /// For the connection that receives messages. Without it a cluster has one at each node.
    wakes: Option<Source>,
    /// The settings of the user for connections that are made here.
    config: Option<AsyncConnectionConfig>,
}

/// Where the data connections come from.
#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each endpoint")]
enum DataSource {
    Server(Source),
    #[cfg(feature = "cluster")]
    Cluster(Seeds),
    Other(Arc<ConnectWith>),
}

/// A function that connects, and begins with this introduction.
type ConnectWith = dyn Fn(Arc<Pipeline>) -> Arc<dyn CommandLink> + Send + Sync;

/// A type that leads to a Redis server, a cluster or the master of sentinels: a client, an existing connection, or a
/// [`RedisEndpoint`]. A client connects on first use, and again when the connection breaks.
///
/// A `ClusterClient` of redis-rs is none: it tells neither its nodes nor where it has sent a command. Name some nodes of
/// the cluster with `RedisEndpoint::cluster`.
///
/// ```
/// # fn main() -> stampede_guard::redis::RedisResult<()> {
/// use stampede_guard::{IntoEndpoint, Lock, StampedeGuard, redis};
///
/// // One endpoint for the cache and for the locks of an application.
/// let server = redis::Client::open("redis://127.0.0.1/")?.into_endpoint();
/// let (guard, lock) = (StampedeGuard::new(server.clone()), Lock::new(server));
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not lead to a Redis server, a cluster or the master of sentinels",
    label = "neither a client nor a connection of the redis-rs that this crate was compiled with",
    note = "pass a `stampede_guard::redis::Client`, a `SentinelClient` or a `ConnectionManager` (features `sentinel` and \
            `connection-manager`), or a `RedisEndpoint`; another connection that is `ConnectionLike + Clone` goes into \
            `stampede_guard::Connection(..)`",
    note = "in place of a `ClusterClient` of redis-rs pass `RedisEndpoint::cluster([..])` with the URLs of some nodes \
            (feature `cluster`)",
    note = "a guard needs no pool: it sends the commands of all requests over one connection"
)]
pub trait IntoEndpoint {
    /// Converts `self` into an endpoint.
    fn into_endpoint(self) -> RedisEndpoint;
}

impl RedisEndpoint {
    /// Lists some nodes of a Redis Cluster, at least one; they report the other nodes. User, password and TLS of the
    /// first node, with the certificates that `redis::Client::build_with_tls` has put into its address, apply to all
    /// nodes. Over TLS a node is addressed by the host name that it announces, if there is one.
    ///
    /// Each master that has the keys of this process gets the connections that a single server would get, when they are
    /// needed. Commands go to masters only. The user needs the rights `+cluster|nodes` and `+asking`.
    /// A copy in a near cache ends with its age, because no node reports the changes of all keys.
    ///
    /// # Errors
    ///
    /// A node is not a URL of Redis, there is none, or the nodes differ in their user, password or TLS.
    ///
    /// ```
    /// # fn main() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{RedisEndpoint, StampedeGuard};
    ///
    /// let guard = StampedeGuard::new(RedisEndpoint::cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])?);
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "cluster")]
    pub fn cluster<N: IntoConnectionInfo>(nodes: impl IntoIterator<Item = N>) -> RedisResult<Self> {
        let infos = nodes.into_iter().map(IntoConnectionInfo::into_connection_info).collect::<RedisResult<Vec<_>>>()?;
        Ok(Self::of(DataSource::Cluster(Seeds::of(&infos)?)))
    }

    /// Changes how connections are made: timeouts, a provider of credentials that change, a resolver of host names.
    /// `configure` gets the settings so far: at first a connection timeout of one second, and no response timeout,
    /// because the guard has a limit of its own ([`store_timeout`](crate::StampedeGuard::store_timeout)).
    ///
    /// A connection timeout of more than 30 s has no effect, and a push sender is replaced on the connections for
    /// messages. The client-side cache of redis-rs must stay off: a lookup could otherwise find an entry that this guard
    /// has invalidated.
    ///
    /// The settings are for connections that the guard or lock makes itself: not for connections that exist already.
    /// Over sentinels redis-rs also checks the role of a master on a connection without these settings (see
    /// `RedisEndpoint::sentinel`).
    #[must_use]
    pub fn connection_config(self, configure: impl FnOnce(AsyncConnectionConfig) -> AsyncConnectionConfig) -> Self {
        Self { config: Some(configure(self.config.unwrap_or_else(config))), ..self }
    }

    /// Receives messages over a connection of this client. Needed for existing connections, which cannot be made a
    /// second time. A client of a replica will do as well; waiters for a lock then poll.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> stampede_guard::redis::RedisResult<()> {
    /// # let server = stampede_guard_support::RedisServer::start();
    /// # let url = server.url();
    /// use stampede_guard::{IntoEndpoint, StampedeGuard, redis};
    ///
    /// let client = redis::Client::open(url)?;
    /// let server = client.get_multiplexed_async_connection().await?.into_endpoint().subscribe_via(client);
    /// let guard = StampedeGuard::new(server);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn subscribe_via(self, client: Client) -> Self {
        Self { wakes: Some(Source::of_client(client)), ..self }
    }

    /// Builds an endpoint whose connections all come from one source.
    pub(in crate::redis) fn of_server(server: Source) -> Self {
        Self { wakes: Some(server.clone()), ..Self::of(DataSource::Server(server)) }
    }

    /// Builds an endpoint whose data connections come from `connect`.
    pub(in crate::redis) fn over(connect: impl Connect) -> Self {
        let (connect, attempts) = (Arc::new(connect), Attempts::new(ConnectionLog::of([CLIENT; 2], [])));
        let connect_with = move |introduction| {
            Arc::new(Reconnecting::new(connect.clone(), introduction, attempts.clone())) as Arc<dyn CommandLink>
        };
        Self::of(DataSource::Other(Arc::new(connect_with)))
    }

    fn of(data: DataSource) -> Self {
        Self { data, wakes: None, config: None }
    }

    /// Makes a link for commands, whose connections begin with this introduction, and the subscribers whose messages go to
    /// `handler`. With `is_paired`, reads have a connection of their own to each server, unless all connections exist.
    pub(crate) fn connect(
        &self,
        introduction: Arc<Pipeline>,
        handler: Arc<dyn MessageHandler>,
        is_paired: bool,
    ) -> (Arc<dyn CommandLink>, Subscribers) {
        let link: Arc<dyn CommandLink> = match &self.data {
            DataSource::Server(server) => {
                let source = server.configured(&self.config, is_paired);
                Arc::new(Reconnecting::new(Arc::new(source), introduction, server.attempts.clone()))
            }
            #[cfg(feature = "cluster")]
            DataSource::Cluster(seeds) => {
                let mut seeds = seeds.clone();
                seeds.source = seeds.source.configured(&self.config, is_paired);
                let router = Arc::new(Router::new(seeds, introduction, handler.clone()));
                if self.wakes.is_none() {
                    return (router.clone(), Subscribers::PerMaster(router));
                }
                router
            }
            DataSource::Other(connect_with) => connect_with(introduction),
        };
        let subscriber =
            |wakes: &Source| Arc::new(Subscriber::new(wakes.configured(&self.config, false), link.clone(), handler));
        let subscriber = self.wakes.as_ref().map(subscriber);
        (link, Subscribers::One(subscriber))
    }

    /// Returns the source of a single server, if more connections to it can be made.
    pub(crate) fn server(&self) -> Option<Source> {
        match &self.data {
            DataSource::Server(server) => Some(server.configured(&self.config, false)),
            _ => None,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        !matches!(self.data, DataSource::Server(_) | DataSource::Other(_))
    }
}

#[cfg(feature = "sentinel")]
impl RedisEndpoint {
    /// Names the sentinels, at least one, and the name under which they watch the master.
    ///
    /// All connections lead to the master that most of the sentinels name, and follow it when it changes. User,
    /// password and TLS in the URL of a sentinel are for that sentinel only; [`sentinel_with`](Self::sentinel_with) sets
    /// them for the servers.
    ///
    /// Before a master is used, redis-rs asks for its `ROLE` on a connection of its own: within 1 s to connect and 500 ms
    /// for the reply, with the user and password of [`sentinel_with`](Self::sentinel_with). This connection has no
    /// settings of [`connection_config`](Self::connection_config), so a provider of credentials or a resolver alone is not
    /// enough: the server must also accept the user and password, and its address must resolve by the system.
    ///
    /// TLS in the URL of a sentinel (`rediss://`) does not make the connections to the servers use TLS: the password of
    /// the servers is sent as plain text, unless `set_client_to_redis_tls_mode` is set.
    ///
    /// A `SentinelClient` of redis-rs turns into an endpoint as well. It asks its sentinels in their order, so that one
    /// that hangs delays each new connection by up to 1.5 s.
    ///
    /// # Errors
    ///
    /// A sentinel is not a URL of Redis, its URL has a database, or there is no sentinel.
    ///
    /// ```
    /// # fn main() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{RedisEndpoint, StampedeGuard};
    ///
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let guard = StampedeGuard::new(RedisEndpoint::sentinel(sentinels, "mymaster")?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinel<S: IntoConnectionInfo>(sentinels: impl IntoIterator<Item = S>, master: &str) -> RedisResult<Self> {
        Self::sentinel_with(sentinels, master, |client| client)
    }

    /// Does the same as [`sentinel`](Self::sentinel), and lets `configure` change the settings of the client of each
    /// sentinel: user, password, TLS and database of the servers (`set_client_to_redis_..`), and certificates of the
    /// sentinels.
    ///
    /// # Errors
    ///
    /// As of [`sentinel`](Self::sentinel), and what the settings cause.
    ///
    /// ```
    /// # fn main() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{RedisEndpoint, StampedeGuard};
    ///
    /// let endpoint = RedisEndpoint::sentinel_with(["redis://10.0.0.1:26379"], "mymaster", |client| {
    ///     client.set_client_to_redis_username("app").set_client_to_redis_password("secret")
    /// })?;
    /// let guard = StampedeGuard::new(endpoint);
    /// # Ok(())
    /// # }
    /// ```
    pub fn sentinel_with<S: IntoConnectionInfo>(
        sentinels: impl IntoIterator<Item = S>,
        master: &str,
        configure: impl Fn(SentinelClientBuilder) -> SentinelClientBuilder,
    ) -> RedisResult<Self> {
        // User, password, protocol and TCP settings of a sentinel's URL are for this sentinel alone.
        let mut addresses = Vec::new();
        let client = |sentinel: S| {
            let info = sentinel.into_connection_info()?;
            addresses.push(info.addr().clone());
            let settings = info.redis_settings();
            if settings.db() != 0 {
                return Err(DATABASE_OF_SENTINEL.into());
            }
            let mut builder = SentinelClientBuilder::new([info.addr().clone()], master, SentinelServerType::Master)?
                .set_client_to_sentinel_tcp_settings(info.tcp_settings().clone().set_nodelay(true))
                .set_client_to_sentinel_protocol(settings.protocol());
            if let Some(username) = settings.username() {
                builder = builder.set_client_to_sentinel_username(username);
            }
            if let Some(password) = settings.password() {
                builder = builder.set_client_to_sentinel_password(password);
            }
            configure(builder).build()
        };
        let clients = sentinels.into_iter().map(client).collect::<RedisResult<Vec<_>>>()?;
        if clients.is_empty() {
            return Err(NO_SENTINELS.into());
        }
        Ok(Self::of_server(Source::of_master(clients, &addresses)))
    }
}

/// The subscribers of one store or lock client.
pub(crate) enum Subscribers {
    /// Without one waiters poll.
    One(Option<Arc<Subscriber>>),
    /// One at each master of a cluster, because a node passes messages on to other nodes late.
    #[cfg(feature = "cluster")]
    PerMaster(Arc<Router>),
}

impl Subscribers {
    /// Starts the subscriber that gets the messages about this name, and returns it.
    pub(crate) fn start(&self, name: impl FnOnce() -> String) -> Option<Arc<Subscriber>> {
        let _ = &name; // PERF: one server needs no name
        let subscriber = match self {
            Self::One(subscriber) => subscriber.clone(),
            #[cfg(feature = "cluster")]
            Self::PerMaster(router) => router.subscriber(name().as_bytes()),
        };
        subscriber.inspect(|subscriber| subscriber.start())
    }

    /// Reports whether messages about this name arrive, as [`Subscriber::is_live`] does. Starts their subscriber.
    pub(crate) async fn is_live(&self, name: &str) -> bool {
        match self.start(|| name.to_owned()) {
            Some(subscriber) => subscriber.is_live().await,
            None => false,
        }
    }

    /// Reports whether messages arrive now, from all servers that were needed. `None` if no subscriber can be made.
    pub(crate) fn is_up(&self) -> Option<bool> {
        let mut subscribers = match self {
            Self::One(subscriber) => vec![subscriber.clone()?],
            #[cfg(feature = "cluster")]
            Self::PerMaster(router) => router.subscribers(),
        };
        subscribers.retain(|subscriber| subscriber.is_started());
        Some(!subscribers.is_empty() && subscribers.iter().all(|subscriber| subscriber.is_up()))
    }
}

/// Omits the connection, whose address may hold a password.
impl fmt::Debug for RedisEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisEndpoint").field("is_cluster", &self.is_cluster()).finish_non_exhaustive()
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> IntoEndpoint for Connection<C> {
    fn into_endpoint(self) -> RedisEndpoint {
        RedisEndpoint::over(self)
    }
}

/// The place in which the user has named the server of a connection, which does not say whether it was the password.
const CLIENT: &str = "the URLs, with user and password, of the client that the guard was built from";
#[cfg(feature = "sentinel")]
const DATABASE_OF_SENTINEL: (ErrorKind, &str) = (
    ErrorKind::InvalidClientConfig,
    "a sentinel has no databases: set that of the servers with `sentinel_with` (`set_client_to_redis_db`)",
);
