//! Sources of connections: a server, the nodes of a cluster, a master that sentinels watch, a cluster client, or an
//! existing connection.

use super::log::ConnectionLog;
#[cfg(feature = "sentinel")]
use super::sentinel::ToMaster;
use futures_util::future::{OptionFuture, join, pending};
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ProtocolVersion, PushInfo, RedisResult,
    aio::{ConnectionLike, MultiplexedConnection},
    io::tcp::TcpSettings,
};
use std::{convert::Infallible, future::Future, sync::Arc, time::Duration};
use tokio::time::timeout;
#[cfg(feature = "cluster")]
use {
    crate::clock,
    redis::ConnectionInfo,
    std::sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// A source of connections of one kind.
pub(in crate::redis) trait Connect: Send + Sync + 'static {
    type Connection: ConnectionLike + Clone + Send + Sync + 'static;

    /// Whether a broken connection repairs itself. A new one would be no better then. In a cluster with one dead node
    /// it would even drop the connections to the live nodes.
    const SELF_HEALING: bool;

    /// Whether the connection existed before. Then [`connect`](Self::connect) does not show that there is a server.
    const EXISTED: bool = false;

    /// Whether a command waits for the connection to be made. Otherwise it fails at once until then.
    const AWAITED: bool = true;

    /// Returns the maximum time for one attempt to connect.
    fn connect_timeout(&self) -> Duration;

    fn connect(&self) -> impl Future<Output = RedisResult<Self::Connection>> + Send;

    /// Connects, with a second connection for reads if it is known to lead to the same process of a server. Default: with
    /// none.
    fn connect_pair(&self) -> impl Future<Output = RedisResult<Connections<Self::Connection>>> + Send {
        async { Ok(Connections { main: self.connect().await?, reads: None }) }
    }

    /// Reports whether the last connection is to be replaced although it works. Returns `true` once per replacement.
    fn is_superseded(&self) -> bool {
        false
    }
}

/// What an attempt has made: connections to one process of a server.
pub(in crate::redis) struct Connections<C> {
    /// For everything but reads, and for reads too if they have no connection of their own.
    pub(super) main: C,
    pub(super) reads: Option<C>,
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
    /// The log that all connections share: they fail together if the address or the password is wrong.
    pub(in crate::redis) log: Arc<ConnectionLog>,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each connection")]
enum Target {
    Client(Client),
    /// Any one of these nodes: each connection leads to the next one.
    #[cfg(feature = "cluster")]
    AnyNode(Arc<Nodes>),
    #[cfg(feature = "sentinel")]
    Master(ToMaster),
}

impl Source {
    pub(super) fn of_client(client: Client) -> Self {
        let log = ConnectionLog::of(&client);
        Self { target: Target::Client(tuned(client)), config: None, is_paired: false, log: Arc::new(log) }
    }

    #[cfg(feature = "cluster")]
    pub(super) fn of_nodes(nodes: Nodes) -> Self {
        Self { target: Target::AnyNode(Arc::new(nodes)), config: None, is_paired: false, log: Arc::default() }
    }

    #[cfg(feature = "sentinel")]
    pub(super) fn of_master(master: ToMaster) -> Self {
        let log = master.log().clone();
        Self { target: Target::Master(master), config: None, is_paired: false, log }
    }

    /// Sets the settings of the user.
    pub(super) fn with_config(self, config: Option<AsyncConnectionConfig>) -> Self {
        Self { config, ..self }
    }

    /// Gives reads a connection of their own.
    pub(super) fn paired(self) -> Self {
        Self { is_paired: true, ..self }
    }

    /// Returns a client of the server that connections lead to now.
    #[allow(clippy::unused_async, reason = "other targets than a client have to be asked")]
    async fn client(&self) -> RedisResult<Client> {
        match &self.target {
            Target::Client(client) => Ok(client.clone()),
            #[cfg(feature = "cluster")]
            Target::AnyNode(nodes) => nodes.next().map(tuned),
            #[cfg(feature = "sentinel")]
            Target::Master(master) => {
                choose_crypto_provider(); // a sentinel client does not say whether it uses TLS
                master.client().await.map(tuned)
            }
        }
    }

    /// Returns when connections lead to another server than that of the last connection. Never returns if that cannot be
    /// known.
    pub(super) async fn moved(&self) {
        match &self.target {
            #[cfg(feature = "sentinel")]
            Target::Master(master) => master.moved().await,
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
        let (of_first, of_second) = join(run_id(first.clone()), run_id(second.clone())).await;
        (of_first? == of_second?).then_some(second)
    }

    fn config(&self) -> AsyncConnectionConfig {
        self.config.clone().unwrap_or_else(config)
    }
}

impl Connect for Source {
    type Connection = MultiplexedConnection;
    const SELF_HEALING: bool = false;

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        connect(self.client().await?, self.config()).await
    }

    async fn connect_pair(&self) -> RedisResult<Connections<MultiplexedConnection>> {
        let client = self.client().await?;
        let main = connect(client.clone(), self.config()).await?;
        let second = self.is_paired.then(|| timeout(CONNECT_TIMEOUT, self.connect_beside(&main, client)));
        let reads = OptionFuture::from(second).await.and_then(Result::ok).flatten();
        Ok(Connections { main, reads })
    }

    fn is_superseded(&self) -> bool {
        match &self.target {
            #[cfg(feature = "sentinel")]
            Target::Master(master) => master.is_superseded(),
            _ => false,
        }
    }

    /// Longer than the client's own connection timeout, whose error says more.
    fn connect_timeout(&self) -> Duration {
        match self.config {
            Some(_) => LONGEST_CONNECT_TIMEOUT,
            None if self.is_paired => 3 * CONNECT_TIMEOUT,
            None => 2 * CONNECT_TIMEOUT,
        }
    }
}

/// The nodes of a cluster, as the user names them: a source of connections for messages.
#[cfg(feature = "cluster")]
pub(super) struct Nodes {
    infos: Vec<ConnectionInfo>,
    turn: AtomicUsize,
}

#[cfg(feature = "cluster")]
impl Nodes {
    /// Gives all nodes the user, password and TLS of the first one. The first turn is random, so that the processes of a
    /// fleet spread over the nodes.
    pub(super) fn like_the_first(infos: &[ConnectionInfo]) -> Self {
        let like_the_first = |info: &ConnectionInfo| {
            let (ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }) = info.addr() else {
                return info.clone();
            };
            let (host, port) = (host.clone(), *port);
            infos[0].clone().set_addr(match infos[0].addr().clone() {
                ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                    ConnectionAddr::TcpTls { host, port, insecure, tls_params }
                }
                _ => ConnectionAddr::Tcp(host, port),
            })
        };
        let first_turn = (clock::random_unit() * infos.len() as f64) as usize; // `next` takes the remainder
        Self { infos: infos.iter().map(like_the_first).collect(), turn: AtomicUsize::new(first_turn) }
    }

    /// Returns a client of the next node in turn.
    fn next(&self) -> RedisResult<Client> {
        let turn = self.turn.fetch_add(1, Relaxed) % self.infos.len();
        Client::open(self.infos[turn].clone())
    }

    /// Returns the first node with TLS and without, if its own address is without. A cluster client of both is an error,
    /// unless its settings ask for TLS.
    pub(super) fn differ_in_tls(&self) -> Option<[ConnectionInfo; 2]> {
        let first = self.infos.first()?.clone();
        let ConnectionAddr::Tcp(host, port) = first.addr().clone() else { return None };
        let secure = ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None };
        Some([first.clone(), first.set_addr(secure)])
    }
}

#[cfg(feature = "cluster")]
impl Connect for redis::cluster::ClusterClient {
    type Connection = redis::cluster_async::ClusterConnection;
    const SELF_HEALING: bool = true;

    async fn connect(&self) -> RedisResult<Self::Connection> {
        choose_crypto_provider(); // a cluster client does not say whether it uses TLS
        self.get_async_connection().await
    }

    /// The client tries node after node, twice, and each node that hangs takes a second.
    fn connect_timeout(&self) -> Duration {
        LONGEST_CONNECT_TIMEOUT
    }
}

/// A connection of redis-rs, or one that behaves like it, as a store: `StampedeGuard::new(Connection(pooled))`.
#[derive(Clone, Debug)]
pub struct Connection<C>(pub C);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connect for Connection<C> {
    type Connection = C;
    const SELF_HEALING: bool = true;
    const EXISTED: bool = true;

    async fn connect(&self) -> RedisResult<C> {
        Ok(self.0.clone())
    }

    fn connect_timeout(&self) -> Duration {
        CONNECT_TIMEOUT
    }
}

async fn connect(client: Client, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
    if matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { .. }) {
        choose_crypto_provider();
    }
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// Returns the id that the process of the server has drawn at its start. `None` if the server does not tell it.
async fn run_id(mut connection: MultiplexedConnection) -> Option<String> {
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("run_id:"))?;
    // A proxy may answer for all servers behind it: by zeros, or by no id.
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

/// Returns the client with the settings of [`tuned_tcp`].
fn tuned(client: Client) -> Client {
    let info = client.get_connection_info().clone();
    let settings = tuned_tcp(info.tcp_settings().clone());
    Client::open(info.set_tcp_settings(settings)).unwrap_or(client)
}

/// Returns the settings with TCP_NODELAY, and with a user timeout so that sockets notice a dead peer.
pub(super) fn tuned_tcp(settings: TcpSettings) -> TcpSettings {
    let settings = settings.set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = match settings.user_timeout() {
        Some(_) => settings,
        None => settings.set_user_timeout(USER_TIMEOUT),
    };
    settings
}

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time of an attempt to connect with settings of the user, or to one node after another. Each step has a
/// shorter timeout.
const LONGEST_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Time without an acknowledgement after which the system closes a connection, unless the client sets its own.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const USER_TIMEOUT: Duration = Duration::from_secs(5);
