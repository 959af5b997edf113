//! Where connections come from: a client, a cluster, or somebody else.

use super::tls;
use redis::{RedisResult, aio::ConnectionLike};
use std::{future::Future, time::Duration};

/// Makes connections of one kind.
pub(super) trait Connect: Send + Sync + 'static {
    type Connection: ConnectionLike + Clone + Send + Sync + 'static;

    /// Whether a broken connection mends itself. A new one would be no better then, and in a cluster with one dead node
    /// it would take the others away as well.
    const MENDS_ITSELF: bool;

    /// How long it may take to connect.
    const PATIENCE: Duration;

    fn connect(&self) -> impl Future<Output = RedisResult<Self::Connection>> + Send;

    /// Whether another connection is to take the place of the last one, although that works. Says so once.
    fn outdated(&self) -> bool {
        false
    }
}

impl Connect for redis::Client {
    type Connection = redis::aio::MultiplexedConnection;
    const MENDS_ITSELF: bool = false;
    /// Longer than its own timeout, whose error says more.
    const PATIENCE: Duration = Duration::from_secs(2);

    async fn connect(&self) -> RedisResult<Self::Connection> {
        tls::prepare(self);
        self.get_multiplexed_async_connection_with_config(&config()).await
    }
}

/// Timeouts of answers are the guard's: redis-rs would not reconnect after one anyhow.
pub(super) fn config() -> redis::AsyncConnectionConfig {
    redis::AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}

/// A connection that nobody else has.
pub(crate) async fn connect_alone(client: &redis::Client) -> RedisResult<redis::aio::MultiplexedConnection> {
    client.connect().await
}

#[cfg(feature = "cluster")]
impl Connect for redis::cluster::ClusterClient {
    type Connection = redis::cluster_async::ClusterConnection;
    const MENDS_ITSELF: bool = true;
    /// Node after node is asked, twice, and each that hangs takes a second.
    const PATIENCE: Duration = Duration::from_secs(30);

    async fn connect(&self) -> RedisResult<Self::Connection> {
        tls::choose_provider(); // it does not say whether it uses TLS
        self.get_async_connection().await
    }
}

/// Any connection of redis-rs, or one that behaves like it, as a store: `StampedeGuard::new(Connection(pooled))`.
#[derive(Clone, Debug)]
pub struct Connection<C>(pub C);

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Connect for Connection<C> {
    type Connection = C;
    const MENDS_ITSELF: bool = true;
    const PATIENCE: Duration = CONNECT_TIMEOUT;

    async fn connect(&self) -> RedisResult<C> {
        Ok(self.0.clone())
    }
}

/// The client with sockets that send at once, and that notice when nobody is there any more.
pub(super) fn tuned(client: redis::Client) -> redis::Client {
    let info = client.get_connection_info().clone();
    let settings = info.tcp_settings().clone().set_nodelay(true);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = match settings.user_timeout() {
        Some(_) => settings,
        None => settings.set_user_timeout(USER_TIMEOUT),
    };
    redis::Client::open(info.set_tcp_settings(settings)).unwrap_or(client)
}

pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After this time without an acknowledgement the system gives a connection up, unless the client says otherwise.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const USER_TIMEOUT: Duration = Duration::from_secs(5);
