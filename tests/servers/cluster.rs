//! The cache over a real Redis Cluster.

mod failover;
mod faults;
mod herd;
mod lines;
mod migration;
mod near;
mod refresh;
pub(crate) mod shards;

use self::shards::{Resharder, endpoint, endpoint_of};
use crate::{
    SECOND, acl,
    kit::{Events, calls_of_a_herd, calls_of_a_varied_herd, command, hits, patient, recovers},
    never,
    support::{RedisServer, eventually},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use stampede_guard::{
    ErrorKind, Lock, RedisStore, StampedeGuard,
    lock::LockErrorKind,
    store::{CacheKey, LeaseReply, LeaseRequest, Store},
};

/// Starts a cluster of `N` masters with equal shares of the slots. The other masters keep serving if one dies.
pub(crate) async fn nodes<const N: usize>() -> [RedisServer; N] {
    RedisServer::cluster(&["--cluster-require-full-coverage", "no"]).await
}

#[tokio::test]
async fn herd_over_cluster_makes_one_call() {
    let nodes = nodes::<3>().await;
    let guards = [(); 2].map(|()| patient(endpoint(&nodes)));
    for key in 0..12 {
        let key = format!("k{key}");
        assert_eq!(calls_of_a_herd(&guards, &key).await, 1);
        assert!(hits(&guards[1], &key).await);
        guards[0].invalidate(key.as_str()).await.expect("acknowledged");
        assert!(!hits(&guards[1], &key).await);
        guards[1].drain().await;
    }
    for node in &nodes {
        assert!(command::<usize>(node, "DBSIZE").await > 0, "every node has a share");
    }
    assert_eq!(guards.map(|guard| guard.stats().store_errors), [0, 0]);
}

/// All variants of one URL, under each method and scheme, share one slot. Otherwise no command could read or fill two of
/// them, and none could drop them.
#[tokio::test]
async fn variants_of_one_page_live_on_one_node() {
    let nodes = nodes::<3>().await;
    let guards = [(); 2].map(|()| patient(endpoint(&nodes)));
    for page in 0..12 {
        for _ in 0..2 {
            assert_eq!(calls_of_a_varied_herd(&guards, &format!("page/{page}")).await, 1);
            let url = format!("https://site.example/page/{page}").parse().expect("a URL");
            guards[0].invalidate_url(&url).await.expect("acknowledged");
        }
    }
    for node in &nodes {
        assert!(command::<usize>(node, "DBSIZE").await > 0, "every node has a share");
    }
    assert_eq!(guards.map(|guard| guard.stats().store_errors), [0, 0]);
}

/// Classic pub/sub messages reach every node, so a subscriber may connect to any node.
#[tokio::test]
async fn wake_ups_come_from_any_node() {
    let nodes = nodes::<3>().await;
    for (i, node) in nodes.iter().enumerate() {
        let a = RedisStore::new(endpoint(&nodes));
        let b = RedisStore::new(endpoint(&nodes).subscribe_via(node.client()));
        for key in 0..6 {
            let at = CacheKey::new("sg", 0, format!("{i} {key}"));
            let (mut leader, mut waiter) = (a.listen(&at), b.listen(&at));
            let lead = LeaseRequest::new(leader.token(), 100 * SECOND);
            assert!(matches!(a.get_or_lease(&at, lead).await, Ok(LeaseReply::Granted { .. })));
            let wait = LeaseRequest::new(waiter.token(), 100 * SECOND);
            eventually("wake-ups arrive", async || {
                matches!(b.get_or_lease(&at, wait).await, Ok(LeaseReply::Wait { registered: true, .. }))
            })
            .await;
            a.release(&at, lead.token, None).await.expect("released");
            assert!(!waiter.notified().await, "the entry was not invalidated");
        }
    }
}

#[tokio::test]
async fn dead_node_sends_its_keys_to_origin_and_other_keys_hit() {
    let nodes = nodes::<3>().await;
    let guard = patient(endpoint(&nodes));
    let keys: Vec<_> = (0..24).map(|key| format!("k{key}")).collect();
    for key in &keys {
        hits(&guard, key).await;
    }
    guard.drain().await;
    let lost = command::<usize>(&nodes[1], "DBSIZE").await;
    nodes[1].kill();
    let before = connections(&nodes[0]).await;
    for _ in 0..3 {
        let mut hit = 0;
        for key in &keys {
            hit += usize::from(hits(&guard, key).await);
        }
        assert_eq!(hit, keys.len() - lost);
    }
    assert_eq!(connections(&nodes[0]).await, before + 1, "only the connection of this check");
}

/// Returns how many connections the node has ever accepted, including this one.
async fn connections(node: &RedisServer) -> u64 {
    let info: redis::InfoDict = command(node, "INFO stats").await;
    info.get("total_connections_received").expect("a number")
}

/// The node is stopped: its connections stay open, but it does not answer.
#[tokio::test]
async fn hanging_node_does_not_delay_keys_of_other_nodes() {
    let nodes = nodes::<3>().await;
    let guard = patient(endpoint(&nodes));
    let keys: Vec<_> = (0..24).map(|key| format!("k{key}")).collect();
    for key in &keys {
        hits(&guard, key).await;
    }
    guard.drain().await;
    let hanging = command::<usize>(&nodes[1], "DBSIZE").await;
    nodes[1].pause();
    let questions = keys.iter().map(|key| guard.fetch(key.clone(), never::<i32>));
    let mut answers: FuturesUnordered<_> = questions.collect();
    for _ in hanging..keys.len() {
        assert_eq!(answers.next().await.expect("one more").expect("a hit"), 1);
    }
    assert_eq!(answers.len(), hanging);
    nodes[1].resume();
    while let Some(answer) = answers.next().await {
        assert_eq!(answer.expect("a hit"), 1);
    }
}

#[tokio::test]
async fn cut_cluster_connections_are_restored() {
    let nodes = nodes::<3>().await;
    let guards = [(); 2].map(|()| patient(endpoint(&nodes)));
    calls_of_a_herd(&guards, "before").await;
    for node in &nodes {
        command::<()>(node, "CLIENT KILL TYPE normal SKIPME yes").await;
    }
    for key in ["before", "a", "b", "c", "d"] {
        assert!(calls_of_a_herd(&guards, key).await <= 1, "{key}");
        assert!(hits(&guards[0], key).await, "{key}");
    }
}

/// In a cluster the user needs the documented rights and `CLUSTER NODES`.
#[tokio::test]
async fn cluster_user_needs_cluster_nodes_right() {
    let nodes = nodes::<3>().await;
    for node in &nodes {
        command::<()>(node, &format!("ACL SETUSER app {} +cluster|nodes", acl::documented().join(" "))).await;
    }
    let urls = nodes.iter().map(|node| format!("redis://app:secret@127.0.0.1:{}", node.port())).collect::<Vec<_>>();
    let guards = [(); 2].map(|()| patient(endpoint_of(&urls)));
    for key in ["a", "b", "c"] {
        assert_eq!(calls_of_a_herd(&guards, key).await, 1, "{key}");
        assert!(hits(&guards[0], key).await, "{key}");
    }
    for node in &nodes {
        assert_eq!(acl::refused(node).await, [""; 0]);
        command::<()>(node, &format!("ACL SETUSER app reset {}", acl::documented().join(" "))).await;
    }
    let (events, guard) = (Events::listen(), patient(endpoint_of(&urls)));
    for _ in 0..2 {
        assert!(!hits(&guard, "b").await, "the origin answers");
        guard.drain().await;
        tokio::time::sleep(SECOND).await; // the outage cache has forgotten it
    }
    assert_eq!(events.about("`+cluster"), 1, "{}", events.all());
}

/// A node redirects commands for names that it lacks to the node that its slot moves to.
///
/// Seen to fail (an error of each operation) without `+asking`.
#[tokio::test]
async fn cluster_user_needs_asking_right_while_a_slot_moves() {
    let nodes = nodes::<2>().await;
    for node in &nodes {
        for user in ["app", "locks"] {
            let rights = acl::documented_for(user).join(" ");
            command::<()>(node, &format!("ACL SETUSER {user} {rights} +cluster|nodes +asking")).await;
        }
    }
    let endpoint = |user: &str| {
        let urls = nodes.iter().map(|node| format!("redis://{user}:secret@127.0.0.1:{}", node.port()));
        endpoint_of(&urls.collect::<Vec<_>>())
    };
    let (guard, lock) = (patient(endpoint("app")), Lock::new(endpoint("locks")).store_timeout(30 * SECOND));
    assert!(!hits(&guard, "connected").await);
    lock.acquire("connected").await.expect("free").release().await.expect("held");
    let resharder = Resharder::of(&nodes).await;
    for key in ["{sg:rk}", "{lock:rk}"] {
        let slot: usize = command(&nodes[0], &format!("CLUSTER KEYSLOT {key}")).await;
        let from = usize::from(slot >= 8_192);
        resharder.begin_move(slot, from, 1 - from).await;
    }
    guard.invalidate("k").await.expect("acknowledged");
    let held = lock.acquire("k").await.expect("free");
    _ = held.release().await; // its names may be on both nodes
    for node in &nodes {
        assert_eq!(acl::refused(node).await, [""; 0]);
        command::<()>(node, "ACL SETUSER app -asking").await;
        command::<()>(node, "ACL SETUSER locks -asking").await;
    }
    assert_eq!(guard.invalidate("k").await.expect_err("not allowed").kind(), ErrorKind::Store);
    assert_eq!(lock.acquire("k").await.expect_err("not allowed").kind(), LockErrorKind::Store);
}

#[tokio::test]
async fn guard_started_while_node_hangs_finds_other_nodes() {
    let nodes = nodes::<3>().await;
    nodes[0].pause();
    let guard = StampedeGuard::new(endpoint(&nodes));
    recovers(&guard).await;
    nodes[0].resume();
}

/// While the slot moves, the origin answers what the store cannot.
#[tokio::test]
async fn migrated_slot_is_found_on_its_new_node() {
    let nodes = nodes::<2>().await;
    let guards = [(); 2].map(|()| patient(endpoint(&nodes)));
    let slot: usize = command(&nodes[0], "CLUSTER KEYSLOT {sg:rk}").await;
    let (from, to) = if slot < 8_192 { (&nodes[0], &nodes[1]) } else { (&nodes[1], &nodes[0]) };
    let [from_id, to_id]: [String; 2] = [command(from, "CLUSTER MYID").await, command(to, "CLUSTER MYID").await];
    command::<()>(to, &format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await;
    command::<()>(from, &format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await;
    calls_of_a_herd(&guards, "k").await;
    for node in [to, from] {
        command::<()>(node, &format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await;
    }
    for guard in &guards {
        eventually("the key is found on the new node", async || hits(guard, "k").await).await;
    }
    assert!(guards.iter().all(|guard| guard.stats().store_errors > 0), "the migration caused store errors");
}
