//! Faults of masters of a cluster.

use super::{KEPT_FOR, guards, keys, load_survives, survive_with, survives};
use crate::{
    MS, SECOND,
    cluster::{
        nodes,
        shards::{Resharder, Shards, endpoint, keys_of, master_of, serves, slot_of},
    },
    kit::command,
    load::Load,
    support::{RedisServer, eventually},
};
use stampede_guard::{NearCacheConfig, StampedeGuard};
use std::{
    cell::Cell,
    time::{Duration, Instant},
};
use tokio::time::sleep;

/// Lets a fault happen to some masters of a cluster, under a load with invalidations and under one without: then the keys of
/// the other masters cost no call.
pub(super) async fn shards_survive(what: &str, struck: &[usize], max_age: Duration, fault: impl AsyncFn(&Shards)) {
    let start = async || (Shards::start().await, ());
    started_shards_survive(what, struck, max_age, start, async |shards, ()| fault(shards).await).await;
}

pub(super) async fn started_shards_survive<T>(
    what: &str,
    struck: &[usize],
    max_age: Duration,
    start: impl AsyncFn() -> (Shards, T),
    fault: impl AsyncFn(&Shards, &T),
) {
    for load in [Load::new, Load::reading] {
        let (shards, more) = start().await;
        shards.keep_masters((0..3).filter(|shard| !struck.contains(shard))).await;
        let near = || NearCacheConfig::max_bytes(1 << 20).max_age(max_age);
        let with_copies = |guard: StampedeGuard| if max_age.is_zero() { guard } else { guard.near_cache(near()) };
        let load = load(guards(|| endpoint(&shards.masters[1..])).map(with_copies), keys());
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
    }
}

/// Lets a fault happen to the first master of a cluster, which its replica replaces.
async fn cluster_survives(what: &str, fault: impl AsyncFn(&Shards)) {
    shards_survive(what, &[0], Duration::ZERO, async |shards| {
        fault(shards).await;
        shards.promoted(0).await;
    })
    .await;
}

#[tokio::test]
async fn failover_by_command_leaves_nothing_stale() {
    cluster_survives("cluster, by command", async |shards| {
        command::<()>(&shards.replicas[0], "CLUSTER FAILOVER").await;
    })
    .await;
}

/// All masters at once, with copies in the processes.
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
#[tokio::test]
async fn node_of_another_cluster_leaves_nothing_stale() {
    cluster_survives("cluster, a stranger", async |shards| {
        shards.masters[0].kill();
        shards.promoted(0).await;
        shards.masters[0].restart().await;
    })
    .await;
}

#[tokio::test]
async fn master_killed_under_load_leaves_nothing_stale() {
    cluster_survives("cluster, killed", async |shards| shards.masters[0].kill()).await;
}

/// It comes back as a replica, to which connections are still open.
#[tokio::test]
async fn master_that_hangs_under_load_leaves_nothing_stale() {
    cluster_survives("cluster, stopped", async |shards| {
        shards.masters[0].pause();
        shards.promoted(0).await;
        shards.masters[0].resume();
    })
    .await;
}

/// The only node that the user has named dies.
#[tokio::test]
async fn cluster_without_its_named_nodes_leaves_nothing_stale() {
    let shards = Shards::start().await;
    survives("cluster, named nodes", guards(|| endpoint(&shards.masters[..1])), async || {
        shards.masters[0].kill();
        shards.promoted(0).await;
        shards.keep_masters(0..3).await;
    })
    .await;
}

/// A master and its replica hang, and serve again.
#[tokio::test]
async fn shard_that_hangs_under_load_leaves_nothing_stale() {
    shards_survive("cluster, a shard", &[0], Duration::ZERO, shard_hangs).await;
}

/// Meanwhile no master serves.
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
#[tokio::test]
async fn node_that_joins_and_leaves_leaves_nothing_stale() {
    let nodes = nodes::<3>().await;
    let leaves = !RedisServer::is_older_than(7, 0);
    let settings: &[_] = if leaves { &["--cluster-allow-replica-migration", "no"] } else { &[] };
    let joining = RedisServer::cluster_node(&[&["--cluster-require-full-coverage", "no"], settings].concat());
    nodes[0].meet(&joining).await;
    let id: String = command(&joining, "CLUSTER MYID").await;
    for node in &nodes {
        eventually("the node is known", async || {
            command::<String>(node, "CLUSTER NODES").await.contains(&format!("{id} 127.0.0.1"))
        })
        .await;
    }
    eventually("the node serves", async || serves(&joining).await).await;
    let keys = keys_of(&nodes, 0, 20).await;
    let guards = guards(|| endpoint(&nodes));
    let [first, second, third] = nodes;
    let all = [first, joining, second, third];
    let moves = async || {
        let resharder = Resharder::of(&all).await;
        for (from, to) in [(0, 1), (1, 0)] {
            for key in &keys[usize::from(!leaves && from == 1)..] {
                resharder.move_slot(slot_of(&all[0], key).await, from, to).await;
                sleep(50 * MS).await;
            }
        }
        if leaves {
            for node in [&all[0], &all[2], &all[3]] {
                command::<()>(node, &format!("CLUSTER FORGET {id}")).await;
            }
            all[1].kill();
        }
    };
    let (what, began) = ("cluster, a node that joins and leaves", Instant::now());
    let load = survive_with(what, guards, keys.clone(), Duration::ZERO, moves).await;
    assert_eq!(load.stale_since(began, KEPT_FOR), [Duration::ZERO; 0]);
}
