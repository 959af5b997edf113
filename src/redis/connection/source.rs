//! Where the connections of an endpoint lead, and with which settings.

use super::{
    connect::{self, Connect},
    log::ConnectionLog,
    tls,
};
#[cfg(feature = "sentinel")]
use super::{sentinel::Sentinels, sentinel_master::ToMaster};
use futures_util::future::pending;
use redis::{AsyncConnectionConfig, Client, ProtocolVersion, PushInfo, RedisResult, aio::MultiplexedConnection};
use std::{convert::Infallible, sync::Arc, time::Duration};

/// A place that connections lead to. It is resolved for each connection, so connections made later may lead to another
/// server than earlier connections.
#[derive(Clone)]
pub(crate) struct Source {
    target: Target,
    /// The settings of the user, if there are any.
    config: Option<AsyncConnectionConfig>,
    /// The log that all connections share: they fail together if the address or the password is wrong.
    pub(super) log: Arc<ConnectionLog>,
}

#[derive(Clone)]
#[allow(clippy::large_enum_variant, reason = "there is one for each connection")]
enum Target {
    Client(Client),
    #[cfg(feature = "cluster")]
    AnyNode(Arc<super::nodes::Nodes>),
    #[cfg(feature = "sentinel")]
    Master(ToMaster),
}

impl Source {
    pub(crate) fn of_client(client: Client) -> Self {
        let log = ConnectionLog::of(&client);
        Self { target: Target::Client(connect::tuned(client)), config: None, log: Arc::new(log) }
    }

    /// Creates the source of connections to any one of these nodes: each connection leads to the next one.
    #[cfg(feature = "cluster")]
    pub(super) fn of_nodes(nodes: super::nodes::Nodes) -> Self {
        Self { target: Target::AnyNode(Arc::new(nodes)), config: None, log: Arc::new(ConnectionLog::of_nodes()) }
    }

    /// Creates the source of connections to the master that these sentinels name.
    #[cfg(feature = "sentinel")]
    pub(super) fn of_sentinels(sentinels: Sentinels) -> Self {
        let log = sentinels.log.clone();
        Self { target: Target::Master(ToMaster::of(sentinels)), config: None, log }
    }

    /// Sets the settings of the user.
    pub(super) fn with_config(self, config: AsyncConnectionConfig) -> Self {
        Self { config: Some(config), ..self }
    }

    /// Returns a client of the server that connections lead to now.
    #[allow(clippy::unused_async, reason = "other targets than a client have to be asked")]
    pub(crate) async fn client(&self) -> RedisResult<Client> {
        match &self.target {
            Target::Client(client) => Ok(client.clone()),
            #[cfg(feature = "cluster")]
            Target::AnyNode(nodes) => nodes.next(),
            #[cfg(feature = "sentinel")]
            Target::Master(master) => master.client().await.map(connect::tuned),
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

    /// Makes a connection.
    pub(crate) async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        let client = self.client().await?;
        tls::prepare(&client);
        client.get_multiplexed_async_connection_with_config(&self.config()).await
    }

    /// Makes a connection on which the server sends messages too (RESP3). `on_push` gets each of them before a later
    /// reply is returned, and must not block.
    pub(crate) async fn connect_with_pushes(
        &self,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> RedisResult<MultiplexedConnection> {
        let info = self.client().await?.get_connection_info().clone();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.set_redis_settings(settings))?;
        tls::prepare(&client);
        let config = self.config().set_push_sender(move |push| {
            on_push(push);
            Ok::<_, Infallible>(())
        });
        client.get_multiplexed_async_connection_with_config(&config).await
    }

    fn config(&self) -> AsyncConnectionConfig {
        self.config.clone().unwrap_or_else(connect::config)
    }
}

impl Connect for Source {
    type Connection = MultiplexedConnection;
    const SELF_HEALING: bool = false;

    async fn connect(&self) -> RedisResult<MultiplexedConnection> {
        Self::connect(self).await
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
            None => 2 * connect::CONNECT_TIMEOUT,
        }
    }
}

/// Limit of an attempt to connect with settings of the user, whose own timeout is usually shorter.
const LONGEST_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
