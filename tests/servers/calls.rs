//! Herds over several guards, and commands to their servers. The tests of `tools/lock-table` include this file.

use crate::{
    Down, MS, SECOND,
    support::{Origin, RedisServer, herd},
};
use serde::{Serialize, de::DeserializeOwned};
use stampede_guard::{IntoStore, StampedeGuard};

/// Returns a guard with a long store timeout, so that answers are shared on a busy machine too.
pub(crate) fn patient(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).store_timeout(30 * SECOND)
}

/// Sends forty callers to one key, spread over the guards. All are answered. Returns the number of origin calls.
pub(crate) async fn calls_of_a_herd(guards: &[StampedeGuard], key: &str) -> usize {
    calls_of_a_herd_for(guards, key, 1).await
}

pub(crate) async fn calls_of_a_herd_for<T>(guards: &[StampedeGuard], key: &str, value: T) -> usize
where
    T: Serialize + DeserializeOwned + Clone + PartialEq + Send + Sync + 'static,
{
    let origin = Origin::new();
    let callers = herd(40, |i| {
        let (guard, origin, key) = (guards[i % guards.len()].clone(), origin.clone(), key.to_owned());
        let value = value.clone();
        async move {
            let fetch = async move || {
                origin.work(30 * MS).await;
                Ok::<_, Down>(value)
            };
            guard.fetch(key, fetch).await
        }
    });
    let is_answered = |answer: Result<T, stampede_guard::Error>| answer.is_ok_and(|answer| answer == value);
    assert!(callers.await.into_iter().all(is_answered), "a caller was not answered");
    for guard in guards {
        guard.drain().await;
        assert_eq!(guard.in_flight(), 0);
    }
    origin.calls()
}

/// Reports whether the key is a hit of the store. A hit of the outage cache is none.
pub(crate) async fn hits(guard: &StampedeGuard, key: &str) -> bool {
    let hits_of_store = || {
        let stats = guard.stats();
        stats.hits - stats.outage_cache_hits
    };
    let before = hits_of_store();
    guard.fetch(key.to_owned(), async || Ok::<_, Down>(1)).await.expect("an answer");
    hits_of_store() > before
}

/// Sends one command on a new connection.
pub(crate) async fn command<T: redis::FromRedisValue>(server: &RedisServer, line: &str) -> T {
    tell(&server.client(), line).await
}

pub(crate) async fn tell<T: redis::FromRedisValue>(client: &redis::Client, line: &str) -> T {
    let mut connection = connection(client).await;
    let mut words = line.split(' ');
    let mut cmd = redis::cmd(words.next().expect("a command"));
    let answer = cmd.arg(words.collect::<Vec<_>>()).query_async(&mut connection).await;
    answer.unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Connects without timeouts, so that a busy machine does not look like a failure of the server.
pub(crate) async fn connection(client: &redis::Client) -> redis::aio::MultiplexedConnection {
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("the server is up")
}
