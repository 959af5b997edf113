//! Values that a cache within the process has, or has not, room for.

use crate::Down;
use futures_util::future::join_all;
use stampede_guard::{
    Codec, ErrorKind, FetchOutcome, MemoryStore, NearCacheConfig, StampedeGuard,
    testing::{FakeRedis, Origin},
};
use std::{
    sync::atomic::{AtomicUsize, Ordering::SeqCst},
    time::Duration,
};
use tokio::task::yield_now;

/// An origin whose value has this many bytes.
struct Large {
    bytes: usize,
    calls: AtomicUsize,
}

impl Large {
    fn new(bytes: usize) -> Self {
        Self { bytes, calls: AtomicUsize::new(0) }
    }

    async fn asked_by(&self, guard: &StampedeGuard) {
        let fetch = async || {
            self.calls.fetch_add(1, SeqCst);
            yield_now().await; // concurrent callers may join
            Ok::<_, Down>("x".repeat(self.bytes))
        };
        let value = guard.cache::<String>("text").entry("k").fetch_scoped(fetch).await.expect("an answer");
        assert_eq!(value.len(), self.bytes);
        guard.drain().await;
    }
}

/// Seen to fail (five calls on two cores) when the number of shards followed the cores.
#[tokio::test]
async fn embedded_store_keeps_values_of_max_payload() {
    let guard = StampedeGuard::new(MemoryStore::with_max_bytes(8 << 20));
    let origin = Large::new(1_040_000);
    for _ in 0..5 {
        origin.asked_by(&guard).await;
    }
    assert_eq!((origin.calls.load(SeqCst), guard.stats().hits, guard.stats().too_large), (1, 4, 0));
}

/// The first request leads and leaves a marker. Later ones share a fetch that asks for no lease, until the value fits.
/// Seen to fail (each of them leads) when the store dropped the value without a word.
#[tokio::test]
async fn value_too_large_for_the_store_is_counted_and_marked() {
    let guard = StampedeGuard::new(MemoryStore::with_max_bytes(1 << 20)).max_payload(4 << 20);
    let origin = Large::new(2_000_000);
    origin.asked_by(&guard).await;
    assert_eq!((guard.stats().misses, guard.stats().too_large), (1, 1));
    join_all((0..20).map(|_| origin.asked_by(&guard))).await;
    let stats = guard.stats();
    assert_eq!((stats.misses, stats.bypassed, stats.coalesced, stats.too_large), (1, 1, 19, 2), "{stats:?}");
    assert_eq!(origin.calls.load(SeqCst), 2);

    let small = Large::new(10);
    small.asked_by(&guard).await;
    small.asked_by(&guard).await;
    assert_eq!((small.calls.load(SeqCst), guard.stats().hits), (1, 1), "the value has replaced the marker");
}

/// Seen to fail (ten seconds) when only the leader asked whether the store has room.
#[tokio::test]
async fn value_too_large_for_the_store_is_fresh_for_no_time() {
    let guard = StampedeGuard::new(MemoryStore::with_max_bytes(1 << 20)).max_payload(4 << 20);
    let texts = guard.cache::<String>("text");
    let load = async |_| {
        yield_now().await; // the other caller joins
        Ok::<_, Down>(FetchOutcome::new("x".repeat(2_000_000)))
    };
    for answer in join_all((0..2).map(|_| texts.entry("k").answer(load))).await {
        assert_eq!(answer.expect("a value").fresh_for(), Duration::ZERO);
    }
    assert_eq!((guard.stats().coalesced, guard.stats().too_large), (1, 1));
    assert_eq!(texts.put("k", "x".repeat(2_000_000)).await.expect_err("no room").kind(), ErrorKind::Uncacheable);
}

#[tokio::test]
async fn copy_too_large_for_the_near_cache_is_counted() {
    let guard = FakeRedis::new().node().guard().max_payload(4 << 20);
    let near = guard.near_cache(NearCacheConfig::max_bytes(1 << 20));
    let origin = Large::new(2_000_000);
    for _ in 0..3 {
        origin.asked_by(&near).await;
    }
    let stats = near.stats();
    assert_eq!((origin.calls.load(SeqCst), stats.hits, stats.near_hits, stats.too_large), (1, 2, 0, 2), "{stats:?}");
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Text(String);

/// Values whose encoding has exactly `max_payload` bytes, and one more.
#[tokio::test]
async fn value_of_max_payload_is_stored_by_each_codec() {
    const MAX: usize = 70_000;
    let codecs = [
        (Codec::Bincode, 5),
        #[cfg(feature = "postcard")]
        (Codec::Postcard, 3),
        #[cfg(feature = "json")]
        (Codec::Json, 2),
    ];
    for (codec, overhead) in codecs {
        for store in [StampedeGuard::in_memory(), FakeRedis::new().node().guard()] {
            let guard = store.max_payload(MAX).codec(codec);
            let calls = async |length: usize| {
                let (cache, origin) = (guard.cache::<Text>(length.to_string()), Origin::new());
                for _ in 0..2 {
                    let value = cache.fetch(1, origin.fetch(Text("x".repeat(length)))).await.expect("an answer");
                    assert_eq!(value.0.len(), length);
                    guard.drain().await;
                }
                origin.calls()
            };
            assert_eq!((calls(MAX - overhead).await, calls(MAX - overhead + 1).await), (1, 2), "{codec:?}");
        }
    }
}

/// Seen to fail: it was counted, because the store has no room for it.
#[tokio::test]
async fn value_never_to_be_stored_is_not_counted_as_too_large() {
    let guard = StampedeGuard::new(MemoryStore::with_max_bytes(1 << 20)).max_payload(4 << 20);
    let load = async |_| Ok::<_, Down>(FetchOutcome::new("x".repeat(2_000_000)).do_not_store());
    guard.cache::<String>("text").entry("k").answer(load).await.expect("a value");
    guard.drain().await;
    assert_eq!(guard.stats().too_large, 0);
}
