//! The endpoint of a master that sentinels watch.

use super::{
    connect::tuned_tcp,
    endpoint::{IntoEndpoint, RedisEndpoint},
    sentinel::{Sentinels, no_sentinels},
    source::Source,
};
use redis::{
    ErrorKind, IntoConnectionInfo, RedisResult,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

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
    /// ```no_run
    /// # fn example() -> stampede_guard::redis::RedisResult<()> {
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
    /// ```no_run
    /// # fn example() -> stampede_guard::redis::RedisResult<()> {
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
        let clients = clients(sentinels, master, configure)?;
        Ok(Self::of_sentinels(clients))
    }

    fn of_sentinels(clients: impl IntoIterator<Item = SentinelClient>) -> Self {
        Self::of_server(Source::of_sentinels(Sentinels::of(clients)))
    }
}

impl IntoEndpoint for SentinelClient {
    fn into_endpoint(self) -> RedisEndpoint {
        RedisEndpoint::of_sentinels([self])
    }
}

/// Builds a client for each sentinel. User, password, protocol and TCP settings of a sentinel's URL are for this
/// sentinel alone.
fn clients<S: IntoConnectionInfo>(
    sentinels: impl IntoIterator<Item = S>,
    master: &str,
    configure: impl Fn(SentinelClientBuilder) -> SentinelClientBuilder,
) -> RedisResult<Vec<SentinelClient>> {
    let client = |sentinel: S| {
        let info = sentinel.into_connection_info()?;
        let settings = info.redis_settings();
        if settings.db() != 0 {
            return Err(DATABASE_OF_SENTINEL.into());
        }
        let mut builder = SentinelClientBuilder::new([info.addr().clone()], master, SentinelServerType::Master)?
            .set_client_to_sentinel_tcp_settings(tuned_tcp(info.tcp_settings().clone()))
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
    if clients.is_empty() { Err(no_sentinels()) } else { Ok(clients) }
}

const DATABASE_OF_SENTINEL: (ErrorKind, &str) = (
    ErrorKind::InvalidClientConfig,
    "a sentinel has no databases: set that of the servers with `sentinel_with` (`set_client_to_redis_db`)",
);
