//! Connections of clients: killed, and one more than the server accepts.

use super::{cluster::shards_survive, guards, repeat, server_survives};
use crate::{
    Down, SECOND,
    kit::connection,
    support::{RedisServer, eventually},
};
use std::time::Duration;
use tokio::time::sleep;

const KILL: &str = "CLIENT KILL TYPE normal SKIPME yes";

/// Seen to fail (never shared again) if a broken connection is kept.
#[tokio::test]
async fn killed_clients_under_load_get_nothing_stale() {
    server_survives("killed clients", async |server| repeat(server, 20, KILL).await).await;
}

/// Seen to fail (invalidations stay pending) if a broken connection is kept.
#[tokio::test]
async fn killed_clients_of_a_cluster_get_nothing_stale() {
    shards_survive("cluster, killed clients", &[0], Duration::ZERO, async |shards| {
        repeat(&shards.masters[0], 20, KILL).await;
    })
    .await;
}

/// Refuses new connections for two seconds, then closes the ones of before, and accepts them two seconds later.
async fn accepts_no_more_clients(server: &RedisServer) {
    let mut admin = connection(&server.client()).await;
    let mut tell = async |line: &str| {
        let words: Vec<_> = line.split(' ').collect();
        redis::cmd(words[0]).arg(&words[1..]).exec_async(&mut admin).await.expect("it is connected");
    };
    tell("CONFIG SET maxclients 1").await;
    let [outsider, _] = guards(|| server.client());
    eventually("a new client is refused", async || {
        outsider.fetch("outside", async || Ok::<_, Down>(1)).await.expect("the origin answers");
        outsider.stats().store_errors > 0
    })
    .await;
    sleep(2 * SECOND).await;
    tell(KILL).await;
    sleep(2 * SECOND).await;
    tell("CONFIG SET maxclients 1000").await;
}

/// Seen to fail (never shared again) if a broken connection is kept.
#[tokio::test]
async fn server_at_maxclients_under_load_serves_nothing_stale() {
    server_survives("maxclients", async |server| accepts_no_more_clients(server).await).await;
}

/// Seen to fail (6 stale) if a fill needs no lease.
#[tokio::test]
async fn cluster_master_at_maxclients_leaves_nothing_stale() {
    shards_survive("cluster, maxclients", &[0], Duration::ZERO, async |shards| {
        accepts_no_more_clients(&shards.masters[0]).await;
    })
    .await;
}
