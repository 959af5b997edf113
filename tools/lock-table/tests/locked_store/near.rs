//! The near cache over a store under locks.

use crate::{
    Down, SECOND,
    support::{Monitor, RedisServer, eventually},
};
use lock_table::LockedStore;
use stampede_guard::{NearCacheConfig, Policy, StampedeGuard, lock::FencedLock};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

async fn asked_by(guard: &StampedeGuard, version: u32) -> u32 {
    guard.fetch("k", async move || Ok::<_, Down>(version)).await.expect("an answer")
}

#[tokio::test]
async fn copies_over_a_locked_store_are_kept_and_dropped() {
    let server = RedisServer::start();
    let plain = || {
        let store = LockedStore::new(server.client(), FencedLock).expect("it frees");
        StampedeGuard::new(store).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND)
    };
    let (near, other) = (plain().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(HOUR)), plain());
    eventually("a copy", async || {
        let before = near.stats().near_hits;
        asked_by(&near, 1).await;
        near.stats().near_hits > before
    })
    .await;
    let monitor = Monitor::start(&server).await;
    asked_by(&near, 1).await;
    assert_eq!(monitor.stop().await, []);
    other.invalidate("k").await.expect("acknowledged");
    eventually("the new value", async || asked_by(&near, 2).await == 2).await;
}
