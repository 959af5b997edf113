//! Connections with settings of the user: credentials that change, a resolver of host names, Unix sockets, timeouts.

use crate::{
    SECOND, cluster,
    kit::{calls_of_a_herd, command, documented, recovers},
    never,
    support::{Down, RedisServer, eventually},
};
use futures_util::{FutureExt, Stream, stream::unfold};
use redis::{
    RedisFuture, RedisResult,
    auth::{BasicAuth, StreamingCredentialsProvider},
    io::AsyncDNSResolver,
};
use stampede_guard::{IntoEndpoint, NearCacheConfig, RedisEndpoint, StampedeGuard};
use std::{
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::sync::watch;

/// Credentials that change, as the tokens of a cloud do: each token is the name of a user, and its password.
#[derive(Clone)]
struct Tokens(watch::Sender<&'static str>);

impl StreamingCredentialsProvider for Tokens {
    fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
        Box::pin(unfold((self.0.subscribe(), true), async |(mut token, is_first)| {
            if !is_first {
                token.changed().await.ok()?;
            }
            let name = *token.borrow_and_update();
            Some((Ok(BasicAuth::new(name.into(), name.into())), (token, false)))
        }))
    }
}

/// Adds a near cache, so that a guard over one server has all three connections: for data, messages and tracked reads.
fn near(guard: StampedeGuard) -> StampedeGuard {
    guard.store_timeout(30 * SECOND).near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND))
}

/// Asserts that answers are shared, waiters are woken, and copies of the near cache end.
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

/// Lets two tokens in. A client without a token can do nothing but administrate.
async fn accept_tokens(server: &RedisServer) {
    for user in ["first", "second"] {
        command::<()>(server, &format!("ACL SETUSER {user} on >{user} resetchannels ~* &* +@all")).await;
    }
    command::<()>(server, "ACL SETUSER default -@all +acl +client +info").await;
}

/// The old token is revoked as soon as the connections have been told of the next one. That closes each connection that
/// still has the old one.
///
/// Seen to fail if the connection for messages is made without the settings.
#[tokio::test]
async fn credentials_that_change_reach_every_connection() {
    let server = RedisServer::start();
    accept_tokens(&server).await;
    let tokens = Tokens(watch::Sender::new("first"));
    let url = server.url();
    let guards = [(); 2].map(|()| {
        let connect = || -> RedisResult<StampedeGuard> {
            documented! {
                let server = redis::Client::open(&*url)?.into_endpoint();
                let server = server.connection_config(|config| config.set_credentials_provider(tokens.clone()));
                let guard = StampedeGuard::new(server);
            }
            Ok(guard)
        };
        near(connect().expect("a URL of Redis"))
    });
    everything_works(&guards, "before").await;

    tokens.0.send_replace("second");
    eventually("every connection has the second token", async || {
        let clients: String = command(&server, "CLIENT LIST").await;
        clients.matches("user=second").count() == 8 && !clients.contains("user=first")
    })
    .await;
    command::<()>(&server, "ACL DELUSER first").await;
    let connections = async || -> u64 {
        let info: redis::InfoDict = command(&server, "INFO stats").await;
        info.get("total_connections_received").expect("a number")
    };
    let before = connections().await;
    everything_works(&guards, "after").await;
    assert_eq!(connections().await, before + 1, "only the connection of this check");

    command::<()>(&server, "CLIENT KILL USER second").await;
    for guard in &guards {
        recovers(guard).await;
    }
    everything_works(&guards, "killed").await;
}

/// All connections have the provider: for commands, for messages, and to nodes that the cluster has named.
#[tokio::test]
async fn credentials_that_change_reach_a_cluster() {
    let servers = cluster::nodes::<2>().await;
    for server in &servers {
        accept_tokens(server).await;
    }
    let tokens = Tokens(watch::Sender::new("first"));
    let urls = servers.each_ref().map(RedisServer::url);
    let nodes = urls.each_ref().map(String::as_str);
    let guards = [(); 2].map(|()| {
        let connect = || -> RedisResult<StampedeGuard> {
            documented! {
                let cluster = RedisEndpoint::cluster(nodes)?
                    .connection_config(|config| config.set_credentials_provider(tokens.clone()));
                let guard = StampedeGuard::new(cluster);
            }
            Ok(guard)
        };
        near(connect().expect("nodes of a cluster"))
    });
    everything_works(&guards, "before").await;

    tokens.0.send_replace("second");
    for server in &servers {
        eventually("every connection has the second token", async || {
            let clients: String = command(server, "CLIENT LIST").await;
            clients.contains("user=second") && !clients.contains("user=first")
        })
        .await;
        command::<()>(server, "ACL DELUSER first").await;
    }
    everything_works(&guards, "after").await;
}

/// A resolver that knows one name, and leads it to a server.
#[derive(Clone)]
pub(crate) struct Resolver {
    asked: Arc<AtomicUsize>,
    leads_to: Arc<AtomicU16>,
}

impl Resolver {
    pub(crate) fn to(server: &RedisServer) -> Self {
        Self { asked: Arc::default(), leads_to: Arc::new(server.port().into()) }
    }

    /// New connections lead to this server from now on. Open ones stay with the server of before.
    pub(crate) fn follow(&self, server: &RedisServer) {
        self.leads_to.store(server.port(), SeqCst);
    }

    pub(crate) fn endpoint(&self) -> RedisEndpoint {
        let client = redis::Client::open("redis://cache.internal").expect("a client");
        client.into_endpoint().connection_config(|config| config.set_dns_resolver(self.clone()))
    }
}

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        _port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        assert_eq!(host, "cache.internal");
        self.asked.fetch_add(1, SeqCst);
        let address = SocketAddr::from(([127, 0, 0, 1], self.leads_to.load(SeqCst)));
        async move { Ok(Box::new(std::iter::once(address)) as Box<dyn Iterator<Item = _> + Send>) }.boxed()
    }
}

#[tokio::test]
async fn resolver_of_the_user_resolves_every_connection() {
    let server = RedisServer::start();
    let (url, resolver) = ("redis://cache.internal".to_owned(), Resolver::to(&server));
    let guards = [(); 2].map(|()| {
        let connect = || -> RedisResult<StampedeGuard> {
            documented! {
                let server = redis::Client::open(&*url)?.into_endpoint();
                let server = server
                    .connection_config(|config| config.set_connection_timeout(Some(Duration::from_secs(5))));
            }
            Ok(StampedeGuard::new(server.connection_config(|config| config.set_dns_resolver(resolver.clone()))))
        };
        near(connect().expect("a URL of Redis"))
    });
    everything_works(&guards, "k").await;
    assert!(resolver.asked.load(SeqCst) >= 6, "connections for data, messages and tracked reads");
}

#[tokio::test]
async fn unix_socket_serves_every_connection() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("redis.sock").display().to_string();
    let _server = RedisServer::with(&["--unixsocket", &path]);
    let url = format!("redis+unix://{path}");
    let guards = [(); 2].map(|()| {
        let connect = || -> RedisResult<StampedeGuard> {
            documented! {
                let guard = StampedeGuard::connect(&url)?;
            }
            Ok(guard)
        };
        near(connect().expect("a URL of Redis"))
    });
    everything_works(&guards, "k").await;
}
