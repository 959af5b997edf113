//! Connections with settings of the user: credentials that change, a resolver of host names, Unix sockets, timeouts.

use crate::{
    SECOND,
    kit::{calls_of_a_herd, command, patient, recovers},
    never,
    support::{Down, RedisServer, eventually},
};
use futures_util::{FutureExt, stream::BoxStream};
use redis::{
    AsyncConnectionConfig, RedisFuture, RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
    io::AsyncDNSResolver,
};
use stampede_guard::{IntoEndpoint, NearCacheConfig, StampedeGuard};
use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};
use tokio::sync::watch;

/// Credentials that change, as the tokens of a cloud do.
#[derive(Clone)]
struct Tokens(watch::Sender<&'static str>);

impl StreamingCredentialsProvider for Tokens {
    fn subscribe(&self) -> Pin<Box<dyn futures_util::Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        let credentials =
            futures_util::stream::unfold((self.0.subscribe(), true), |(mut token, is_first)| async move {
                if !is_first {
                    token.changed().await.ok()?;
                }
                let auth = BasicAuth::new("app".into(), (*token.borrow_and_update()).into());
                Some((Ok(auth), (token, false)))
            });
        let credentials: BoxStream<'static, _> = Box::pin(credentials);
        credentials
    }
}

/// Returns a guard with a near cache that uses all three connections: for data, messages and tracked reads.
fn guard(endpoint: impl IntoEndpoint, config: &AsyncConnectionConfig) -> StampedeGuard {
    let endpoint = endpoint.into_endpoint().connection_config(config.clone());
    patient(endpoint).near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND))
}

/// Asserts that answers are shared, waiters are woken, and copies of the near cache are dropped by message.
async fn everything_works(guards: &[StampedeGuard; 2], key: &str) {
    assert_eq!(calls_of_a_herd(guards, key).await, 1);
    for guard in guards {
        eventually("messages arrive", async || guard.health().subscriber_up == Some(true)).await;
        eventually("a copy is served from memory", async || {
            let before = guard.stats().near_hits;
            assert_eq!(guard.fetch(key.to_owned(), never::<i32>).await.expect("a hit"), 1);
            guard.stats().near_hits > before
        })
        .await;
    }
    guards[0].invalidate(key).await.expect("acknowledged");
    eventually("the other copy is dropped", async || {
        guards[1].fetch(key.to_owned(), async || Ok::<_, Down>(2)).await.expect("an answer") == 2
    })
    .await;
}

fn settings() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new().set_connection_timeout(Some(5 * SECOND)).set_response_timeout(None)
}

/// The old token is refused as soon as the new one is there, as by a cloud that revokes it.
///
/// Seen to fail if the connection for messages is made without the settings.
#[tokio::test]
async fn credentials_that_change_reach_every_connection() {
    let server = RedisServer::start();
    let rights = "resetchannels ~* &* +@all";
    command::<()>(&server, &format!("ACL SETUSER app on >first {rights}")).await;
    command::<()>(&server, "ACL SETUSER default -@all +acl +client").await;
    let tokens = Tokens(watch::Sender::new("first"));
    let config = settings().set_credentials_provider(tokens.clone());
    let guards = [(); 2].map(|()| guard(server.client(), &config));
    everything_works(&guards, "first").await;

    command::<()>(&server, "ACL SETUSER app resetpass >second").await;
    tokens.0.send_replace("second");
    everything_works(&guards, "second").await;
    command::<()>(&server, "CLIENT KILL USER app").await;
    for guard in &guards {
        recovers(guard).await;
    }
    everything_works(&guards, "after").await;
}

/// A resolver that knows one name.
#[derive(Clone, Default)]
struct Resolver(Arc<AtomicUsize>);

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        assert_eq!(host, "cache.internal");
        self.0.fetch_add(1, SeqCst);
        let addresses: Box<dyn Iterator<Item = _> + Send> = Box::new(std::iter::once(([127, 0, 0, 1], port).into()));
        async { Ok(addresses) }.boxed()
    }
}

#[tokio::test]
async fn resolver_of_the_user_resolves_every_connection() {
    let (server, resolver) = (RedisServer::start(), Resolver::default());
    let client = redis::Client::open(format!("redis://cache.internal:{}", server.port())).expect("a client");
    let config = settings().set_dns_resolver(resolver.clone());
    let guards = [(); 2].map(|()| guard(client.clone(), &config));
    everything_works(&guards, "k").await;
    assert_eq!(resolver.0.load(SeqCst), 6, "connections for data, messages and tracked reads");
}

#[tokio::test]
async fn unix_socket_serves_every_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("redis.sock").display().to_string();
    let _server = RedisServer::with(&["--unixsocket", &path]);
    let url = format!("redis+unix://{path}");
    let guards = [(); 2].map(|()| {
        let guard = StampedeGuard::connect(&url).expect("a URL of Redis").store_timeout(30 * SECOND);
        guard.near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND))
    });
    everything_works(&guards, "k").await;
}
