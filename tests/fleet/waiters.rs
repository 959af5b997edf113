//! Many processes that wait for one key: as many as a lease lists, and more.

use crate::{
    Down, SECOND, never,
    support::{
        Monitor, Origin, RedisServer,
        child::{self, Env},
        eventually,
        processes::{self, Child},
    },
};
use futures_util::{StreamExt, future::join_all};
use redis::{
    AsyncTypedCommands,
    aio::{MultiplexedConnection, PubSub},
};
use serde::{Deserialize, Serialize};
use stampede_guard::StampedeGuard;
use std::collections::HashMap;
use tokio::runtime::Runtime;

#[derive(Serialize, Deserialize)]
struct Task {
    url: String,
    guards: usize,
}

/// Returns a guard that is subscribed, so that it registers with its first question. Its lease outlives the test.
async fn subscribed(url: &str) -> StampedeGuard {
    let client = redis::Client::open(url).expect("a client");
    let guard = StampedeGuard::new(client).store_timeout(60 * SECOND).lease_ttl(600 * SECOND);
    guard.fetch("warm-up", async || Ok::<_, Down>(0)).await.expect("an answer");
    eventually("messages arrive", async || guard.health().subscriber_up == Some(true)).await;
    guard
}

#[tokio::test(flavor = "multi_thread")]
async fn child() {
    let Some(Env { task, .. }) = child::enabled::<Task>() else { return };
    let guards = join_all((0..task.guards).map(|_| subscribed(&task.url))).await;
    child::ready_and_wait().await;
    let answers = join_all(guards.iter().map(|guard| guard.fetch("k", never::<String>))).await;
    child::report(&answers.into_iter().filter(|answer| answer.as_deref().is_ok_and(|value| value == "v")).count());
}

/// A leader, and processes that are ready to wait for it.
struct Fleet {
    leader: StampedeGuard,
    origin: Origin,
    children: Vec<Child>,
}

impl Fleet {
    async fn start(server: &RedisServer, waiters: usize) -> Self {
        let task = Task { url: server.url(), guards: waiters / PROCESSES };
        let mut children = processes::spawn(PROCESSES, "waiters::child", &task);
        for child in &mut children {
            child.wait_ready().await;
        }
        Self { leader: subscribed(&server.url()).await, origin: Origin::gated(), children }
    }

    /// Lets the leader take the lease, and the other processes wait for it from `granted` on. The fetch ends when all
    /// of them wait. Returns the number of their answers.
    async fn run(self, granted: impl AsyncFnOnce(), all_wait: impl AsyncFn() -> bool) -> usize {
        let Self { leader, origin, mut children } = self;
        let call = origin.clone();
        let fetch = async move || {
            call.call().await;
            Ok::<_, Down>("v".to_owned())
        };
        let leading = async {
            leader.fetch("k", fetch).await.expect("an answer");
            leader.drain().await;
        };
        let waiting = async {
            origin.arrived(1).await;
            granted().await;
            for child in &mut children {
                child.go().await;
            }
            eventually("all processes wait", all_wait).await;
            origin.open();
            let mut answered = 0;
            for mut child in children {
                answered += child.result::<usize>().await;
                child.passed().await;
            }
            answered
        };
        tokio::join!(leading, waiting).1
    }
}

/// The channels of all processes, for a count of their messages.
struct Channels(PubSub);

impl Channels {
    async fn of(server: &RedisServer) -> Self {
        let mut channels = server.client().get_async_pubsub().await.expect("the server is up");
        channels.psubscribe("stampede-guard:*").await.expect("the server is up");
        Self(channels)
    }

    /// Returns the number of messages to each process so far.
    async fn messages(self, server: &RedisServer) -> HashMap<String, usize> {
        server.connection().await.publish(END, "").await.expect("the server is up");
        let mut channels = self.0.into_on_message().map(|message| message.get_channel_name().to_owned());
        let mut messages = HashMap::new();
        while let Some(channel) = channels.next().await.filter(|channel| channel != END) {
            *messages.entry(channel).or_default() += 1;
        }
        messages
    }
}

/// Returns how often each process that waits has asked for the entry or the lease.
async fn questions(monitor: Monitor) -> Vec<usize> {
    let mut questions: HashMap<_, usize> = HashMap::new();
    for command in monitor.stop().await {
        if command.name == "EVALSHA" && command.args.contains(QUESTION) {
            *questions.entry(command.client).or_default() += 1;
        }
    }
    questions.into_values().filter(|asked| *asked > 1).collect() // the leader asks once
}

async fn inboxes(redis: &MultiplexedConnection) -> usize {
    redis.clone().strlen(LEASE).await.expect("the server is up").saturating_sub(42) / 8
}

/// Returns the number of scripts that were run since the last reset.
async fn scripts(redis: &MultiplexedConnection) -> usize {
    let stats: String =
        redis::cmd("INFO").arg("commandstats").query_async(&mut redis.clone()).await.expect("the server is up");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Seen to fail with at most 64 inboxes in a lease: the other processes poll.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_within_the_bound_get_a_message_each() {
    let server = RedisServer::start();
    let (fleet, redis) = (Fleet::start(&server, 120).await, server.connection().await);
    let (channels, monitor) = (Channels::of(&server).await, Monitor::start(&server).await);
    let answered = fleet.run(async || {}, async || inboxes(&redis).await == 120).await;
    assert_eq!(answered, 120);
    assert_eq!(questions(monitor).await, [2; 120], "each process registers, and asks when it is woken");
    let messages = channels.messages(&server).await;
    assert_eq!((messages.len(), messages.into_values().max()), (120, Some(1)));
}

/// The lease lists 104 inboxes of processes that have ended, so there is room for 24.
///
/// Seen to fail if a process that is not registered does not poll.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_beyond_the_bound_poll() {
    let server = RedisServer::start();
    let (fleet, redis) = (Fleet::start(&server, 40).await, server.connection().await);
    let channels = Channels::of(&server).await;
    let granted = async || {
        let others: String = (0..104).map(|inbox| format!("{inbox:08}")).collect();
        redis.clone().append(LEASE, others).await.expect("the server is up");
        redis::cmd("CONFIG").arg("RESETSTAT").exec_async(&mut redis.clone()).await.expect("the server is up");
    };
    let all_wait = async || inboxes(&redis).await == 128 && scripts(&redis).await >= 40 + 3 * 16;
    assert_eq!(fleet.run(granted, all_wait).await, 40);
    let messages = channels.messages(&server).await;
    assert_eq!((messages.len(), messages.into_values().max()), (128, Some(1)));
}

/// The task that listens ends with its runtime, and then a message is lost.
///
/// Seen to fail (the waiter asks again after 15 minutes) if a task that listens again reports no gap.
#[test]
fn waiter_asks_again_when_the_subscriber_listens_again() {
    let (server, origin) = (RedisServer::start(), Origin::gated());
    let [listening, rest] = [(); 2].map(|()| Runtime::new().expect("a runtime"));
    let guard = listening.block_on(subscribed(&server.url()));
    let (leading, waiter) = rest.block_on(async {
        let (leader, call) = (subscribed(&server.url()).await, origin.clone());
        let leading = tokio::spawn(async move {
            let fetch = async move || Ok::<_, Down>(call.call().await);
            leader.fetch("k", fetch).await.expect("an answer");
            leader.drain().await
        });
        origin.arrived(1).await;
        let waiter = tokio::spawn({
            let guard = guard.clone();
            async move { guard.fetch("k", never::<usize>).await }
        });
        let redis = server.connection().await;
        eventually("it waits", async || inboxes(&redis).await == 1).await;
        (leading, waiter)
    });
    drop(listening);
    rest.block_on(async {
        origin.open();
        assert_eq!(leading.await.expect("no panic"), 0);
        eventually("it asks again", async || {
            let other = guard.fetch(fastrand::u64(..), async || Ok::<_, Down>(0)).await;
            other.is_ok() && waiter.is_finished()
        })
        .await;
        assert_eq!(waiter.await.expect("no panic").expect("an answer"), 1);
    });
}

const PROCESSES: usize = 4;
/// The lease of the key.
const LEASE: &str = "{sg:rk}:l";
/// Part of the arguments of `get_or_lease` for the key.
const QUESTION: &str = "\"3\" \"{sg:rk}:v";
const END: &str = "stampede-guard:end";
