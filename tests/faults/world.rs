//! The environment of one cell of the matrix: a server, a relay in front of it, and two guards that stand for
//! processes. Faults of a process add a real child process.

use crate::{
    Down, MS, SECOND,
    support::{
        RedisServer, Relay,
        child::{self, Env},
        eventually,
        processes::{self, Child},
    },
};
use redis::{AsyncTypedCommands, aio::MultiplexedConnection};
use serde::{Deserialize, Serialize};
use stampede_guard::{Policy, StampedeGuard};
use std::time::Duration;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep},
};

/// Lease TTL of all guards here. Shorter than the default of 3 s to shorten the tests that wait for its end.
pub(crate) const LEASE: Duration = SECOND;

pub(crate) struct World {
    pub(crate) server: RedisServer,
    pub(crate) relay: Relay,
    pub(crate) guards: [StampedeGuard; 2],
    /// The child process that the fault hits.
    pub(crate) peer: Mutex<Option<Child>>,
    /// Connection for commands of the tests, opened before the fault.
    redis: MultiplexedConnection,
}

/// What a peer does with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Leads,
    Waits,
}

impl World {
    /// Returns a world whose guards are connected. They use the relay only for network faults, so that killing a
    /// process closes its own sockets.
    pub(crate) async fn new(over_relay: bool, policy: Policy) -> Self {
        let server = RedisServer::with_debug_command(&[]);
        let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
        let client = || if over_relay { relay.client() } else { server.client() };
        let guards = [(); 2].map(|()| guard(client()).policy(policy));
        let redis = server.connection().await;
        for (i, guard) in guards.iter().enumerate() {
            guard.fetch(format!("warm-up {i}"), async || Ok::<_, Down>(String::new())).await.expect("an answer");
            guard.drain().await;
        }
        eventually("every guard is subscribed", async || {
            let asked = redis::cmd("PUBSUB").arg("CHANNELS").query_async(&mut redis.clone()).await;
            let channels: Vec<String> = asked.expect("the server is up");
            channels.len() == guards.len()
        })
        .await;
        Self { server, relay, guards, peer: Mutex::default(), redis }
    }

    /// Sends a command to the server, and waits for the reply.
    pub(crate) async fn tell(&self, command: &[&str]) {
        let mut redis = self.redis.clone();
        redis::cmd(command[0]).arg(&command[1..]).exec_async(&mut redis).await.expect("the server accepts the command");
    }

    /// Waits until `processes` waiting processes have registered for the key. Returns `false` after two seconds,
    /// because on a busy machine a process may have given up on the server.
    ///
    /// A lease is `H`, the token, the stamp, nine digits, and eight letters per waiting process.
    pub(crate) async fn is_waited_for_by(&self, processes: usize, key: &str) -> bool {
        let (name, began) = (format!("{{sg:r{key}}}:l"), Instant::now());
        while began.elapsed() < 2 * SECOND {
            let lease = self.redis.clone().get(&name).await.expect("the server is up");
            if lease.is_some_and(|lease| lease.starts_with('H') && lease.len() >= 42 + 8 * processes) {
                return true;
            }
            sleep(3 * MS).await;
        }
        false
    }

    /// Starts a child process. Returns when a leader leads the key, or when a waiter is about to request it.
    pub(crate) async fn spawn_peer(&self, role: Role, key: &str) {
        let task = Task { url: self.server.url(), key: key.to_owned(), role };
        let mut peer = processes::spawn(1, "world::peer", &task).pop().expect("a child");
        peer.wait_ready().await;
        *self.peer.lock().await = Some(peer);
    }

    /// Waits until the background work of every guard has ended.
    pub(crate) async fn quiet(&self) {
        for guard in &self.guards {
            assert_eq!(guard.drain_within(60 * SECOND).await, 0);
            eventually("every flight has ended", async || guard.in_flight() == 0).await;
        }
    }
}

pub(crate) fn guard(client: redis::Client) -> StampedeGuard {
    StampedeGuard::new(client).lease_ttl(LEASE)
}

#[derive(Serialize, Deserialize)]
struct Task {
    url: String,
    key: String,
    role: Role,
}

/// Child process. A leader fetches until the parent says so, and then fills a value that no caller may get. A waiter
/// only requests the key.
#[tokio::test(flavor = "multi_thread")]
async fn peer() {
    let Some(Env { task: Task { url, key, role }, .. }) = child::enabled::<Task>() else { return };
    // The first request includes connecting, and the machine may be busy.
    let guard = guard(redis::Client::open(url).expect("a client")).store_timeout(30 * SECOND);
    let fetch = {
        let key = key.clone();
        async move || {
            if role == Role::Leads {
                child::ready_and_wait().await;
                return Ok::<_, Down>(format!("{key}@0"));
            }
            Ok(format!("{key}@1"))
        }
    };
    let asked = tokio::spawn({
        let (guard, key) = (guard.clone(), key.clone());
        async move { guard.fetch(key, fetch).await }
    });
    if role == Role::Waits {
        child::ready_and_wait().await;
    }
    let answer: String = asked.await.expect("no panic").expect("an answer");
    assert!(answer.starts_with(&format!("{key}@")), "{answer}");
    assert_eq!(guard.drain_within(60 * SECOND).await, 0);
}
