//! Servers that are announced by host names.

use super::{cluster::started_shards_survive, guards, survives};
use crate::{
    cluster::shards::Shards,
    kit::command,
    sentinel::watched::Watched,
    support::{RedisServer, skip},
};
use std::time::Duration;

/// The names do not resolve: without TLS a guard connects to addresses, while redirections name the hosts.
///
/// Seen to fail (invalidations stay pending) if nodes are connected to by the names that they announce.
#[tokio::test]
async fn cluster_that_announces_host_names_leaves_nothing_stale() {
    if RedisServer::is_older_than(7, 0) {
        return skip("it has no setting `cluster-announce-hostname`");
    }
    let start = async || {
        let shards = Shards::start().await;
        let names: Vec<_> = (0..6).map(|n| format!("node-{n}.invalid")).collect();
        for (node, name) in shards.nodes().zip(&names) {
            command::<()>(node, &format!("CONFIG SET cluster-announce-hostname {name}")).await;
        }
        shards.set("cluster-preferred-endpoint-type", "hostname").await;
        shards.described_by(&names).await;
        (shards, ())
    };
    started_shards_survive("cluster, host names", &[0, 1], Duration::ZERO, start, async |shards, ()| {
        command::<()>(&shards.replicas[1], "CLUSTER FAILOVER").await;
        shards.promoted(1).await;
        shards.masters[0].kill();
        shards.promoted(0).await;
    })
    .await;
}

/// Sentinels and servers have the same name, and are told apart by their ports.
#[tokio::test]
async fn sentinels_that_announce_host_names_leave_nothing_stale() {
    // `localhost` may lead to either address.
    let servers = Watched::servers(&["--bind", "127.0.0.1", "-::1", "--replica-announce-ip", "localhost"]);
    let port = servers[0].port();
    let config = ["sentinel resolve-hostnames yes", "sentinel announce-hostnames yes"];
    let watched = Watched::watch(servers, "localhost", port, &config).await;
    let [host, _]: [String; 2] = command(&watched.sentinels[0], "SENTINEL GET-MASTER-ADDR-BY-NAME main").await;
    assert_eq!(host, "localhost");
    survives("sentinels, host names", guards(|| watched.endpoint()), async || {
        watched.servers[0].kill();
        watched.next_master(&watched.servers[0]).await;
        watched.settle().await;
    })
    .await;
}
