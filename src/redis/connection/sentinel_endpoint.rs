//! The endpoint of a master that sentinels watch.

use super::{
    endpoint::{IntoEndpoint, RedisEndpoint},
    sentinel::{Sentinels, no_sentinels},
    source::Source,
};
use redis::{
    IntoConnectionInfo, RedisResult,
    sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType},
};

impl RedisEndpoint {
    /// Names the sentinels, at least one, and the name under which they watch the master.
    ///
    /// All connections lead to the master that most of the sentinels name, and follow it when it changes. User,
    /// password and TLS in the URL of a sentinel are for that sentinel only; [`sentinel_with`](Self::sentinel_with) sets
    /// them for the servers.
    ///
    /// A `SentinelClient` of redis-rs turns into an endpoint as well. It asks its sentinels in their order, so that one
    /// that hangs delays each new connection by up to 1.5 s.
    ///
    /// # Errors
    ///
    /// A sentinel is not a URL of Redis, or there is none.
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
        let mut builder = SentinelClientBuilder::new([info.addr().clone()], master, SentinelServerType::Master)?
            .set_client_to_sentinel_tcp_settings(info.tcp_settings().clone())
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
