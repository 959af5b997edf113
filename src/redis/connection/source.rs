//! Sources of connections: a server, a node of a cluster, a master that sentinels watch, or an existing connection.

#[cfg(feature = "cluster")]
use super::error_class::CLIENT_HINT;
#[cfg(feature = "sentinel")]
use super::sentinel::ToMaster;
use super::{
    attempts::{Attempts, CONNECT_TIMEOUT, within},
    log::ConnectionLog,
};
use futures_util::future::{OptionFuture, join, pending};
#[cfg(feature = "sentinel")]
use redis::sentinel::SentinelClient;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, RedisResult, Value,
    aio::{ConnectionLike, MultiplexedConnection},
};
use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};
use tokio::time::timeout;

/// A source of connections of one kind.
pub(in crate::redis) trait Connect: Send + Sync + 'static {
    type Connection: ConnectionLike + Clone + Send + Sync + 'static;

    /// Connects, with a second connection for reads if it is known to lead to the same process of a server.
    fn connect(&self) -> impl Future<Output = RedisResult<Connections<Self::Connection>>> + Send;

    /// Returns the number of the present lead. A connection holds the number from before its address was resolved, and is
    /// replaced although it works once there is another lead. Default: 0, connections are to stay.
    fn lead(&self) -> u64 {
        0
    }
}

/// What an attempt has made: connections to one process of a server.
pub(in crate::redis) struct Connections<C> {
    /// For everything but reads, and for reads too if they have no connection of their own.
    pub(in crate::redis) main: C,
    pub(in crate::redis) reads: Option<C>,
}

/// A place that connections lead to, with their settings. It is resolved for each connection, so connections made later
/// may lead to another server than earlier connections.
#[derive(Clone)]
pub(crate) struct Source {
    target: Target,
    /// The settings of the user, if there are any.
    config: Option<AsyncConnectionConfig>,
    /// Whether reads get a connection of their own.
    is_paired: bool,
    /// The attempts that all connections share: they fail together if the address or the password is wrong.
    pub(in crate::redis) attempts: Arc<Attempts>,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each connection")]
enum Target {
    Client(Client),
    #[cfg(feature = "sentinel")]
    Master(ToMaster),
}

impl Source {
    fn of(target: Target, attempts: Arc<Attempts>) -> Self {
        Self { target, config: None, is_paired: false, attempts }
    }

    pub(in crate::redis) fn of_client(client: Client) -> Self {
        let log = ConnectionLog::of([URL; 2], [client.get_connection_info().addr()]);
        Self::of(Target::Client(tuned(client)), Attempts::new(log))
    }

    /// Returns the source of connections to the nodes of a cluster, which share a log.
    #[cfg(feature = "cluster")]
    pub(super) fn of_cluster<'a>(client: Client, nodes: impl IntoIterator<Item = &'a ConnectionAddr>) -> Self {
        let log = ConnectionLog::of(["the URLs of the nodes (`RedisEndpoint::cluster`)"; 2], nodes);
        log.is_new(CLIENT_HINT); // redirections need no hint
        Self::of(Target::Client(tuned(client)), Attempts::new(log))
    }

    /// Leads to another node, with the same settings.
    #[cfg(feature = "cluster")]
    pub(super) fn to(&self, host: String, port: u16) -> Self {
        let target = match self.target.clone() {
            #[cfg(feature = "sentinel")]
            target @ Target::Master(_) => target,
            Target::Client(client) => Target::Client(changed(client, |info| {
                let addr = match info.addr().clone() {
                    ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                        ConnectionAddr::TcpTls { host, port, insecure, tls_params }
                    }
                    _ => ConnectionAddr::Tcp(host, port),
                };
                info.set_addr(addr)
            })),
        };
        Self { target, attempts: Attempts::new(self.attempts.log.clone()), ..self.clone() }
    }

    #[cfg(feature = "sentinel")]
    pub(in crate::redis) fn of_master(sentinels: Vec<SentinelClient>, addresses: &[ConnectionAddr]) -> Self {
        let log = ConnectionLog::of([SENTINELS, "`RedisEndpoint::sentinel_with` for the servers"], addresses);
        let attempts = Attempts::new(log);
        Self::of(Target::Master(ToMaster::of(sentinels, attempts.clone())), attempts)
    }

    /// Sets the settings of the user, and whether reads get a connection of their own.
    pub(super) fn configured(&self, config: &Option<AsyncConnectionConfig>, is_paired: bool) -> Self {
        Self { config: config.clone(), is_paired, ..self.clone() }
    }

    /// Returns the host of a server that is no master of sentinels, or the path of its socket.
    pub(in crate::redis) fn host(&self) -> Option<String> {
        match &self.target {
            Target::Client(client) => Some(match client.get_connection_info().addr() {
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host.clone(),
                address => address.to_string(),
            }),
            #[cfg(feature = "sentinel")]
            Target::Master(_) => None,
        }
    }

    /// Returns a client of the server that connections lead to now.
    #[allow(clippy::unused_async, reason = "other targets than a client have to be asked")]
    async fn client(&self) -> RedisResult<Client> {
        match &self.target {
            Target::Client(client) => Ok(client.clone()),
            #[cfg(feature = "sentinel")]
            Target::Master(master) => {
                choose_crypto_provider(); // a sentinel client does not say whether it uses TLS
                master.client().await.map(tuned)
            }
        }
    }

    /// Returns when there is another lead than this one. Never returns if that cannot be known.
    pub(super) async fn moved(&self, lead: u64) {
        let _ = lead; // a client has one lead
        match &self.target {
            #[cfg(feature = "sentinel")]
            Target::Master(master) => master.moved(lead).await,
            _ => pending().await,
        }
    }

    /// Makes a connection on which the server sends messages too (RESP3). `on_push` gets each of them before a later
    /// reply is returned, and must not block.
    pub(in crate::redis) async fn connect_with_pushes(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let info = self.client().await?.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let config = self.config().set_push_sender(move |push| {
            on_push(push);
            Ok::<_, Infallible>(())
        });
        connect(Client::open(info.set_redis_settings(settings))?, config).await
    }

    /// Makes a second connection if both lead to the same process of a server. A host name or a proxy may lead it to
    /// another server than the first one, and the server may refuse it, at `maxclients` for example.
    async fn connect_beside(&self, first: &MultiplexedConnection, client: Client) -> Option<MultiplexedConnection> {
        let second = connect(client, self.config()).await.ok()?;
        let (info, mut first, mut other) = (info_of_process(), first.clone(), second.clone());
        let is_one = is_one_process(info.query_async(&mut first), info.query_async(&mut other)).await;
        (is_one == Some(true)).then_some(second)
    }

    fn config(&self) -> AsyncConnectionConfig {
        let patient = || config().set_connection_timeout(Some(self.attempts.patience()));
        self.config.clone().unwrap_or_else(patient)
    }
}

impl Connect for Source {
    type Connection = MultiplexedConnection;

    async fn connect(&self) -> RedisResult<Connections<MultiplexedConnection>> {
        let client = self.client().await?;
        let main = connect(client.clone(), self.config()).await?;
        let second = self.is_paired.then(|| timeout(CONNECT_TIMEOUT, self.connect_beside(&main, client)));
        Ok(Connections { reads: OptionFuture::from(second).await.and_then(Result::ok).flatten(), main })
    }

    fn lead(&self) -> u64 {
        match &self.target {
            #[cfg(feature = "sentinel")]
            Target::Master(master) => master.lead(),
            _ => 0,
        }
    }
}

/// A connection of redis-rs, or one that behaves like it, as a store: `StampedeGuard::new(Connection(pooled))`.
#[derive(Clone, Debug)]
pub struct Connection<C>(pub C);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connect for Connection<C> {
    type Connection = C;

    async fn connect(&self) -> RedisResult<Connections<C>> {
        Ok(Connections { main: self.0.clone(), reads: None })
    }
}

async fn connect(client: Client, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
    if matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. }) {
        choose_crypto_provider();
    }
    within(LONGEST_CONNECT_TIMEOUT, client.get_multiplexed_async_connection_with_config(&config)).await
}

/// Reports whether these replies to [`info_of_process`] come from one process. `None` if a server does not
/// tell, or a reply fails: then the link of that connection makes another one.
pub(in crate::redis) async fn is_one_process(
    first: impl Future<Output = RedisResult<Value>>,
    second: impl Future<Output = RedisResult<Value>>,
) -> Option<bool> {
    let replies = timeout(CONNECT_TIMEOUT, join(first, second)).await;
    replies.map_or(Some(false), |(first, second)| Some(run_id(first)? == run_id(second)?))
}

/// Returns the command whose reply [`run_id`] reads.
pub(in crate::redis) fn info_of_process() -> Cmd {
    redis::cmd("INFO").arg("server").to_owned()
}

/// Returns the id that the process of the server has drawn at its start. `None` if the server does not tell it.
fn run_id(info: RedisResult<Value>) -> Option<String> {
    let info: String = redis::from_redis_value(info.ok()?).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    // A proxy may answer for all its servers: by zeros, or by no id.
    id.bytes().any(|digit| digit != b'0').then(|| id.to_owned())
}

/// Chooses `ring` before a connection that may use TLS, unless the application has already chosen with
/// `CryptoProvider::install_default`. Without TLS, an application may still choose later.
///
/// redis-rs asks rustls for the provider of the process. rustls panics if none is chosen and several are compiled in,
/// which happens when another crate of the application brings `aws-lc-rs`.
fn choose_crypto_provider() {
    #[cfg(feature = "tls-rustls")]
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread was faster.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

/// Returns the settings of a connection. It has no response timeout, because the guard has its own and redis-rs would
/// not reconnect after one.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}

/// Returns the client with TCP_NODELAY.
fn tuned(client: Client) -> Client {
    changed(client, |info| {
        let settings = info.tcp_settings().clone().set_nodelay(true);
        info.set_tcp_settings(settings)
    })
}

/// Returns the client with other connection info, which is never refused.
fn changed(client: Client, change: impl FnOnce(ConnectionInfo) -> ConnectionInfo) -> Client {
    Client::open(change(client.get_connection_info().clone())).unwrap_or(client)
}

/// The place in which the user has named the server.
const URL: &str = "the URL of the client (`redis::Client::open`, `redis://USER:PASSWORD@HOST`)";
/// The places in which the user has set how to reach sentinels and servers.
#[cfg(feature = "sentinel")]
const SENTINELS: &str = "the URLs of the sentinels, the master's name, or TLS in `RedisEndpoint::sentinel_with`";
/// Maximum time to connect with settings of the user, which may have none.
const LONGEST_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
