//! A server, or a cluster of them, and how it is reached.

use super::{
    connect::{self, Connection},
    link::{Dialled, Greet, Link},
};
use redis::aio::ConnectionLike;
use std::{fmt, sync::Arc};

/// Where to find Redis. Made of a client or connection of redis-rs by [`IntoServer`].
#[derive(Clone)]
pub struct Server {
    dial: Arc<Dial>,
    wakes: Option<redis::Client>,
    client: Option<redis::Client>,
    is_cluster: bool,
}

/// Makes a connection that says that first.
type Dial = dyn Fn(Arc<dyn Greet>) -> Arc<dyn Link> + Send + Sync;

/// What leads to a server: clients, which connect when they are needed for the first time and again when the connection
/// breaks, and connections.
pub trait IntoServer {
    /// The server.
    fn into_server(self) -> Server;
}

impl Server {
    /// Hears messages over a connection of this client: for connections, which cannot be dialled again, and clusters, any
    /// node of which will do.
    ///
    /// ```no_run
    /// # async fn example() -> stampede_guard::redis::RedisResult<()> {
    /// use stampede_guard::{Lock, lock::IntoServer, redis};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1/")?;
    /// let server = client.get_connection_manager().await?.into_server().wakes_from(client);
    /// let lock = Lock::new(server);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn wakes_from(self, client: redis::Client) -> Self {
        Self { wakes: Some(client), ..self }
    }

    pub(crate) fn of_client(client: redis::Client) -> Self {
        let client = connect::tuned(client);
        let (wakes, known) = (Some(client.clone()), Some(client.clone()));
        let dial = move |greet| Arc::new(Dialled::new(client.clone(), greet)) as Arc<dyn Link>;
        Self { dial: Arc::new(dial), wakes, client: known, is_cluster: false }
    }

    pub(crate) fn of_connection<C>(connection: C) -> Self
    where
        C: ConnectionLike + Clone + Send + Sync + 'static,
    {
        let dial = move |greet| Arc::new(Dialled::new(Connection(connection.clone()), greet)) as Arc<dyn Link>;
        Self { dial: Arc::new(dial), wakes: None, client: None, is_cluster: false }
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster(client: redis::cluster::ClusterClient) -> Self {
        let dial = move |greet| Arc::new(Dialled::new(client.clone(), greet)) as Arc<dyn Link>;
        Self { dial: Arc::new(dial), wakes: None, client: None, is_cluster: true }
    }

    #[cfg(feature = "cluster")]
    pub(crate) fn of_cluster_connection(connection: redis::cluster_async::ClusterConnection) -> Self {
        Self { is_cluster: true, ..Self::of_connection(connection) }
    }

    /// A connection for data, which says that first.
    pub(crate) fn dial(&self, greet: Arc<dyn Greet>) -> Arc<dyn Link> {
        (self.dial)(greet)
    }

    /// Whose connections may carry messages, if that is known.
    pub(crate) fn wakes(&self) -> Option<redis::Client> {
        self.wakes.clone()
    }

    /// The one server that it is, if it can be connected to once more.
    pub(crate) fn client(&self) -> Option<redis::Client> {
        self.client.clone()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.is_cluster
    }
}

/// Without the connection, whose address may hold a password.
impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("is_cluster", &self.is_cluster).finish_non_exhaustive()
    }
}

macro_rules! into_server {
    ($($(#[$attribute:meta])* $from:ty => $make:path;)*) => {$(
        $(#[$attribute])*
        impl IntoServer for $from {
            fn into_server(self) -> Server {
                $make(self)
            }
        }
    )*};
}

into_server! {
    redis::Client => Server::of_client;
    redis::aio::ConnectionManager => Server::of_connection;
    redis::aio::MultiplexedConnection => Server::of_connection;
    #[cfg(feature = "cluster")]
    redis::cluster::ClusterClient => Server::of_cluster;
    #[cfg(feature = "cluster")]
    redis::cluster_async::ClusterConnection => Server::of_cluster_connection;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> IntoServer for Connection<C> {
    fn into_server(self) -> Server {
        Server::of_connection(self.0)
    }
}

impl IntoServer for Server {
    fn into_server(self) -> Self {
        self
    }
}
