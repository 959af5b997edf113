//! A master with two replicas, and three sentinels that watch them.

use crate::{
    kit::{command, patient, replicate},
    support::{RedisServer, eventually},
};
use stampede_guard::{RedisEndpoint, StampedeGuard};
use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};
use tokio::time::sleep;

/// Three servers and three sentinels with a quorum of two, which notice a dead master after half a second. Replicas and
/// sentinels have users of their own, so that a server can be cut off from them while its clients reach it.
pub(crate) struct Watched {
    pub(crate) servers: Vec<RedisServer>,
    pub(crate) sentinels: Vec<RedisServer>,
    /// The port of a server by which the sentinels name it.
    port: fn(&RedisServer) -> u16,
}

impl Watched {
    pub(crate) async fn start() -> Self {
        Self::with(&[], &[]).await
    }

    /// Starts servers with further arguments, and sentinels with further lines of configuration.
    pub(crate) async fn with(args: &[&str], config: &[&str]) -> Self {
        let servers = Self::servers(args);
        let port = servers[0].port();
        Self::watch(servers, "127.0.0.1", port, config).await
    }

    /// Starts servers with further arguments, which nothing watches yet.
    pub(crate) fn servers(args: &[&str]) -> Vec<RedisServer> {
        let args = [&SERVER[..], args].concat();
        (0..3).map(|_| RedisServer::with(&args)).collect()
    }

    /// Makes the first server the master, and starts sentinels that watch it, all by way of this address.
    pub(crate) async fn watch(servers: Vec<RedisServer>, host: &str, port: u16, config: &[&str]) -> Self {
        for replica in &servers[1..] {
            replicate(replica, &servers[0], port).await;
        }
        let monitor = format!("sentinel monitor main {host} {port} 2");
        let config = [&[monitor.as_str()], &SENTINEL[..], config].concat();
        let sentinels = (0..3).map(|_| RedisServer::sentinel(&config)).collect();
        let is_tls = config.contains(&"tls-replication yes");
        let watched = Self { servers, sentinels, port: if is_tls { RedisServer::tls_port } else { RedisServer::port } };
        watched.is_ready().await;
        watched
    }

    /// Waits until the sentinels know each other and the replicas.
    async fn is_ready(&self) {
        for sentinel in &self.sentinels {
            eventually("the sentinel knows the others and the replicas", async || {
                let info: String = command(sentinel, "INFO sentinel").await;
                info.contains("status=ok") && info.contains("slaves=2,sentinels=3")
            })
            .await;
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    pub(crate) fn endpoint(&self) -> RedisEndpoint {
        RedisEndpoint::sentinel(self.urls(), "main").expect("URLs")
    }

    /// Returns guards that stand for processes: each has connections of its own.
    pub(crate) fn guards<const N: usize>(&self) -> [StampedeGuard; N] {
        [(); N].map(|()| patient(self.endpoint()))
    }

    /// Returns the first server, once all sentinels name it. On a very busy machine they may have replaced it.
    pub(crate) async fn master(&self) -> &RedisServer {
        let all = self.sentinels.len();
        let is_named = async || self.votes_for(&self.servers[0]).await == all;
        eventually("all sentinels name the first server: a failover before the test begins", is_named).await;
        &self.servers[0]
    }

    /// Ends the replication of the first server: what it acknowledges in the next two seconds is lost when it is replaced.
    pub(crate) async fn stop_replication(&self) {
        turn_away(&self.servers[0], "replica").await;
        sleep(Duration::from_secs(2)).await;
    }

    /// Waits until the living sentinels agree on a master, and lets them replace it no more. On a very busy machine they
    /// would, because it replies too late, and each failover may lose invalidations.
    pub(crate) async fn settle(&self) {
        eventually("the sentinels agree on a master", async || self.agree().await).await;
        let patience = redis::cmd("SENTINEL").arg(&["SET", "main", "down-after-milliseconds", "600000"]).to_owned();
        eventually("the living sentinels are patient", async || {
            for sentinel in &self.sentinels {
                let set = match sentinel.client().get_multiplexed_async_connection().await {
                    Ok(mut connection) => patience.exec_async(&mut connection).await,
                    Err(error) if error.is_connection_refusal() => Ok(()), // it is dead
                    Err(error) => Err(error),
                };
                if set.is_err() {
                    return false;
                }
            }
            true
        })
        .await;
        eventually("no failover has begun before", async || self.agree().await).await;
    }

    /// Reports whether the living sentinels name one master, which is up, and none of them replaces it.
    async fn agree(&self) -> bool {
        let mut named = BTreeSet::new();
        for sentinel in &self.sentinels {
            let Ok(mut connection) = sentinel.client().get_multiplexed_async_connection().await else { continue };
            let ask = redis::cmd("SENTINEL").arg("MASTER").arg("main").to_owned();
            let Ok(master) = ask.query_async::<BTreeMap<String, String>>(&mut connection).await else { return false };
            if master["flags"] != "master" {
                return false;
            }
            named.insert(master["port"].clone());
        }
        named.len() == 1
    }

    /// Returns how many sentinels name this server. One that is dead, hangs, or is slow names none.
    async fn votes_for(&self, server: &RedisServer) -> usize {
        let mut votes = 0;
        for sentinel in &self.sentinels {
            let mut connection = sentinel.client().get_multiplexed_async_connection().await.ok();
            let ask = redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg("main").to_owned();
            let answer = match &mut connection {
                Some(connection) => ask.query_async::<(String, u16)>(connection).await.ok(),
                None => None,
            };
            votes += usize::from(answer.is_some_and(|(_, port)| port == (self.port)(server)));
        }
        votes
    }

    /// Waits until two sentinels name another master than `old`, which accepts writes, and returns it.
    pub(crate) async fn next_master(&self, old: &RedisServer) -> &RedisServer {
        let next = Cell::new(None);
        eventually("the sentinels name another master", async || {
            for master in self.servers.iter().filter(|server| server.port() != old.port()) {
                if self.votes_for(master).await >= 2 && has_role(master, "master").await {
                    next.set(Some(master));
                }
            }
            next.get().is_some()
        })
        .await;
        next.get().expect("there was one")
    }
}

/// Reports whether the server has this role. Not while its role changes, because sentinels then let it close its connections.
pub(crate) async fn has_role(server: &RedisServer, role: &str) -> bool {
    let Ok(mut connection) = server.client().get_multiplexed_async_connection().await else { return false };
    let info = redis::cmd("INFO").arg("replication").query_async::<String>(&mut connection).await;
    info.is_ok_and(|info| info.contains(&format!("role:{role}")))
}

/// Cuts the server off its replicas and its sentinels, which are left with the default user and need its reply to PING.
/// Its clients still reach it.
pub(crate) async fn isolate(server: &RedisServer) {
    command::<()>(server, "ACL SETUSER default -ping").await;
    turn_away(server, "watch").await;
    turn_away(server, "replica").await;
}

/// Closes the connections of a user, and accepts it no more: `replica` or `watch`.
pub(crate) async fn turn_away(server: &RedisServer, user: &str) {
    command::<()>(server, &format!("ACL SETUSER {user} off")).await;
    command::<i64>(server, &format!("CLIENT KILL USER {user}")).await;
}

const SERVER: [&str; 20] = [
    "--repl-diskless-sync-delay",
    "0",
    "--user",
    "replica",
    "on",
    ">secret",
    "+@all",
    "~*",
    "&*",
    "--user",
    "watch",
    "on",
    ">secret",
    "+@all",
    "~*",
    "&*",
    "--masteruser",
    "replica",
    "--masterauth",
    "secret",
];
const SENTINEL: [&str; 5] = [
    "sentinel down-after-milliseconds main 500",
    "sentinel failover-timeout main 3000",
    "sentinel parallel-syncs main 2",
    "sentinel auth-user main watch",
    "sentinel auth-pass main secret",
];
