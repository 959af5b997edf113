//! Pools of connections, which an application may have already: deadpool-redis and bb8-redis.
//!
//! A guard needs none: it sends the commands of all requests over one connection. The compiler refuses a pool itself ("a
//! guard cannot use `Pool` as its store") and names what to pass. In this order:
//!
//! 1. the URL of the pool: `StampedeGuard::connect(url)`. The guard then has connections of its own.
//! 2. a wrapper of a few lines: `StampedeGuard::new(Connection(Pooled(pool)))`. Its waiters poll.
//! 3. the wrapper with a client for messages: `Connection(Pooled(pool)).into_endpoint().subscribe_via(client)`. Its
//!    waiters are woken.

use crate::guide::pool::{Pooled, unavailable};
use bb8_redis::{RedisConnectionManager, bb8};
use deadpool_redis::{Config, Runtime};
use stampede_guard::{
    Connection, IntoEndpoint, StampedeGuard,
    redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value, aio::ConnectionLike},
};
use stampede_guard_support::{Down, Origin, RedisServer, eventually, herd};
use std::time::Duration;

/// Sends each command over another connection of a bb8 pool.
#[derive(Clone)]
struct Bb8(bb8::Pool<RedisConnectionManager>);

impl ConnectionLike for Bb8 {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move { self.0.get().await.map_err(unavailable)?.req_packed_command(cmd).await })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(
            async move { self.0.get().await.map_err(unavailable)?.req_packed_commands(pipeline, offset, count).await },
        )
    }

    fn get_db(&self) -> i64 {
        0
    }
}

fn deadpool(url: &str, size: usize) -> deadpool_redis::Pool {
    let mut config = Config::from_url(url);
    config.pool = Some(deadpool_redis::PoolConfig::new(size));
    config.create_pool(Some(Runtime::Tokio1)).expect("a pool")
}

async fn bb8(url: &str) -> bb8::Pool<RedisConnectionManager> {
    bb8::Pool::builder().max_size(4).build(RedisConnectionManager::new(url).expect("a URL")).await.expect("a pool")
}

/// Returns the number of calls that a herd on two guards makes. All callers are answered.
async fn calls_of_a_herd(guards: &[StampedeGuard; 2], key: &'static str) -> usize {
    let origin = Origin::new();
    let answers = herd(40, |i| {
        let (guard, origin) = (guards[i % 2].clone().store_timeout(Duration::from_secs(30)), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(Duration::from_millis(30)).await;
                Ok::<_, Down>(1)
            };
            guard.fetch(key, fetch).await
        }
    });
    assert!(answers.await.into_iter().all(|answer| answer.is_ok_and(|value| value == 1)));
    origin.calls()
}

/// The settings of a pool make a guard with connections of its own, which receives messages.
#[tokio::test]
async fn settings_of_a_pool_make_a_guard() -> RedisResult<()> {
    let config = Config::from_url(RedisServer::shared().url());
    let url = config.url.as_deref().expect("made of a URL");
    let guards = [StampedeGuard::connect(url)?, StampedeGuard::connect(url)?];
    assert_eq!(calls_of_a_herd(&guards, "settings of a pool").await, 1);
    eventually("the guard is subscribed", async || {
        guards[0].fetch("pools", async || Ok::<_, Down>(1)).await.expect("an answer");
        guards[0].health().subscriber_up == Some(true)
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn guards_over_a_deadpool_make_one_call() {
    let pool = deadpool(&RedisServer::shared().url(), 4);
    let guards = [(); 2].map(|()| StampedeGuard::new(Connection(Pooled(pool.clone()))));
    assert_eq!(calls_of_a_herd(&guards, "deadpool").await, 1);
    assert_eq!(guards[0].health().subscriber_up, None, "a pool receives no messages: waiters poll");
}

#[tokio::test]
async fn guards_over_a_bb8_pool_make_one_call() {
    let pool = bb8(&RedisServer::shared().url()).await;
    let guards = [(); 2].map(|()| StampedeGuard::new(Connection(Bb8(pool.clone()))));
    assert_eq!(calls_of_a_herd(&guards, "bb8").await, 1);
}

/// With a client for messages, waiters over a pool are woken. A waiter that is registered for messages does not poll:
/// without the message it would wait for an hour.
#[tokio::test]
async fn waiters_over_a_pool_are_woken_with_a_client_for_messages() {
    let server = RedisServer::shared();
    let pool = deadpool(&server.url(), 4);
    let guards = [(); 2].map(|()| {
        let endpoint = Connection(Pooled(pool.clone())).into_endpoint().subscribe_via(server.client());
        StampedeGuard::new(endpoint).lease_ttl(Duration::from_secs(3600))
    });
    for guard in &guards {
        eventually("the guard is subscribed", async || {
            guard.fetch("pools", async || Ok::<_, Down>(1)).await.expect("an answer");
            guard.health().subscriber_up == Some(true)
        })
        .await;
    }
    let calls = tokio::time::timeout(Duration::from_secs(30), calls_of_a_herd(&guards, "woken")).await;
    assert_eq!(calls.expect("woken by message"), 1);
}

/// What a pool costs: when the application holds all connections, the guard has no store. Requests are answered, and
/// nothing is shared.
#[tokio::test]
async fn exhausted_pool_is_an_outage_of_the_store() {
    let pool = deadpool(&RedisServer::shared().url(), 1);
    let guard = StampedeGuard::new(Connection(Pooled(pool.clone()))).store_timeout(Duration::from_millis(50));
    let held = pool.get().await.expect("a connection");
    guard.fetch("exhausted", async || Ok::<_, Down>(1)).await.expect("an answer of the origin");
    assert!(guard.health().breaker_open);
    drop(held);
    eventually("the store answers again", async || {
        guard.fetch("exhausted", async || Ok::<_, Down>(1)).await.expect("an answer");
        !guard.health().breaker_open
    })
    .await;
}
