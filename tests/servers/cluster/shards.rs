//! Clusters with replicas, and a resharder.

use crate::{
    kit::command,
    support::{RedisServer, eventually},
};
use redis::{FromRedisValue, aio::MultiplexedConnection};
use stampede_guard::RedisEndpoint;
use std::{collections::BTreeSet, time::Duration};

/// Three masters with one replica each. A replica takes the place of its master after two to three seconds.
pub(crate) struct Shards {
    pub(crate) masters: [RedisServer; 3],
    pub(crate) replicas: [RedisServer; 3],
}

impl Shards {
    /// The arguments of each node.
    pub(crate) const ARGS: [&str; 6] =
        ["--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0"];

    pub(crate) async fn start() -> Self {
        Self::with(&[]).await
    }

    /// Starts nodes with further arguments.
    pub(crate) async fn with(args: &[&str]) -> Self {
        let args = [&Self::ARGS, args].concat();
        let masters = RedisServer::cluster::<3>(&args).await;
        let replicas = [(); 3].map(|()| RedisServer::cluster_node(&args));
        for (i, (master, replica)) in masters.iter().zip(&replicas).enumerate() {
            replica.meet(masters.iter().chain(&replicas[..i])).await;
            let id: String = command(master, "CLUSTER MYID").await;
            command::<()>(replica, &format!("CLUSTER REPLICATE {id}")).await;
        }
        for replica in &replicas {
            eventually("the replica follows", async || {
                command::<String>(replica, "INFO replication").await.contains("master_link_status:up")
            })
            .await;
        }
        for node in masters.iter().chain(&replicas) {
            eventually("every node knows all replicas", async || {
                let nodes: String = command(node, "CLUSTER NODES").await;
                nodes.matches(" slave ").count() + nodes.matches(",slave ").count() == 3
            })
            .await;
        }
        Self { masters, replicas }
    }

    /// Returns the endpoint that names the masters.
    pub(crate) fn endpoint(&self) -> RedisEndpoint {
        endpoint(&self.masters)
    }

    /// Returns all nodes.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = &RedisServer> {
        self.masters.iter().chain(&self.replicas)
    }

    /// Changes a setting of all nodes.
    pub(crate) async fn set(&self, setting: &str, value: &str) {
        for node in self.nodes() {
            command::<()>(node, &format!("CONFIG SET {setting} {value}")).await;
        }
    }

    /// Lets no replica of these shards replace its master by itself, as it would on a very busy machine.
    pub(crate) async fn keep_masters(&self, shards: impl IntoIterator<Item = usize>) {
        for shard in shards {
            for node in [&self.masters[shard], &self.replicas[shard]] {
                let Ok(mut connection) = node.client().get_multiplexed_async_connection().await else { continue };
                let mut set = redis::cmd("CONFIG");
                set.arg("SET").arg("cluster-replica-no-failover").arg("yes");
                _ = set.exec_async(&mut connection).await; // a node that hangs does not get it, and needs none
            }
        }
    }

    /// Ends the replication of this master: what it acknowledges in the next two seconds is lost if its replica replaces it.
    pub(crate) async fn stop_replication(&self, shard: usize) {
        command::<()>(&self.masters[shard], "ACL SETUSER default -psync -sync").await;
        command::<i64>(&self.masters[shard], "CLIENT KILL TYPE replica").await;
        tokio::time::sleep(Duration::from_secs(2)).await;
    }

    /// Waits until each node describes the nodes with these words.
    pub(crate) async fn described_by(&self, words: &[String]) {
        for node in self.nodes() {
            eventually("each node has heard of it", async || {
                let nodes: String = command(node, "CLUSTER NODES").await;
                words.iter().all(|word| nodes.contains(word))
            })
            .await;
        }
    }

    /// Waits until the replica of this master serves as a master. The other masters know it then.
    pub(crate) async fn promoted(&self, shard: usize) {
        eventually("the replica serves", async || serves(&self.replicas[shard]).await).await;
        let port = format!(":{}@", self.replicas[shard].port());
        for other in (0..3).filter(|other| *other != shard) {
            eventually("the other masters know it", async || {
                let nodes: String = command(&self.masters[other], "CLUSTER NODES").await;
                nodes.lines().any(|line| line.contains(&port) && line.contains("master"))
            })
            .await;
        }
    }

    /// Waits until the replica has all entries and locks of its master.
    pub(crate) async fn replicated(&self, shard: usize) {
        eventually("the replica has all keys", async || {
            let keys = command::<usize>(&self.masters[shard], "DBSIZE").await;
            keys > 0 && command::<usize>(&self.replicas[shard], "DBSIZE").await == keys
        })
        .await;
    }
}

/// Reports whether the node is a master that serves requests.
pub(crate) async fn serves(node: &RedisServer) -> bool {
    command::<String>(node, "INFO replication").await.contains("role:master")
        && command::<String>(node, "CLUSTER INFO").await.contains("cluster_state:ok")
}

pub(crate) fn endpoint(nodes: &[RedisServer]) -> RedisEndpoint {
    endpoint_of(&nodes.iter().map(RedisServer::url).collect::<Vec<_>>())
}

pub(crate) fn endpoint_of(urls: &[String]) -> RedisEndpoint {
    RedisEndpoint::cluster(urls.iter().map(String::as_str)).expect("an endpoint")
}

/// Returns the slot of a guard's key.
pub(crate) async fn slot_of(node: &RedisServer, key: &str) -> usize {
    command(node, &format!("CLUSTER KEYSLOT {{sg:r{key}}}")).await
}

/// Returns the index of the master that has the slot, of three masters that have their first slots.
pub(crate) fn first_owner(slot: usize) -> usize {
    (0..3).rfind(|n| n * 16_384 / 3 <= slot).expect("one of them")
}

/// Returns the index of the master of a guard's key, of three masters that have their first slots.
pub(crate) async fn master_of(masters: &[RedisServer], key: &str) -> usize {
    first_owner(slot_of(&masters[0], key).await)
}

/// Returns keys of the guard that belong to this master.
pub(crate) async fn keys_of(masters: &[RedisServer], master: usize, count: usize) -> Vec<String> {
    let mut keys = Vec::with_capacity(count);
    for n in 0.. {
        let key = format!("k{n}");
        if master_of(masters, &key).await == master {
            keys.push(key);
        }
        if keys.len() == count {
            break;
        }
    }
    keys
}

/// Moves slots between masters, as `redis-cli --cluster reshard` does.
pub(crate) struct Resharder(Vec<Master>);

struct Master {
    connection: MultiplexedConnection,
    id: String,
    port: u16,
}

impl Resharder {
    pub(crate) async fn of(masters: impl IntoIterator<Item = &RedisServer>) -> Self {
        let mut connected = Vec::new();
        for master in masters {
            let (connection, id) = (master.connection().await, command(master, "CLUSTER MYID").await);
            connected.push(Master { connection, id, port: master.port() });
        }
        Self(connected)
    }

    /// Waits until all masters know the same config epochs, each of one master. Otherwise a master may take a slot with an
    /// epoch that is not the highest, and lose the slot again.
    pub(crate) async fn agree_on_epochs(&self) {
        eventually("all masters know the config epochs", async || {
            let mut views = BTreeSet::new();
            for master in &self.0 {
                let nodes: String = master.ask(redis::cmd("CLUSTER").arg("NODES")).await;
                let epoch = |line: &str| line.split(' ').nth(6).map(str::to_owned);
                views.insert(nodes.lines().map(epoch).collect::<BTreeSet<_>>());
            }
            views.len() == 1 && views.iter().all(|epochs| epochs.len() == self.0.len())
        })
        .await;
    }

    /// Marks a slot as one that moves from one master to another.
    pub(crate) async fn begin_move(&self, slot: usize, from: usize, to: usize) {
        self.0[to].set_slot(slot, "IMPORTING", &self.0[from].id).await;
        self.0[from].set_slot(slot, "MIGRATING", &self.0[to].id).await;
    }

    /// Moves a slot with its keys.
    pub(crate) async fn move_slot(&self, slot: usize, from: usize, to: usize) {
        self.move_slot_within(slot, from, to, Duration::ZERO).await;
    }

    /// Moves a slot with its keys, a hundred at a time, in about this time.
    pub(crate) async fn move_slot_within(&self, slot: usize, from: usize, to: usize, time: Duration) {
        self.begin_move(slot, from, to).await;
        let mut count = redis::cmd("CLUSTER");
        let keys: u32 = self.0[from].ask(count.arg("COUNTKEYSINSLOT").arg(slot)).await;
        let (pause, mut refusals) = (time / keys.div_ceil(100).max(1), 0);
        loop {
            tokio::time::sleep(pause).await;
            let mut keys = redis::cmd("CLUSTER");
            keys.arg("GETKEYSINSLOT").arg(slot).arg(100);
            let keys: Vec<String> = self.0[from].ask(&keys).await;
            if keys.is_empty() {
                break;
            }
            let mut migrate = redis::cmd("MIGRATE");
            migrate.arg("127.0.0.1").arg(self.0[to].port).arg("").arg(0).arg(20_000).arg("KEYS").arg(keys);
            // `NOKEY` if all have expired.
            let moved = migrate.query_async::<String>(&mut self.0[from].connection.clone()).await;
            if let Err(error) = moved {
                // On a busy machine a master may miss the others for a while.
                refusals += 1;
                assert!(refusals < 200 && error.to_string().contains("CLUSTERDOWN"), "{error}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
        let others = (0..self.0.len()).filter(|node| *node != from && *node != to);
        for node in [to, from].into_iter().chain(others) {
            self.0[node].set_slot(slot, "NODE", &self.0[to].id).await;
        }
    }
}

impl Master {
    async fn set_slot(&self, slot: usize, state: &str, id: &str) {
        self.ask(redis::cmd("CLUSTER").arg("SETSLOT").arg(slot).arg(state).arg(id)).await
    }

    async fn ask<T: FromRedisValue>(&self, cmd: &redis::Cmd) -> T {
        cmd.query_async(&mut self.connection.clone()).await.expect("the master is up")
    }
}
