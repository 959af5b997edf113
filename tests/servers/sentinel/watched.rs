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

/// Three servers and three sentinels with a quorum of two, which notice a dead master after half a second. The replicas
/// have a user of their own, and so has each sentinel, at servers and at other sentinels. So links between them can be cut
/// while clients reach all of them.
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
        let user = |name| ["--user", name, "on", ">secret", "+@all", "~*", "&*"];
        let users = WATCH.into_iter().chain([REPLICA]).flat_map(user);
        let args: Vec<_> = SERVER.into_iter().chain(users).chain(args.iter().copied()).collect();
        (0..3).map(|_| RedisServer::with(&args)).collect()
    }

    /// Makes the first server the master, and starts sentinels that watch it, all by way of this address.
    pub(crate) async fn watch(servers: Vec<RedisServer>, host: &str, port: u16, config: &[&str]) -> Self {
        for replica in &servers[1..] {
            replicate(replica, &servers[0], port).await;
        }
        let monitor = format!("sentinel monitor main {host} {port} 2");
        let users = WATCH.map(|user| format!("user {user} on >secret +@all ~* &*"));
        let sentinel = |user| {
            let own = ["auth-user main", "sentinel-user"].map(|setting| format!("sentinel {setting} {user}"));
            let lines = [monitor.as_str()].into_iter().chain(SENTINEL).chain(config.iter().copied());
            let lines: Vec<_> = lines.chain(users.iter().chain(&own).map(String::as_str)).collect();
            RedisServer::sentinel(&lines)
        };
        let sentinels = WATCH.map(sentinel).into();
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
        turn_away(&self.servers[0], REPLICA).await;
        sleep(Duration::from_secs(2)).await;
    }

    /// Splits the network: the first server and the first sentinel reach no other server or sentinel any more. Clients
    /// reach all of them.
    pub(crate) async fn split(&self) {
        // The first server last, because the others replace it from then on.
        for (node, user) in self.links().into_iter().rev() {
            turn_away(node, user).await;
        }
    }

    /// Undoes [`split`](Self::split).
    pub(crate) async fn heal(&self) {
        for (node, user) in self.links() {
            admit(node, user).await;
        }
    }

    /// Returns the links between both sides of a split: where they lead, and the user of the side that connects.
    fn links(&self) -> Vec<(&RedisServer, &'static str)> {
        let [first, others @ ..] = WATCH;
        let beyond = || others.into_iter();
        let to_server = [REPLICA].into_iter().chain(beyond()).map(|user| (&self.servers[0], user));
        let to_sentinel = beyond().map(|user| (&self.sentinels[0], user));
        let back = self.servers[1..].iter().chain(&self.sentinels[1..]).map(|node| (node, first));
        to_server.chain(to_sentinel).chain(back).collect()
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

/// Cuts the server off its replicas and its sentinels. Its clients still reach it.
pub(crate) async fn isolate(server: &RedisServer) {
    for user in WATCH.into_iter().chain([REPLICA]) {
        turn_away(server, user).await;
    }
}

/// Takes all rights from a user, and closes its connections.
pub(crate) async fn turn_away(server: &RedisServer, user: &str) {
    set_rights(server, user, "-@all").await;
}

/// Undoes [`turn_away`].
async fn admit(server: &RedisServer, user: &str) {
    set_rights(server, user, "+@all").await;
}

/// Sends the commands until the server answers: sentinels let it close all connections when they change its role.
async fn set_rights(server: &RedisServer, user: &str, rights: &str) {
    let mut commands = redis::pipe();
    commands.cmd("ACL").arg(&["SETUSER", user, rights]).ignore();
    commands.cmd("CLIENT").arg(&["KILL", "USER", user]).ignore();
    eventually("the server answers", async || match server.client().get_multiplexed_async_connection().await {
        Ok(mut connection) => commands.exec_async(&mut connection).await.is_ok(),
        Err(_) => false,
    })
    .await;
}

/// The user of the replicas.
const REPLICA: &str = "replica";
/// The users of the sentinels.
const WATCH: [&str; 3] = ["watch0", "watch1", "watch2"];
const SERVER: [&str; 6] = ["--repl-diskless-sync-delay", "0", "--masteruser", REPLICA, "--masterauth", "secret"];
const SENTINEL: [&str; 5] = [
    "sentinel down-after-milliseconds main 500",
    "sentinel failover-timeout main 3000",
    "sentinel parallel-syncs main 2",
    "sentinel auth-pass main secret",
    "sentinel sentinel-pass secret",
];
