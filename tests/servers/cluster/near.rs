//! The near cache over a cluster: copies are dropped by message, wherever their slot is.

use super::shards::{self, Resharder, Shards, endpoint, keys_of, master_of, slot_of};
use crate::{
    Down, SECOND,
    kit::command,
    never,
    support::{RedisServer, eventually, skip},
};
use redis::cluster::NodeAddress;
use stampede_guard::{NearCacheConfig, Policy, RedisEndpoint, StampedeGuard};
use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, Ordering::SeqCst},
    time::{Duration, Instant},
};

const HOUR: Duration = Duration::from_secs(3600);

fn plain(nodes: &[RedisServer]) -> StampedeGuard {
    StampedeGuard::new(endpoint(nodes)).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND)
}

/// Returns a guard whose copies are confirmed three times in `max_age`.
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

/// Only messages can drop the copies, because they live for an hour. Seen to fail if the messages are not taken in, and,
/// for want of copies, without a tracked connection to each master.
#[tokio::test]
async fn near_copies_on_all_masters_are_dropped_by_message() {
    let nodes = super::nodes::<3>().await;
    let (near, other) = (near(&nodes, HOUR), plain(&nodes));
    for master in 0..3 {
        let source = Source::of(&keys_of(&nodes, master, 1).await[0]);
        for _ in 0..3 {
            source.kept_by(&near).await;
            let old = source.version.load(SeqCst);
            assert_eq!(source.asked_by(&near).await, old, "a copy");
            let version = source.changed_by(&other).await;
            eventually("dropped by message", async || source.asked_by(&near).await == version).await;
        }
    }
    assert_eq!(near.stats().store_errors, 0);
}

/// The old master reports the keys that it gives away, and the new one the changes after that. Seen to fail if the reader
/// keeps to the masters that it knew first: no copies are kept.
#[tokio::test]
async fn near_copies_follow_a_migrated_slot() {
    let nodes = super::nodes::<3>().await;
    let (near, other, source) = (near(&nodes, HOUR), plain(&nodes), Source::of("moves"));
    let (slot, mut from) = (slot_of(&nodes[0], "moves").await, master_of(&nodes, "moves").await);
    let resharder = Resharder::of(&nodes).await;
    for _ in 0..3 {
        source.kept_by(&near).await;
        let to = (from + 1) % 3;
        resharder.move_slot(slot, from, to).await;
        let version = source.changed_by(&other).await;
        eventually("dropped by message", async || source.asked_by(&near).await == version).await;
        from = to;
    }
}

/// The new master of the slot is connected before, and its next regular check comes twenty minutes later. Seen to fail if
/// only those find the slot: no copies are kept.
#[tokio::test]
async fn near_copies_are_kept_by_a_master_that_got_their_slot() {
    let nodes = super::nodes::<3>().await;
    let (near, other, source) = (near(&nodes, HOUR), plain(&nodes), Source::of("moves"));
    let (slot, from) = (slot_of(&nodes[0], "moves").await, master_of(&nodes, "moves").await);
    let (to, resharder) = ((from + 1) % 3, Resharder::of(&nodes).await);
    Source::of(&keys_of(&nodes, to, 1).await[0]).kept_by(&near).await;
    for (from, to) in [(from, to), (to, from)] {
        source.kept_by(&near).await;
        resharder.move_slot(slot, from, to).await;
        let version = source.changed_by(&other).await;
        eventually("dropped by message", async || source.asked_by(&near).await == version).await;
        source.kept_by(&near).await;
    }
}

/// Until the master that has executed the invalidation is known, no copies of its slot are kept. Seen to fail, for want of
/// copies, if it is not asked.
#[tokio::test]
async fn near_copies_are_kept_after_an_invalidation_of_their_own() {
    let nodes = super::nodes::<3>().await;
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

/// The data client takes the address of the node that has answered, and for the near cache the master has none. Seen to
/// fail, for want of copies, if each copy needs a tracked connection.
#[tokio::test]
async fn near_copies_of_a_master_without_an_address_end_by_age() {
    let nodes = super::nodes_with::<1>(&[]).await;
    if command::<redis::Value>(&nodes[0], "CONFIG GET cluster-preferred-endpoint-type").await
        == redis::Value::Array(vec![])
    {
        return skip("CLUSTER SLOTS without hosts (7.0)");
    }
    command::<()>(&nodes[0], "CONFIG SET cluster-preferred-endpoint-type unknown-endpoint").await;
    let (near, other, source) = (near(&nodes, SECOND), plain(&nodes), Source::of("k"));
    source.kept_by(&near).await;
    let version = source.changed_by(&other).await;
    source.ends_within(&near, version, SECOND).await;
}

/// The data client knows another address of the node. Seen to fail, for want of copies, if each copy needs a tracked
/// connection.
#[tokio::test]
async fn near_copies_of_a_master_that_is_out_of_reach_end_by_age() {
    let [node] = super::nodes_with::<1>(&["--cluster-announce-port", "1"]).await;
    let [announced, real] = [1, node.port()].map(|port| NodeAddress::new("127.0.0.1", port));
    let map = HashMap::from([(announced, real)]);
    let guard = || {
        let endpoint = RedisEndpoint::cluster_with([node.url()], |client| client.node_address_map(map.clone()));
        StampedeGuard::new(endpoint.expect("an endpoint")).policy(Policy::fresh_for(HOUR)).store_timeout(30 * SECOND)
    };
    let near = guard().near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND));
    let (other, source) = (guard(), Source::of("k"));
    source.kept_by(&near).await;
    let version = source.changed_by(&other).await;
    source.ends_within(&near, version, SECOND).await;
}

/// The old master deletes the entry without a message, because the slot was taken away with its keys. Seen to fail if a
/// node is confirmed that has lost slots.
#[tokio::test]
async fn near_copies_end_if_their_slot_was_taken_away() {
    let nodes = super::nodes::<3>().await;
    let (near, other, source) = (near(&nodes, 3 * SECOND), plain(&nodes), Source::of("taken"));
    let (slot, from) = (slot_of(&nodes[0], "taken").await, master_of(&nodes, "taken").await);
    // The name that the checks read has another slot, which stays.
    Source::of(&keys_of(&nodes, from, 1).await[0]).kept_by(&near).await;
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

/// A master without the majority of masters refuses reads, and its copies end. Seen to fail if a node is confirmed that
/// answers no reads. It shows no bound, which depends on when the master notices that it is cut off.
#[tokio::test]
async fn near_copies_end_if_their_master_is_cut_off() {
    let nodes = super::nodes_with::<3>(&["--cluster-node-timeout", "1000"]).await;
    let (near, source) = (near(&nodes, SECOND), Source::of("cutoff"));
    source.kept_by(&near).await;
    let master = master_of(&nodes, "cutoff").await;
    for other in (0..3).filter(|other| *other != master) {
        nodes[other].pause();
    }
    let version = source.change();
    eventually("the copy ends", async || source.asked_by(&near).await == version).await;
}

/// Seen to fail if the reader keeps to the masters that it knew first: no copies are kept.
#[tokio::test]
async fn near_copies_are_dropped_by_message_after_a_failover() {
    let shards = Shards::start().await;
    let keys = keys_of(&shards.masters, 0, 2).await;
    let [before, after] = [Source::of(&keys[0]), Source::of(&keys[1])];
    let survivors = &shards.masters[1..];
    let (short, long, other) = (near(&shards.masters, SECOND), near(&shards.masters, HOUR), plain(survivors));
    before.kept_by(&short).await;
    before.kept_by(&long).await;
    shards.replicated(0).await;
    shards.masters[0].kill();
    shards.promoted(0).await;
    let version = before.changed_by(&other).await;
    before.ends_within(&short, version, SECOND).await;
    for _ in 0..3 {
        after.kept_by(&long).await;
        let version = after.changed_by(&other).await;
        eventually("dropped by message", async || after.asked_by(&long).await == version).await;
    }
}

/// The old master was stopped, and believes for a moment after it goes on that it is the master. The moment is too short
/// to be met each time: `lib::redis::cluster_slots::tests` show that checks within it confirm nothing. This test shows
/// that the whole keeps the bound.
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
    source.ends_within(&near, version, 3 * SECOND).await;
    eventually("the old master is a replica", async || !shards::serves(&shards.masters[0]).await).await;
    assert_eq!(source.asked_by(&near).await, version);
}

/// Without the nodes there are no tracked connections, and the age is the only bound.
#[tokio::test]
async fn near_copies_of_a_bare_cluster_client_end_by_age() {
    let nodes = super::nodes::<3>().await;
    let near = StampedeGuard::new(super::client(&nodes))
        .near_cache(NearCacheConfig::max_bytes(1 << 20).max_age(SECOND))
        .store_timeout(30 * SECOND);
    let (other, source) = (plain(&nodes), Source::of("k"));
    source.kept_by(&near).await;
    let version = source.changed_by(&other).await;
    source.ends_within(&near, version, SECOND).await;
    near.drain().await;
    assert_eq!(near.fetch("k", never::<u32>).await.expect("a hit"), version);
}
