//! The near cache over a store whose tracked reads hang, and beside a refused invalidation.

use crate::{Down, MS, SECOND};
use stampede_guard::{
    MemoryStore, NearCacheConfig, StampedeGuard,
    store::{
        Answer, CacheKey, Entry, FailureMarker, FillCondition, FillOutcome, InvalidationFeed, Lease, LeaseReply,
        LeaseRequest, LeaseStatus, Leaves, Listener, Store, Token, TrackedRead, TrackedReader, Write,
    },
    testing::{
        FakeRedis, Fault,
        Operation::{Get, Invalidate},
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::sleep;

/// A store that works. Its tracked reads hang while the flag is set.
#[derive(Default)]
struct Tracked {
    store: Arc<MemoryStore>,
    hangs: Arc<AtomicBool>,
}

impl Store for Tracked {
    fn get<'a>(&'a self, key: &'a CacheKey) -> Answer<'a, Option<Entry>> {
        self.store.get(key)
    }

    fn get_or_lease<'a>(&'a self, key: &'a CacheKey, request: LeaseRequest) -> Answer<'a, LeaseReply> {
        self.store.get_or_lease(key, request)
    }

    fn fill<'a>(&'a self, key: &'a CacheKey, condition: FillCondition, writes: Vec<Write>) -> Answer<'a, FillOutcome> {
        self.store.fill(key, condition, writes)
    }

    fn release<'a>(
        &'a self,
        key: &'a CacheKey,
        token: Token,
        failure_marker: Option<FailureMarker>,
    ) -> Answer<'a, LeaseStatus> {
        self.store.release(key, token, failure_marker)
    }

    fn extend<'a>(&'a self, key: &'a CacheKey, lease: Lease, span: Duration) -> Answer<'a, LeaseStatus> {
        self.store.extend(key, lease, span)
    }

    fn invalidate<'a>(&'a self, keys: &'a [CacheKey], leaves: Leaves) -> Answer<'a, Option<Lease>> {
        self.store.invalidate(keys, leaves)
    }

    fn listen(&self, key: &CacheKey) -> Listener {
        self.store.listen(key)
    }

    fn track(&self, _: Arc<InvalidationFeed>, _: Duration) -> Option<Arc<dyn TrackedReader>> {
        Some(Arc::new(Self { store: self.store.clone(), hangs: self.hangs.clone() }))
    }
}

impl TrackedReader for Tracked {
    fn get_all<'a>(&'a self, keys: &'a [CacheKey]) -> Answer<'a, TrackedRead> {
        Box::pin(async move {
            if self.hangs.load(SeqCst) {
                std::future::pending::<()>().await;
            }
            Ok(TrackedRead { entries: self.store.get_all(keys).await?, is_tracked: false })
        })
    }
}

/// Seen to fail (both fetches are local) when the second read goes through the near cache.
#[tokio::test(start_paused = true)]
async fn hung_connection_of_near_cache_costs_no_sharing() {
    let store = Tracked::default();
    let hangs = store.hangs.clone();
    let guard = StampedeGuard::new(store).near_cache(NearCacheConfig::max_bytes(1 << 20));
    let fetch = async || guard.fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer");
    hangs.store(true, SeqCst);
    fetch().await;
    guard.drain().await;
    sleep(2 * SECOND).await;
    fetch().await;
    let stats = guard.stats();
    assert_eq!((stats.failed_open, stats.misses, stats.hits), (0, 1, 1), "{stats:?}");
}

/// Seen to fail (the old value for as long as a copy lives) when only a clone with a near cache ends copies.
#[tokio::test(start_paused = true)]
async fn fill_by_a_clone_without_near_cache_ends_the_copies() {
    let redis = FakeRedis::new();
    let plain = redis.node().guard();
    let near = plain.clone().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(3600 * SECOND));
    let ask =
        async |guard: &StampedeGuard, n: i32| guard.fetch("k", async move || Ok::<_, Down>(n)).await.expect("one");
    ask(&near, 1).await;
    near.drain().await;
    while near.stats().near_hits == 0 {
        assert_eq!(ask(&near, 0).await, 1);
    }
    redis.evict("k");
    assert_eq!(ask(&plain, 2).await, 2);
    plain.drain().await;
    assert_eq!(ask(&near, 0).await, 2);
}

/// A reader waits for the probe of an open breaker while the key is invalidated. The invalidation is refused. Seen to fail
/// (the old value, for an hour) when the number of the read is taken after that wait.
#[tokio::test(start_paused = true)]
async fn near_copy_is_not_served_while_its_invalidation_is_pending() {
    let server = FakeRedis::new();
    let node = server.node();
    server.node().guard().cache::<u32>("user").put(7, 1).await.expect("stored");
    let guard = node.guard().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(3600 * SECOND));
    let users = guard.cache::<u32>("user");
    node.once(Get, Fault::Hangs); // opens the breaker
    node.once(Get, Fault::ReplyDelayed(100 * MS)); // its probe
    node.always(Invalidate, Fault::Fails);
    let reader = async {
        sleep(260 * MS).await;
        users.get(7).await.expect("an answer")
    };
    let writer = async {
        sleep(270 * MS).await;
        users.invalidate(7).await.expect_err("refused")
    };
    let (_, read, _) = tokio::join!(users.get(8), reader, writer);
    assert_eq!(read, Some(1), "it began before the invalidation");
    assert_eq!(guard.health().pending_invalidations, 1);
    assert_eq!(users.get(7).await.expect("an answer"), None, "its invalidation is pending");
}

/// The fill of a refresh ends the copies of each clone, while a read is in flight.
///
/// Seen to fail (`None`) if the store is not read again.
#[tokio::test(start_paused = true)]
async fn get_beside_a_refresh_returns_a_value() {
    let node = FakeRedis::new().node();
    let guard = node.guard();
    let _near = guard.clone().near_cache(NearCacheConfig::max_bytes(1 << 20));
    let users = guard.cache::<u32>("user");
    users.invalidate(8).await.expect("acknowledged"); // from now on each read is checked
    users.put(7, 1).await.expect("stored");
    let refresh = users.refresh(7, async || {
        sleep(20 * MS).await;
        Ok::<_, Down>(2)
    });
    let get = async {
        sleep(10 * MS).await;
        node.once(Get, Fault::ReplyDelayed(50 * MS));
        users.get(7).await.expect("an answer")
    };
    let (refreshed, found) = tokio::join!(refresh, get);
    assert_eq!((refreshed.expect("a value"), found), (2, Some(2)));
}
