//! Entries whose bytes have changed in the store, for example in a dump, on a link or in the memory of a server.

use crate::{Down, MS, support::RedisServer};
use redis::AsyncTypedCommands;
use stampede_guard::{NearCacheConfig, Policy, StampedeGuard};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

const KEYS: usize = 20;
const HOUR: Duration = Duration::from_secs(3600);

fn guard(server: &RedisServer) -> StampedeGuard {
    StampedeGuard::new(server.client()).policy(Policy::fresh_for(HOUR)).store_timeout(30_000 * MS)
}

fn body(key: usize) -> String {
    format!("body of page {key}")
}

/// Flips one bit of the entry, in the head and in the payload by turns.
async fn flip(redis: &mut redis::aio::MultiplexedConnection, key: usize) {
    let name = format!("{{sg:rpage/{key}}}:v3.6");
    let mut bytes: Vec<u8> = redis::cmd("GET").arg(&name).query_async(redis).await.expect("stored");
    let (head, payload) = (bytes.len() - body(key).len(), body(key).len());
    let at = if key.is_multiple_of(2) { key * head / KEYS } else { head + key % payload };
    bytes[at] ^= 1 << (key % 8);
    redis.setrange(&name, at as isize, &bytes[at..=at]).await.expect("an answer");
}

/// Seen to fail (15 wrong bodies) without the checksum.
#[tokio::test]
async fn entry_with_a_flipped_bit_is_a_miss() {
    let server = RedisServer::start();
    let writer = guard(&server);
    for key in 0..KEYS {
        writer.fetch(format!("page/{key}"), async move || Ok::<_, Down>(body(key))).await.expect("an answer");
    }
    writer.drain().await;
    let mut redis = server.connection().await;
    for key in 0..KEYS {
        flip(&mut redis, key).await;
    }
    let near = guard(&server).near_cache(NearCacheConfig::max_bytes(1 << 20));
    let readers = [near.clone(), guard(&server), near];
    let (mut wrong, calls) = (0, Arc::new(AtomicUsize::new(0)));
    for reader in &readers {
        for key in 0..KEYS {
            let calls = calls.clone();
            let fetch = async move || {
                calls.fetch_add(1, SeqCst);
                Ok::<_, Down>(body(key))
            };
            wrong += usize::from(reader.fetch(format!("page/{key}"), fetch).await.ok() != Some(body(key)));
            reader.drain().await;
        }
    }
    assert_eq!((wrong, calls.load(SeqCst)), (0, KEYS));
    // The lookup has seen each of them, and so has the request for the lease.
    assert_eq!(readers.map(|reader| reader.stats().corrupt_entries), [2 * KEYS as u64, 0, 2 * KEYS as u64]);
}
