//! Faults of masters of a cluster.

use super::{KEPT_FOR, guards, keys, load_survives};
use crate::{
    MS, SECOND,
    cluster::shards::{Resharder, Shards, endpoint, first_owner, master_of, serves, slot_of},
    kit::command,
    load::Load,
    support::{RedisServer, eventually},
};
use stampede_guard::{NearCacheConfig, RedisEndpoint, StampedeGuard};
use std::{
    cell::Cell,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Lets a fault happen to some masters of a cluster, under a load with invalidations and under one without: then the keys of
/// the other masters cost no call.
pub(super) async fn shards_survive(what: &str, struck: &[usize], max_age: Duration, fault: impl AsyncFn(&Shards)) {
    let start = async || {
        let shards = Shards::start().await;
        let endpoint = endpoint(&shards.masters[1..]);
        (shards, endpoint, ())
    };
    started_shards_survive(what, struck, max_age, start, async |shards, ()| fault(shards).await).await;
}

/// Does the same as [`shards_survive`] with a cluster that is reached by this endpoint, and with more that the fault needs.
/// Returns both loads.
pub(super) async fn started_shards_survive<T>(
    what: &str,
    struck: &[usize],
    max_age: Duration,
    start: impl AsyncFn() -> (Shards, RedisEndpoint, T),
    fault: impl AsyncFn(&Shards, &T),
) -> Vec<Arc<Load>> {
    let mut loads = Vec::new();
    // A reply of another master that is late costs a call.
    for (load, store_timeout) in [Load::new, Load::reading].into_iter().zip([SECOND, 4 * SECOND]) {
        let (shards, endpoint, more) = start().await;
        shards.keep_masters((0..3).filter(|shard| !struck.contains(shard))).await;
        let near = || NearCacheConfig::max_bytes(1 << 20).max_age(max_age);
        let with_copies = |guard: StampedeGuard| if max_age.is_zero() { guard } else { guard.near_cache(near()) };
        let load =
            load(guards(|| endpoint.clone()).map(|guard| with_copies(guard.store_timeout(store_timeout))), keys());
        let mut others = Vec::new();
        for key in keys() {
            if !struck.contains(&master_of(&shards.masters, &key).await) {
                others.push(key);
            }
        }
        let calls = || load.calls_for(|key| others.iter().any(|other| other == key));
        let before = Cell::new(0);
        let fault = async || {
            load.warm_up().await;
            before.set(calls());
            fault(&shards, &more).await;
            shards.keep_masters(0..3).await;
        };
        load_survives(what, &load, max_age, fault).await;
        if !load.invalidates() {
            assert_eq!(calls() - before.get(), 0, "{what}: calls for keys of other masters");
        }
        loads.push(load.clone());
    }
    loads
}

/// Lets a fault happen to the first master of a cluster, which its replica replaces.
async fn cluster_survives(what: &str, fault: impl AsyncFn(&Shards)) {
    shards_survive(what, &[0], Duration::ZERO, async |shards| {
        fault(shards).await;
        shards.promoted(0).await;
    })
    .await;
}

/// Seen to fail (invalidations stay pending) if a redirection is no reason to ask the nodes.
#[tokio::test]
async fn failover_by_command_leaves_nothing_stale() {
    cluster_survives("cluster, by command", async |shards| {
        command::<()>(&shards.replicas[0], "CLUSTER FAILOVER").await;
    })
    .await;
}

/// All masters at once, with copies in the processes.
///
/// Seen to fail (5 stale) if a process serves what it has pending invalidations of.
#[tokio::test]
async fn takeover_by_all_replicas_leaves_nothing_stale() {
    shards_survive("cluster, takeover", &[0, 1, 2], 500 * MS, async |shards| {
        for replica in &shards.replicas {
            command::<()>(replica, "CLUSTER FAILOVER TAKEOVER").await;
        }
        shards.promoted(0).await;
    })
    .await;
}

/// A node of another cluster, without slots, has the address of the dead master.
///
/// Seen to fail (13 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn node_of_another_cluster_leaves_nothing_stale() {
    cluster_survives("cluster, a stranger", async |shards| {
        shards.stop_replication(0).await;
        shards.masters[0].kill();
        shards.promoted(0).await;
        shards.masters[0].restart().await;
    })
    .await;
}

/// Seen to fail (9 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn master_killed_under_load_leaves_nothing_stale() {
    cluster_survives("cluster, killed", async |shards| {
        shards.stop_replication(0).await;
        shards.masters[0].kill();
    })
    .await;
}

/// It is back before a replica replaces it, and without data.
///
/// Seen to fail (4 stale) if a fill needs no lease.
#[tokio::test]
async fn master_started_again_under_load_leaves_nothing_stale() {
    let start = async || {
        let allowed: &[_] = if RedisServer::is_older_than(7, 0) { &[] } else { &["--enable-debug-command", "yes"] };
        let shards = Shards::with(allowed).await;
        shards.keep_masters([0]).await;
        let endpoint = endpoint(&shards.masters[1..]);
        (shards, endpoint, ())
    };
    started_shards_survive("cluster, started again", &[0], Duration::ZERO, start, async |shards, ()| {
        let mut admin = shards.masters[0].connection().await;
        let ended: redis::RedisResult<()> = redis::cmd("DEBUG").arg("RESTART").query_async(&mut admin).await;
        assert!(ended.expect_err("the connection breaks").is_connection_dropped());
        eventually("the master serves again", async || {
            let Ok(mut connection) = shards.masters[0].client().get_multiplexed_async_connection().await else {
                return false;
            };
            let info = redis::cmd("CLUSTER").arg("INFO").query_async::<String>(&mut connection).await;
            info.is_ok_and(|info| info.contains("cluster_state:ok"))
        })
        .await;
    })
    .await;
}

/// It comes back as a replica, to which connections are still open.
///
/// Seen to fail (3 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn master_that_hangs_under_load_leaves_nothing_stale() {
    cluster_survives("cluster, stopped", async |shards| {
        shards.stop_replication(0).await;
        shards.masters[0].pause();
        shards.promoted(0).await;
        shards.masters[0].resume();
    })
    .await;
}

/// The only node that the user has named dies.
///
/// Seen to fail (5 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn cluster_without_its_named_nodes_leaves_nothing_stale() {
    let start = async || {
        let shards = Shards::start().await;
        let endpoint = endpoint(&shards.masters[..1]);
        (shards, endpoint, ())
    };
    started_shards_survive("cluster, named nodes", &[0], Duration::ZERO, start, async |shards, ()| {
        shards.stop_replication(0).await;
        shards.masters[0].kill();
        shards.promoted(0).await;
    })
    .await;
}

/// A master and its replica hang, and serve again.
///
/// Seen to fail (3 stale) if a process serves what it has pending invalidations of.
#[tokio::test]
async fn shard_that_hangs_under_load_leaves_nothing_stale() {
    shards_survive("cluster, a shard", &[0], Duration::ZERO, shard_hangs).await;
}

/// Meanwhile no master serves.
///
/// Seen to fail (1 stale) if a process serves what it has pending invalidations of.
#[tokio::test]
async fn cluster_that_is_down_for_a_while_leaves_nothing_stale() {
    shards_survive("cluster, down", &[0, 1, 2], Duration::ZERO, async |shards| {
        shards.set("cluster-require-full-coverage", "yes").await;
        shard_hangs(shards).await;
    })
    .await;
}

async fn shard_hangs(shards: &Shards) {
    let shard = [&shards.masters[0], &shards.replicas[0]];
    shard.into_iter().for_each(RedisServer::pause);
    sleep(5 * SECOND).await;
    shard.into_iter().for_each(RedisServer::resume);
    eventually("it serves again", async || serves(shard[0]).await || serves(shard[1]).await).await;
}

/// A new node gets slots, gives them back, and leaves. Redis 6.2 makes a master without slots a replica, so there the node
/// keeps one and stays.
///
/// Seen to fail (232 calls) if a redirection is no reason to ask the nodes.
#[tokio::test]
async fn node_that_joins_and_leaves_leaves_nothing_stale() {
    let leaves = !RedisServer::is_older_than(7, 0);
    let start = async || {
        let shards = Shards::start().await;
        shards.keep_masters([0]).await;
        let migration: &[_] = if leaves { &["--cluster-allow-replica-migration", "no"] } else { &[] };
        let joining = RedisServer::cluster_node(&[&Shards::ARGS, migration].concat());
        joining.meet(shards.nodes()).await;
        let id: String = command(&joining, "CLUSTER MYID").await;
        eventually("the node serves", async || serves(&joining).await).await;
        let endpoint = shards.endpoint();
        (shards, endpoint, (joining, id))
    };
    let moves = async |shards: &Shards, (joining, id): &(RedisServer, String)| {
        let resharder = Resharder::of(shards.masters.iter().chain([joining])).await;
        let mut slots = Vec::new();
        for key in keys() {
            slots.push(slot_of(joining, &key).await);
        }
        slots.retain(|slot| first_owner(*slot) == 0);
        for (from, to) in [(0, 3), (3, 0)] {
            for slot in &slots[usize::from(!leaves && from == 3)..] {
                resharder.move_slot(*slot, from, to).await;
                sleep(50 * MS).await;
            }
        }
        if leaves {
            for node in shards.nodes() {
                command::<()>(node, &format!("CLUSTER FORGET {id}")).await;
            }
            joining.kill();
        }
    };
    let (what, began) = ("cluster, a node that joins and leaves", Instant::now());
    for load in started_shards_survive(what, &[0], Duration::ZERO, start, moves).await {
        assert_eq!(load.stale_since(began, KEPT_FOR), [Duration::ZERO; 0]);
        // A slot whose key nothing has read since it moved back is looked for at the dead node, and costs a call.
        assert!(load.invalidates() || load.calls_for(|_| true) < keys().len() * 3 / 2, "reads follow the slots");
    }
}
