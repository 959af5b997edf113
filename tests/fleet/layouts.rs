//! Processes of a rolling deploy: guards with different codecs and schema versions over one store.

use crate::{Down, SECOND, never, support::RedisServer};
use stampede_guard::{Codec, IntoStore, MemoryStore, NearCacheConfig, Policy, StampedeGuard};
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
