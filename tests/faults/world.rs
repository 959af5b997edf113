//! What a cell of the matrix runs in: a server of its own, a relay before it, two guards as if in two processes, and
//! for some faults a real process beside them.

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

/// Of all guards here. Shorter than the default of 3 s, for the sake of those who wait for its end.
pub(crate) const LEASE: Duration = SECOND;

pub(crate) struct World {
    pub(crate) server: RedisServer,
    pub(crate) relay: Relay,
    pub(crate) guards: [StampedeGuard; 2],
    /// The process that a fault is about.
    pub(crate) peer: Mutex<Option<Child>>,
    /// For what tests do to the server. Made before anything goes wrong.
    redis: MultiplexedConnection,
}

/// What a peer does with the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    Leads,
    Waits,
}

impl World {
    /// With connections that are made and warm. Over the relay only if it has a part in it: when a process is killed,
    /// its sockets are to be its own.
    pub(crate) async fn new(over_relay: bool, policy: Policy) -> Self {
        let server = RedisServer::with(&["--enable-debug-command", "yes"]);
        let relay = Relay::to(([127, 0, 0, 1], server.port()).into()).await;
        let client = || if over_relay { relay.client() } else { server.client() };
        let guards = [(); 2].map(|()| guard(client()).policy(policy));
        let redis = server.connection().await;
        for (i, guard) in guards.iter().enumerate() {
            guard.fetch(format!("warm-up {i}"), async || Ok::<_, Down>(String::new())).await.expect("an answer");
            guard.shutdown().await;
        }
        eventually("every process hears its wake-ups", async || {
            let asked = redis::cmd("PUBSUB").arg("CHANNELS").query_async(&mut redis.clone()).await;
            let channels: Vec<String> = asked.expect("the server is up");
            channels.len() == guards.len()
        })
        .await;
        Self { server, relay, guards, peer: Mutex::default(), redis }
    }

    /// Sends the server a command, and waits for its answer.
    pub(crate) async fn tell(&self, command: &[&str]) {
        let mut redis = self.redis.clone();
        redis::cmd(command[0]).arg(&command[1..]).exec_async(&mut redis).await.expect("the server does as it is told");
    }

    /// Returns `true` once so many processes besides the leader have registered for the key. That may never happen: on a
    /// busy machine one of them may have given up on the server. A lease is `H`, the token, the stamp, a digit, and eight
    /// letters for each of those who wait.
    pub(crate) async fn is_waited_for_by(&self, processes: usize, key: &str) -> bool {
        let (name, began) = (format!("{{sg:r{key}}}:l"), Instant::now());
        while began.elapsed() < 2 * SECOND {
            let lease = self.redis.clone().get(&name).await.expect("the server is up");
            if lease.is_some_and(|lease| lease.starts_with('H') && lease.len() >= 34 + 8 * processes) {
                return true;
            }
            sleep(3 * MS).await;
        }
        false
    }

    /// Starts a process that leads the key, and returns once it does; or one that asks for it, and returns once that is
    /// about to.
    pub(crate) async fn spawn_peer(&self, role: Role, key: &str) {
        let task = Task { url: self.server.url(), key: key.to_owned(), role };
        let mut peer = processes::spawn(1, "world::peer", &task).pop().expect("a child");
        peer.wait_ready().await;
        *self.peer.lock().await = Some(peer);
    }

    /// Waits until every guard has done what it does behind; for as long as that takes.
    pub(crate) async fn quiet(&self) {
        for guard in &self.guards {
            guard.shutdown().await;
            eventually("every flight has ended", async || guard.in_flight() == 0).await;
        }
    }
}

pub(crate) fn guard(client: redis::Client) -> StampedeGuard {
    StampedeGuard::new(client).lease(LEASE)
}

#[derive(Serialize, Deserialize)]
struct Task {
    url: String,
    key: String,
    role: Role,
}

/// Leads until it is told to go on, and then fills what nobody must see any more; or waits like everybody else.
#[tokio::test(flavor = "multi_thread")]
async fn peer() {
    let Some(Env { task: Task { url, key, role }, .. }) = child::enabled::<Task>() else { return };
    // Connecting is part of its first request, and this machine may be busy.
    let guard = guard(redis::Client::open(url).expect("a client")).op_timeout(30 * SECOND);
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
    guard.shutdown().await;
}
