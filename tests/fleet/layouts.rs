//! Processes of a rolling deploy: guards with different codecs and schema versions over one store.

use crate::{
    Down, MS, SECOND, never,
    support::{RedisServer, herd},
};
use redis::AsyncTypedCommands;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use stampede_guard::{Codec, IntoStore, MemoryStore, NearCacheConfig, Policy, StampedeGuard, store::CacheKey};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns guards that share nothing but entries and leases, `n` over the embedded store and `n` over Redis.
fn processes<const N: usize>(server: &RedisServer) -> [[StampedeGuard; N]; 2] {
    let embedded = Arc::new(MemoryStore::default());
    [std::array::from_fn(|_| process(embedded.clone())), std::array::from_fn(|_| process(server.client()))]
}

fn process(store: impl IntoStore) -> StampedeGuard {
    StampedeGuard::new(store).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND)
}

/// Seen to fail (20 calls) when the layout was not in the name of the entry.
#[tokio::test]
async fn two_codecs_do_not_overwrite_each_other() {
    for [one, other] in processes(&RedisServer::start()) {
        let (calls, guards) = (Arc::new(AtomicUsize::new(0)), [one, other.codec(Codec::Json)]);
        for i in 0..20 {
            let (calls, guard) = (calls.clone(), &guards[i % 2]);
            let fetch = async move || {
                calls.fetch_add(1, SeqCst);
                Ok::<_, Down>(1_u64)
            };
            guard.fetch("k", fetch).await.expect("an answer");
            guard.drain().await;
        }
        assert_eq!(calls.load(SeqCst), 2);
    }
}

/// Seen to fail (schema version 5,000 stays) when an invalidation drops adjacent schema versions only.
#[tokio::test]
async fn an_invalidation_drops_layouts_that_its_process_does_not_know() {
    for [one, two, three, stranger] in processes(&RedisServer::start()) {
        let guards = [one, two.codec(Codec::Json), three.schema_version(5000)];
        for (n, guard) in (1..).zip(&guards) {
            guard.fetch("k", async move || Ok::<_, Down>(n)).await.expect("an answer");
            guard.drain().await;
            assert_eq!(guard.fetch("k", never::<i32>).await.expect("a hit"), n);
        }
        stranger.codec(Codec::Postcard).schema_version(1).invalidate("k").await.expect("acknowledged");
        for guard in &guards {
            assert_eq!(guard.fetch("k", async || Ok::<_, Down>(7)).await.expect("an answer"), 7);
        }
    }
}

/// Seen to fail (the old copy is served) when an invalidation drops adjacent schema versions only.
#[tokio::test]
async fn an_invalidation_drops_copies_of_all_layouts() {
    let server = RedisServer::start();
    let guard = StampedeGuard::new(server.client()).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND);
    let other = guard.clone().schema_version(5000).near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(HOUR));
    for _ in 0..2 {
        other.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
        other.drain().await;
    }
    guard.invalidate("k").await.expect("acknowledged");
    assert_eq!(other.fetch("k", async || Ok::<_, Down>(2)).await.expect("an answer"), 2);
}

/// A type, and the next version of it.
#[derive(Serialize, Deserialize, Default)]
struct Old {
    name: String,
}

#[derive(Serialize, Deserialize, Default)]
struct New {
    name: String,
    mail: Option<String>,
}

/// Fetches a value of one version.
async fn value<V>(guard: &StampedeGuard, key: impl ToString, calls: &Arc<AtomicUsize>)
where
    V: Serialize + DeserializeOwned + Default + Send + Sync + 'static,
{
    let calls = calls.clone();
    let fetch = async move || {
        calls.fetch_add(1, SeqCst);
        tokio::time::sleep(MS).await;
        Ok::<_, Down>(V::default())
    };
    guard.fetch(key.to_string(), fetch).await.expect("an answer");
    guard.drain().await;
}

/// Returns the names of the entries of a key.
async fn entries(server: &RedisServer, key: &str) -> Vec<String> {
    server.connection().await.keys(format!("{{sg:r{key}}}:v3.*")).await.expect("the server is up")
}

/// Returns a schema version of the new type whose first name is that of the old type, or differs from it.
async fn schema_version(server: &RedisServer, collides: bool) -> u32 {
    let (calls, guard) = (Arc::default(), process(server.client()));
    value::<Old>(&guard, "old", &calls).await;
    let old = entries(server, "old").await.pop().expect("stored");
    for version in 0..8 {
        let key = format!("new{version}");
        value::<New>(&guard.clone().schema_version(version), &key, &calls).await;
        let new = entries(server, &key).await.pop().expect("stored");
        if (new.rsplit(':').next() == old.rsplit(':').next()) == collides {
            return version;
        }
    }
    panic!("eight successive versions have eight digits")
}

/// A deploy that adds a field, of a program with two processes and one hot key.
///
/// Seen to fail (five calls) when a layout had one name only.
#[tokio::test]
async fn two_versions_of_a_type_share_what_each_has_fetched() {
    let server = RedisServer::start();
    for collides in [false, true] {
        let version = schema_version(&server, collides).await;
        server.flushall().await;
        let (calls, guards) = (Arc::default(), [(); 4].map(|()| process(server.client())));
        let guards = guards.map(|guard| guard.schema_version(version));
        herd(200, |i| {
            let (guard, calls, is_new) = (guards[i % 4].clone(), Arc::clone(&calls), i % 2 == 1);
            async move {
                for _ in 0..5 {
                    if is_new {
                        value::<New>(&guard, "k", &calls).await;
                    } else {
                        value::<Old>(&guard.clone().schema_version(0), "k", &calls).await;
                    }
                }
            }
        })
        .await;
        assert_eq!(calls.load(SeqCst), 2, "the digits collide: {collides}");
        assert_eq!(entries(&server, "k").await.len(), 2, "one entry of each version");
        let met: Vec<_> = guards.iter().map(|guard| guard.stats().other_layouts).collect();
        assert_eq!(met.iter().any(|met| *met > 0), collides, "{met:?}");
    }
}

/// Processes of both versions with the same first name read many keys in all orders, and so meet entries of each other
/// under either name.
///
/// Seen to fail (1,000 calls) when a layout had one name only.
#[tokio::test]
async fn versions_with_one_first_name_overwrite_no_entry() {
    const KEYS: usize = 40;
    let server = RedisServer::start();
    let version = schema_version(&server, true).await;
    server.flushall().await;
    let (calls, guards) = (Arc::default(), [(); 4].map(|()| process(server.client())));
    herd(64, |i| {
        let (guard, calls) = (guards[i % 4].clone(), Arc::clone(&calls));
        async move {
            for round in 0..KEYS {
                let key = format!("k{}", (i * 7 + round * 11) % KEYS);
                match i % 2 {
                    0 => value::<Old>(&guard, key, &calls).await,
                    _ => value::<New>(&guard.clone().schema_version(version), key, &calls).await,
                }
            }
        }
    })
    .await;
    assert_eq!(calls.load(SeqCst), 2 * KEYS);
    for key in 0..KEYS {
        assert_eq!(entries(&server, &format!("k{key}")).await.len(), 2, "key {key}");
    }
}

/// The fleet of the old version has two processes, and one of them never meets the new version.
///
/// Seen to fail (a call of the origin) when a miss asked for the first name only.
#[tokio::test]
async fn process_that_has_not_met_the_other_version_has_hits() {
    let server = RedisServer::start();
    let version = schema_version(&server, true).await;
    server.flushall().await;
    let (calls, [new, met, unmet]) = (Arc::default(), [(); 3].map(|()| process(server.client())));
    value::<New>(&new.schema_version(version), "first", &calls).await;
    value::<Old>(&met, "first", &calls).await;
    value::<Old>(&met, "second", &calls).await;
    assert_eq!(calls.load(SeqCst), 3);
    for _ in 0..2 {
        value::<Old>(&unmet, "second", &calls).await;
    }
    assert_eq!((calls.load(SeqCst), unmet.stats().misses), (3, 0));
    // A lookup has met the entry of the other version, and each process has taken the second name once.
    assert_eq!([met.stats().other_layouts, unmet.stats().other_layouts], [2, 1]);
    assert_eq!(entries(&server, "second").await.len(), 1);
}

/// Plays a process of a later version of the crate, whose entries have the frozen beginning and another format.
///
/// Seen to fail (the entry is overwritten) without the second name.
#[tokio::test]
async fn entries_of_the_next_format_live_beside_those_of_this_one() {
    let server = RedisServer::start();
    let (calls, guard, reader) = (Arc::default(), process(server.client()), process(server.client()));
    value::<Old>(&guard, "k", &calls).await;
    let name = entries(&server, "k").await.pop().expect("stored");
    let mut redis = server.connection().await;
    let own: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut redis).await.expect("an answer");
    assert_eq!(&own[17..33], CacheKey::new("sg", 0, "k").hash().as_bytes(), "the beginning is frozen");
    for length in [0, 4, 300, 5_000] {
        let next = [&own[..33], b"a layout", &vec![b'?'; length]].concat();
        guard.invalidate("k").await.expect("acknowledged");
        redis.set(&name, &next[..]).await.expect("an answer");
        let before = calls.load(SeqCst);
        for guard in [&guard, &reader, &guard] {
            value::<Old>(guard, "k", &calls).await;
        }
        assert_eq!(calls.load(SeqCst) - before, 1, "{length} bytes");
        let kept: Vec<u8> = redis::cmd("GET").arg(&name).query_async(&mut redis).await.expect("an answer");
        assert_eq!((kept == next, entries(&server, "k").await.len()), (true, 2), "{length} bytes");
    }
    assert_eq!([guard.stats().corrupt_entries, reader.stats().corrupt_entries], [0, 0]);
    guard.invalidate("k").await.expect("acknowledged");
    assert!(entries(&server, "k").await.is_empty(), "an invalidation drops both");
}
