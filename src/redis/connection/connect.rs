//! Sources of connections: a client, a cluster client, or an existing connection.

#[cfg(feature = "cluster")]
use super::tls;
use redis::{ConnectionInfo, RedisResult, aio::ConnectionLike, io::tcp::TcpSettings};
use std::{future::Future, time::Duration};

/// A source of connections of one kind.
pub(super) trait Connect: Send + Sync + 'static {
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

    /// Reports whether the last connection is to be replaced although it works. Returns `true` once per replacement.
    fn is_superseded(&self) -> bool {
        false
    }
}

/// Returns the settings of a connection. It has no response timeout, because the guard has its own and redis-rs would
/// not reconnect after one.
pub(super) fn config() -> redis::AsyncConnectionConfig {
    redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}

#[cfg(feature = "cluster")]
impl Connect for redis::cluster::ClusterClient {
    type Connection = redis::cluster_async::ClusterConnection;
    const SELF_HEALING: bool = true;

    async fn connect(&self) -> RedisResult<Self::Connection> {
        tls::choose_provider(); // a cluster client does not say whether it uses TLS
        self.get_async_connection().await
    }

    /// The client tries node after node, twice, and each node that hangs takes a second.
    fn connect_timeout(&self) -> Duration {
        Duration::from_secs(30)
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

/// Returns the client with TCP_NODELAY, and with a user timeout so that its sockets notice a dead peer.
pub(super) fn tuned(client: redis::Client) -> redis::Client {
    redis::Client::open(tuned_info(client.get_connection_info().clone())).unwrap_or(client)
}

/// See [`tuned`].
pub(super) fn tuned_info(info: ConnectionInfo) -> ConnectionInfo {
    let settings = tuned_tcp(info.tcp_settings().clone());
    info.set_tcp_settings(settings)
}

/// See [`tuned`].
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
/// Time without an acknowledgement after which the system closes a connection, unless the client sets its own.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const USER_TIMEOUT: Duration = Duration::from_secs(5);
