//! The near cache over a cluster: copies end by age.

use super::shards::{self, Resharder, Shards, endpoint, keys_of, master_of, slot_of};
use crate::{
    Down, SECOND,
    kit::command,
    never,
    support::{RedisServer, eventually},
};
use stampede_guard::{NearCacheConfig, Policy, StampedeGuard};
use std::{
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::{Duration, Instant},
};

const HOUR: Duration = Duration::from_secs(3600);

fn plain(nodes: &[RedisServer]) -> StampedeGuard {
    StampedeGuard::new(endpoint(nodes)).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND)
}

fn near(nodes: &[RedisServer], max_age: Duration) -> StampedeGuard {
    plain(nodes).near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(max_age))
}

/// A key, with a value that changes.
struct Source {
    key: String,
    version: AtomicU32,
}

impl Source {
    fn of(key: &str) -> Self {
        Self { key: key.to_owned(), version: AtomicU32::new(1) }
    }

    fn change(&self) -> u32 {
        self.version.fetch_add(1, SeqCst) + 1
    }

    async fn asked_by(&self, guard: &StampedeGuard) -> u32 {
        let version = self.version.load(SeqCst);
        guard.fetch(self.key.clone(), async move || Ok::<_, Down>(version)).await.expect("an answer")
    }

    /// Requests the value until it is served from a copy.
    async fn kept_by(&self, guard: &StampedeGuard) -> u32 {
        let served = AtomicU32::default();
        eventually("a copy", async || {
            let before = guard.stats().near_hits;
            served.store(self.asked_by(guard).await, SeqCst);
            guard.stats().near_hits > before
        })
        .await;
        served.load(SeqCst)
    }

    /// Invalidates the value as another process does, until that is acknowledged.
    async fn changed_by(&self, other: &StampedeGuard) -> u32 {
        let version = self.change();
        eventually("acknowledged", async || other.invalidate(self.key.as_str()).await.is_ok()).await;
        version
    }

    /// Asserts that the copy is not served for longer than this after the acknowledgement.
    async fn ends_within(&self, guard: &StampedeGuard, version: u32, limit: Duration) {
        let acknowledged = Instant::now();
        loop {
            let asked = Instant::now();
            if self.asked_by(guard).await == version {
                return;
            }
            assert!(asked < acknowledged + limit, "an old copy {:?} after", asked - acknowledged);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// Seen to fail if a copy has no age.
#[tokio::test]
async fn near_copies_of_a_cluster_end_by_age() {
    let nodes = RedisServer::cluster::<3>(&[]).await;
    let bare = StampedeGuard::new(endpoint(&nodes)).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND);
    let bare = bare.near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND));
    let other = plain(&nodes);
    for near in [near(&nodes, SECOND), bare] {
        for master in 0..3 {
            let source = Source::of(&keys_of(&nodes, master, 1).await[0]);
            source.kept_by(&near).await;
            let version = source.changed_by(&other).await;
            source.ends_within(&near, version, SECOND).await;
            near.drain().await;
            assert_eq!(near.fetch(source.key, never::<u32>).await.expect("a hit"), version);
        }
        assert_eq!(near.stats().store_errors, 0);
    }
}

/// Only the invalidation can drop the copies, because they live for an hour. Seen to fail if it does not.
#[tokio::test]
async fn near_copies_end_with_an_invalidation_of_their_own() {
    let nodes = RedisServer::cluster::<3>(&[]).await;
    let near = near(&nodes, HOUR);
    for master in 0..3 {
        let source = Source::of(&keys_of(&nodes, master, 1).await[0]);
        for _ in 0..2 {
            source.kept_by(&near).await;
            let version = source.changed_by(&near).await;
            assert_eq!(source.asked_by(&near).await, version);
            assert_eq!(source.kept_by(&near).await, version);
        }
    }
}

#[tokio::test]
async fn near_copies_of_a_migrated_slot_end_by_age() {
    let nodes = RedisServer::cluster::<3>(&[]).await;
    let (near, other, source) = (near(&nodes, SECOND), plain(&nodes), Source::of("moves"));
    let (slot, mut from) = (slot_of(&nodes[0], "moves").await, master_of(&nodes, "moves").await);
    let resharder = Resharder::of(&nodes).await;
    for _ in 0..3 {
        source.kept_by(&near).await;
        let to = (from + 1) % 3;
        resharder.move_slot(slot, from, to).await;
        let version = source.changed_by(&other).await;
        source.ends_within(&near, version, SECOND).await;
        from = to;
    }
}

#[tokio::test]
async fn near_copies_end_by_age_after_a_failover() {
    let shards = Shards::start().await;
    let source = Source::of(&keys_of(&shards.masters, 0, 1).await[0]);
    let (near, other) = (near(&shards.masters, SECOND), plain(&shards.masters[1..]));
    source.kept_by(&near).await;
    shards.replicated(0).await;
    shards.masters[0].kill();
    shards.promoted(0).await;
    let version = source.changed_by(&other).await;
    source.ends_within(&near, version, SECOND).await;
}

/// The old master deletes the entry, because the slot was taken away with its keys.
#[tokio::test]
async fn near_copies_end_if_their_slot_was_taken_away() {
    let nodes = RedisServer::cluster::<3>(&[]).await;
    let (near, other, source) = (near(&nodes, 3 * SECOND), plain(&nodes), Source::of("taken"));
    let (slot, from) = (slot_of(&nodes[0], "taken").await, master_of(&nodes, "taken").await);
    source.kept_by(&near).await;
    let to = (from + 1) % 3;
    let [from_id, to_id]: [String; 2] =
        [command(&nodes[from], "CLUSTER MYID").await, command(&nodes[to], "CLUSTER MYID").await];
    command::<()>(&nodes[to], &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await;
    command::<()>(&nodes[to], &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await;
    eventually("the old master has dropped the keys of the slot", async || {
        command::<usize>(&nodes[from], &format!("CLUSTER COUNTKEYSINSLOT {slot}")).await == 0
    })
    .await;
    let version = source.changed_by(&other).await;
    source.ends_within(&near, version, 3 * SECOND).await;
}

/// A master without the majority of masters refuses reads. The test shows no bound, which depends on when the master
/// notices that it is cut off.
#[tokio::test]
async fn near_copies_end_if_their_master_is_cut_off() {
    let nodes = RedisServer::cluster::<3>(&["--cluster-node-timeout", "1000"]).await;
    let (near, source) = (near(&nodes, SECOND), Source::of("cutoff"));
    source.kept_by(&near).await;
    let master = master_of(&nodes, "cutoff").await;
    for other in (0..3).filter(|other| *other != master) {
        nodes[other].pause();
    }
    let version = source.change();
    eventually("the copy ends", async || source.asked_by(&near).await == version).await;
}

/// The old master was stopped, and may answer a read for a moment after it goes on. A copy of that read ends by age.
#[tokio::test]
async fn near_copies_end_if_their_stopped_master_was_replaced() {
    let shards = Shards::start().await;
    let source = Source::of(&keys_of(&shards.masters, 0, 1).await[0]);
    let (near, other) = (near(&shards.masters, 3 * SECOND), plain(&shards.masters[1..]));
    source.kept_by(&near).await;
    shards.replicated(0).await;
    shards.masters[0].pause();
    shards.promoted(0).await;
    let version = source.changed_by(&other).await;
    shards.masters[0].resume();
    source.asked_by(&near).await;
    eventually("the old master is a replica", async || !shards::serves(&shards.masters[0]).await).await;
    source.ends_within(&near, version, 3 * SECOND).await;
}
