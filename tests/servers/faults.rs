//! Faults of a server, of the master of sentinels, and of a cluster, each under a load with invalidations.
//!
//! One request in twenty is an invalidation. No request fails, gets the value of another key, or gets one that its own process
//! has invalidated, and both processes share again after the fault. Then, and with one server or slots that move at all
//! times, no process gets a value that the other one has invalidated, except for one that it has fetched itself: it may serve
//! that while its fill is sent again. A failover may lose the invalidations of the last seconds until they are sent again.

use crate::{
    MS, SECOND,
    cluster::shards::{Resharder, Shards, endpoint, keys_of, serves, slot_of},
    failover::Name,
    kit::{command, connection, recovers, replicate},
    load::Load,
    sentinel::watched::{Watched, has_role},
    support::{RedisServer, eventually},
};

use stampede_guard::{NearCacheConfig, OutageCacheConfig, Policy, StampedeGuard, store::IntoStore};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::time::sleep;

const LEASE: Duration = Duration::from_secs(3);
/// For how long a fill is sent again: the last time at the end of a lease, for one store timeout.
const KEPT_FOR: Duration = Duration::from_millis(4500);

/// Returns guards that stand for processes. A result that could not be stored is not served again, because the other
/// process may have invalidated it.
fn guards<S: IntoStore>(store: impl Fn() -> S) -> [StampedeGuard; 2] {
    let (policy, outage) = (Policy::fresh_for(600 * SECOND), OutageCacheConfig::max_bytes(0));
    [(); 2].map(|()| {
        StampedeGuard::new(store()).policy(policy).outage_cache(outage).store_timeout(SECOND).lease_ttl(LEASE)
    })
}

/// Lets a fault happen under load. No answer is stale afterwards, except for one that its process has fetched itself.
async fn survives(what: &str, guards: [StampedeGuard; 2], fault: impl AsyncFnOnce()) -> Arc<Load> {
    survive_with(what, guards, keys(), Duration::ZERO, fault).await
}

fn keys() -> Vec<String> {
    (0..100).map(|n| format!("key-{n}")).collect()
}

/// Does the same as [`survives`] with a load of these keys, and with copies that are served up to this age.
async fn survive_with(
    what: &str,
    guards: [StampedeGuard; 2],
    keys: Vec<String>,
    max_age: Duration,
    fault: impl AsyncFnOnce(),
) -> Arc<Load> {
    let load = Load::new(guards, keys);
    let running = tokio::spawn(load.clone().run());
    for guard in load.guards() {
        recovers(guard).await;
    }
    sleep(SECOND).await;
    fault().await;
    for guard in load.guards() {
        recovers(guard).await;
    }
    sleep(SECOND).await;
    for guard in load.guards() {
        // The ones that a new master had not got.
        eventually("invalidations are sent again", async || guard.health().pending_invalidations == 0).await;
    }
    let recovered = Instant::now() + max_age;
    sleep(max_age + SECOND).await;
    load.end(running, what).await;
    let stale = load.stale_since(recovered, KEPT_FOR);
    assert!(stale.iter().all(|age| *age < max_age), "{what}: {stale:?}");
    load
}

/// Lets a fault happen to one server under load.
async fn server_survives(what: &str, fault: impl AsyncFnOnce(&RedisServer)) {
    let server = RedisServer::start();
    let began = Instant::now();
    let load = survives(what, guards(|| server.client()), async || fault(&server).await).await;
    assert_eq!(load.stale_since(began, KEPT_FOR), [Duration::ZERO; 0], "{what}");
}

/// Sends a command repeatedly, every fifty milliseconds.
async fn repeat(server: &RedisServer, times: usize, line: &str) {
    for _ in 0..times {
        command::<redis::Value>(server, line).await;
        sleep(50 * MS).await;
    }
}

#[tokio::test]
async fn server_started_again_under_load_serves_nothing_stale() {
    server_survives("restart", async |server| {
        server.kill();
        sleep(SECOND).await;
        server.restart().await;
    })
    .await;
}

#[tokio::test]
async fn server_that_hangs_under_load_serves_nothing_stale() {
    server_survives("hang", async |server| {
        server.pause();
        sleep(4 * SECOND).await;
        server.resume();
    })
    .await;
}

#[tokio::test]
async fn killed_clients_under_load_get_nothing_stale() {
    server_survives("killed clients", async |server| {
        repeat(server, 20, "CLIENT KILL TYPE normal SKIPME yes").await;
    })
    .await;
}

#[tokio::test]
async fn forgotten_scripts_under_load_leave_nothing_stale() {
    server_survives("forgotten scripts", async |server| repeat(server, 30, "SCRIPT FLUSH").await).await;
}

#[tokio::test]
async fn flushed_server_under_load_serves_nothing_stale() {
    server_survives("flushed", async |server| repeat(server, 10, "FLUSHALL").await).await;
}

#[tokio::test]
async fn password_that_changes_under_load_leaves_nothing_stale() {
    server_survives("password", async |server| {
        let mut admin = connection(&server.client()).await;
        for password in ["secret", ""] {
            let mut set = redis::cmd("CONFIG");
            set.arg(&["SET", "requirepass", password]).exec_async(&mut admin).await.expect("set");
            let mut kill = redis::cmd("CLIENT");
            kill.arg(&["KILL", "TYPE", "normal", "SKIPME", "yes"]).exec_async(&mut admin).await.expect("killed");
            sleep(2 * SECOND).await;
        }
    })
    .await;
}

/// The old master refuses writes, and its connections stay open.
#[tokio::test]
async fn name_that_moves_under_load_leads_to_nothing_stale() {
    let servers = [(); 2].map(|()| RedisServer::start());
    replicate(&servers[1], &servers[0], servers[0].port()).await;
    let name = Name::of(&servers[0]).await;
    let moves = async || {
        command::<()>(&servers[1], "REPLICAOF NO ONE").await;
        name.follow(&servers[1]);
        command::<()>(&servers[0], &format!("REPLICAOF 127.0.0.1 {}", servers[1].port())).await;
    };
    survives("name", guards(|| name.client()), moves).await;
}

/// Lets a fault happen to the master of three sentinels under load.
async fn sentinels_survive(what: &str, fault: impl AsyncFnOnce(&Watched)) {
    let watched = Watched::start().await;
    watched.master().await;
    survives(what, guards(|| watched.endpoint()), async || fault(&watched).await).await;
}

#[tokio::test]
async fn sentinel_master_killed_under_load_leaves_nothing_stale() {
    sentinels_survive("sentinels, killed", async |watched| {
        watched.servers[0].kill();
        watched.next_master(&watched.servers[0]).await;
    })
    .await;
}

/// It comes back as a replica, to which connections are still open.
#[tokio::test]
async fn sentinel_master_that_hangs_under_load_leaves_nothing_stale() {
    sentinels_survive("sentinels, stopped", async |watched| {
        watched.servers[0].pause();
        watched.next_master(&watched.servers[0]).await;
        watched.servers[0].resume();
        eventually("the old master is a replica", async || has_role(&watched.servers[0], "slave").await).await;
    })
    .await;
}

#[tokio::test]
async fn sentinel_dead_before_a_failover_leaves_nothing_stale() {
    sentinels_survive("sentinels, one and the master dead", async |watched| {
        watched.sentinels[0].kill();
        watched.servers[0].kill();
        watched.next_master(&watched.servers[0]).await;
    })
    .await;
}

#[tokio::test]
async fn sentinel_failover_by_command_leaves_nothing_stale() {
    sentinels_survive("sentinels, by command", async |watched| {
        command::<()>(&watched.sentinels[1], "SENTINEL FAILOVER main").await;
        watched.next_master(&watched.servers[0]).await;
    })
    .await;
}

/// Lets a fault happen to the first master of a cluster under load, which its replica replaces.
async fn cluster_survives(what: &str, max_age: Duration, fault: impl AsyncFnOnce(&Shards)) {
    let shards = Shards::start().await;
    let near = || NearCacheConfig::max_bytes(1 << 20).max_age(max_age);
    let with_copies = |guard: StampedeGuard| if max_age.is_zero() { guard } else { guard.near_cache(near()) };
    let guards = guards(|| shards.endpoint()).map(with_copies);
    survive_with(what, guards, keys(), max_age, async || fault(&shards).await).await;
    assert!(serves(&shards.replicas[0]).await);
}

#[tokio::test]
async fn cluster_failover_by_command_leaves_nothing_stale() {
    cluster_survives("cluster, by command", Duration::ZERO, async |shards| {
        command::<()>(&shards.replicas[0], "CLUSTER FAILOVER").await;
        shards.promoted(0).await;
    })
    .await;
}

/// All masters at once, with copies in the processes.
#[tokio::test]
async fn cluster_takeover_by_all_replicas_leaves_nothing_stale() {
    cluster_survives("cluster, takeover", 500 * MS, async |shards| {
        for replica in &shards.replicas {
            command::<()>(replica, "CLUSTER FAILOVER TAKEOVER").await;
        }
    })
    .await;
}

/// A node of another cluster, without slots, has the address of the dead master.
#[tokio::test]
async fn cluster_node_of_another_cluster_leaves_nothing_stale() {
    cluster_survives("cluster, a stranger", Duration::ZERO, async |shards| {
        shards.masters[0].kill();
        shards.promoted(0).await;
        shards.masters[0].restart().await;
    })
    .await;
}

/// A new node gets slots, gives them back, and leaves. Redis 6.2 makes a master without slots a replica, so there the node
/// keeps one and stays.
#[tokio::test]
async fn cluster_node_that_joins_and_leaves_leaves_nothing_stale() {
    let nodes = crate::cluster::nodes::<3>().await;
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
