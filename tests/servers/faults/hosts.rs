//! A host dies: packets vanish, no connection is closed, and no new one is refused.
//!
//! [`Mode::Gone`] makes the kernel drop every packet to the relay that stands for the host.

use super::{cluster::started_shards_survive, guards, survives, survives_fresh};
use crate::{
    SECOND,
    cluster::shards::{Shards, endpoint},
    kit::command,
    sentinel::watched::Watched,
    support::{
        RedisServer,
        relay::{Mode, Relay},
        skip,
    },
};
use std::{net::Ipv4Addr, time::Duration};
use tokio::time::sleep;

async fn relay(server: &RedisServer) -> Relay {
    Relay::to((Ipv4Addr::LOCALHOST, server.port()).into()).await
}

/// It boots again, without data, and resets the connections from before.
///
/// Seen to fail (never shared again) if connections that are broken or without replies are kept.
#[tokio::test]
async fn host_that_boots_again_under_load_serves_nothing_stale() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    survives_fresh("host, booted", guards(|| relay.client()), async || {
        relay.set(Mode::Gone);
        sleep(4 * SECOND).await;
        server.restart().await;
        relay.set(Mode::Pass);
        relay.cut();
    })
    .await;
}

/// The network is back, but a firewall on the way has forgotten the connections, and swallows what comes over them.
///
/// Seen to fail (never shared again) if connections without replies are kept.
#[tokio::test]
async fn connections_that_a_firewall_forgets_leave_nothing_stale() {
    let server = RedisServer::start();
    let relay = relay(&server).await;
    survives_fresh("host, forgotten", guards(|| relay.client()), async || {
        relay.set(Mode::Gone);
        sleep(2 * SECOND).await;
        relay.set(Mode::Pass);
    })
    .await;
}

/// Replicas and sentinels reach the master by way of the relay, too.
///
/// Seen to fail (29 stale) without the repetition of recent invalidations.
#[tokio::test]
async fn sentinel_master_whose_host_dies_leaves_nothing_stale() {
    let servers = Watched::servers(&[]);
    let relay = relay(&servers[0]).await;
    let watched = Watched::watch(servers, "127.0.0.1", relay.address().port(), &[]).await;
    survives("sentinels, host", guards(|| watched.endpoint()), async || {
        watched.stop_replication().await;
        relay.set(Mode::Gone);
        watched.next_master(&watched.servers[0]).await;
        watched.settle().await;
    })
    .await;
}

/// The other nodes name the relay as the address of the master.
///
/// Seen to fail (invalidations stay pending) if a command without an answer is no reason to ask the nodes.
#[tokio::test]
async fn cluster_master_whose_host_dies_leaves_nothing_stale() {
    if RedisServer::is_older_than(7, 0) {
        return skip("it names its port of before as its own when it announces another one");
    }
    let start = async || {
        let shards = Shards::start().await;
        let relay = relay(&shards.masters[0]).await;
        let port = relay.address().port();
        command::<()>(&shards.masters[0], &format!("CONFIG SET cluster-announce-port {port}")).await;
        shards.described_by(&[format!(":{port}@")]).await;
        let endpoint = endpoint(&shards.masters[1..]);
        (shards, endpoint, relay)
    };
    started_shards_survive("cluster, host", &[0], Duration::ZERO, start, async |shards, relay| {
        shards.stop_replication(0).await;
        shards.masters[0].pause(); // with its bus, which has no relay
        relay.set(Mode::Gone);
        shards.promoted(0).await;
    })
    .await;
}
