//! Each class of server errors, provoked on a real server: no caller fails, and the cache recovers when the cause ends.

use crate::{
    SECOND, cluster,
    kit::{Events, answers, calls_of_a_herd, command, hits, patient, recovers, tell},
    never,
    support::{CLOSED_PORT, RedisServer, eventually},
};
use redis::AsyncTypedCommands;
use stampede_guard::{
    RedisStore, StampedeGuard,
    store::{CacheKey, Inbox, LeaseRequest, Store, StoreError, Token},
};

/// Returns a guard that has stored an entry under the key `kept`.
async fn warm(server: &RedisServer) -> StampedeGuard {
    let guard = patient(server.client());
    hits(&guard, "kept").await;
    guard.drain().await;
    assert!(hits(&guard, "kept").await);
    guard
}

async fn get(store: &RedisStore) -> StoreError {
    store.get(&CacheKey::new("sg", 0, "x")).await.expect_err("the server answers with an error")
}

async fn lead(store: &RedisStore) -> StoreError {
    let ask = LeaseRequest::new(Token::unique(Inbox::unique()), SECOND);
    store.get_or_lease(&CacheKey::new("sg", 0, "x"), ask).await.expect_err("the server answers with an error")
}

/// Reports whether the error means that the server serves no request now.
fn is_unavailable(error: &StoreError) -> bool {
    !error.is_refused() && !error.is_disconnected()
}

/// Asserts that the stored entry is a hit while writes are refused.
async fn hits_go_on(guard: &StampedeGuard) {
    assert_eq!(guard.fetch("kept", never::<i32>).await.expect("a hit"), 1);
}

#[tokio::test]
async fn oom_refuses_leases_and_keeps_hits() {
    let server = RedisServer::start();
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    command::<()>(&server, "CONFIG SET maxmemory 1").await;
    assert!(lead(&store).await.is_refused());
    answers(&guard, "new").await;
    hits_go_on(&guard).await;
    guard.invalidate("kept").await.expect("a command that frees memory is allowed");
    command::<()>(&server, "CONFIG SET maxmemory 0").await;
    recovers(&guard).await;
}

#[tokio::test]
async fn noreplicas_refuses_leases_and_keeps_hits() {
    let server = RedisServer::start();
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    command::<()>(&server, "CONFIG SET min-replicas-to-write 1").await;
    assert!(lead(&store).await.is_refused());
    answers(&guard, "new").await;
    hits_go_on(&guard).await;
    let error = guard.invalidate("kept").await.expect_err("writes are refused");
    assert_eq!(error.kind(), stampede_guard::ErrorKind::Store);
    command::<()>(&server, "CONFIG SET min-replicas-to-write 0").await;
    guard.drain().await;
    assert!(!hits(&guard, "kept").await, "the invalidation was retried");
    recovers(&guard).await;
}

/// Turns the server into a replica without a master.
async fn orphan(server: &RedisServer) {
    command::<()>(server, &format!("REPLICAOF 127.0.0.1 {CLOSED_PORT}")).await;
}

#[tokio::test]
async fn readonly_refuses_leases_and_keeps_hits() {
    let server = RedisServer::start();
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    orphan(&server).await;
    assert!(lead(&store).await.is_refused());
    answers(&guard, "new").await;
    hits_go_on(&guard).await;
    command::<()>(&server, "REPLICAOF NO ONE").await;
    recovers(&guard).await;
}

#[tokio::test]
async fn masterdown_makes_store_unavailable() {
    let server = RedisServer::with(&["--replica-serve-stale-data", "no"]);
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    orphan(&server).await;
    let error = get(&store).await;
    assert!(is_unavailable(&error), "{error}");
    answers(&guard, "kept").await;
    command::<()>(&server, "REPLICAOF NO ONE").await;
    recovers(&guard).await;
    hits_go_on(&guard).await;
}

#[tokio::test]
async fn noscript_costs_one_more_command() {
    let server = RedisServer::start();
    let guards = [warm(&server).await, warm(&server).await];
    for key in ["a", "b"] {
        command::<()>(&server, "SCRIPT FLUSH").await;
        assert_eq!(calls_of_a_herd(&guards, key).await, 1);
        assert!(hits(&guards[0], key).await);
    }
    assert_eq!(guards.map(|guard| guard.stats().store_errors), [0, 0]);
}

#[tokio::test]
async fn wrong_types_are_a_miss_and_are_overwritten() {
    let server = RedisServer::start();
    let guards = [warm(&server).await, warm(&server).await];
    let mut redis = server.connection().await;
    let entries: Vec<_> = (0..16).map(|digit| format!("v3.{digit:x}")).collect(); // of all layouts
    let (lease, both) = (vec!["l".to_owned()], [&entries[..], &["l".to_owned()]].concat());
    for (key, names) in [("v", &entries), ("l", &lease), ("both", &both)] {
        for name in names {
            redis.rpush(format!("{{sg:r{key}}}:{name}"), "x").await.expect("an answer");
        }
        assert_eq!(calls_of_a_herd(&guards, key).await, 1, "{key}");
        assert!(hits(&guards[0], key).await);
    }
    assert_eq!(guards.map(|guard| guard.stats().store_errors), [0, 0]);
}

#[tokio::test]
async fn busy_makes_store_unavailable() {
    let server = RedisServer::with(&["--lua-time-limit", "10"]);
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    let mut redis = server.connection().await;
    let endless = async {
        let script = redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut redis).await;
        script.expect_err("the script was killed");
    };
    let meanwhile = async {
        eventually("the server says that it is busy", async || {
            store.get(&CacheKey::new("sg", 0, "x")).await.is_err_and(|error| is_unavailable(&error))
        })
        .await;
        answers(&guard, "kept").await;
        command::<()>(&server, "SCRIPT KILL").await;
    };
    tokio::join!(endless, meanwhile);
    recovers(&guard).await;
    hits_go_on(&guard).await;
}

/// The server reloads its data slowly. It answers after each 2 MiB.
#[tokio::test]
async fn loading_makes_store_unavailable() {
    let server = RedisServer::with_debug_command(&["--rdbcompression", "no"]);
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    command::<()>(&server, "DEBUG POPULATE 1000 filler 20000").await;
    command::<()>(&server, "CONFIG SET key-load-delay 1000").await;
    let client = server.client();
    let reload = async { tell::<()>(&client, "DEBUG RELOAD").await };
    let meanwhile = async {
        eventually("the server loads", async || {
            store.get(&CacheKey::new("sg", 0, "x")).await.is_err_and(|error| is_unavailable(&error))
        })
        .await;
        answers(&guard, "kept").await;
    };
    tokio::join!(reload, meanwhile);
    recovers(&guard).await;
    hits_go_on(&guard).await;
}

#[tokio::test]
async fn clusterdown_makes_store_unavailable() {
    let server = RedisServer::cluster_node(&[]);
    let (guard, store) = (patient(server.client()), RedisStore::new(server.client()));
    let error = get(&store).await;
    assert!(is_unavailable(&error), "{error}");
    answers(&guard, "k").await;
    server.add_slots(0..=16_383).await;
    recovers(&guard).await;
}

/// A single-server client talks to a cluster node. The origin answers keys of other nodes, and an event names the
/// remedy.
#[tokio::test]
async fn moved_error_hints_at_cluster_client() {
    let nodes = cluster::nodes::<2>().await;
    let (guard, events) = (patient(nodes[0].client()), Events::listen());
    let mut elsewhere = 0;
    for key in 0..16 {
        let key = format!("k{key}");
        answers(&guard, &key).await;
        elsewhere += usize::from(!hits(&guard, &key).await);
        guard.drain().await;
    }
    assert!((1..16).contains(&elsewhere), "{elsewhere}");
    assert_eq!(events.about("RedisEndpoint::cluster"), 1, "{}", events.all());
}
