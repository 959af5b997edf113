//! Each error that a server answers with, provoked for real: nobody fails, and when its cause ends all is as before.

use crate::{
    SECOND, cluster,
    kit::{Events, answers, calls_of_a_herd, command, hits, patient, recovers, tell},
    never,
    support::{RedisServer, eventually, free_port},
};
use redis::AsyncTypedCommands;
use stampede_guard::{
    RedisStore, StampedeGuard,
    store::{Address, Ask, Inbox, Store, StoreError, Token},
};

/// A guard with an entry of the key `kept`.
async fn warm(server: &RedisServer) -> StampedeGuard {
    let guard = patient(server.client());
    hits(&guard, "kept").await;
    guard.shutdown().await;
    assert!(hits(&guard, "kept").await);
    guard
}

async fn get(store: &RedisStore) -> StoreError {
    store.get(&Address::new("sg", 0, "x")).await.expect_err("the server is in trouble")
}

async fn lead(store: &RedisStore) -> StoreError {
    let ask = Ask { token: Token::unique(Inbox::unique()), lease: SECOND, seen: None };
    store.lead(&Address::new("sg", 0, "x"), ask).await.expect_err("the server is in trouble")
}

/// It serves nobody now: whoever asks goes on without.
fn is_unavailable(error: &StoreError) -> bool {
    !error.is_refused() && !error.is_disconnected()
}

/// A hit is one, whatever may not be written.
async fn hits_go_on(guard: &StampedeGuard) {
    assert_eq!(guard.fetch("kept", never::<i32>).await.expect("a hit"), 1);
}

#[tokio::test]
async fn oom_refuses_what_is_new() {
    let server = RedisServer::start();
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    command::<()>(&server, "CONFIG SET maxmemory 1").await;
    assert!(lead(&store).await.is_refused());
    answers(&guard, "new").await;
    hits_go_on(&guard).await;
    guard.invalidate("kept").await.expect("what frees memory is allowed");
    command::<()>(&server, "CONFIG SET maxmemory 0").await;
    recovers(&guard).await;
}

#[tokio::test]
async fn noreplicas_refuses_what_is_new() {
    let server = RedisServer::start();
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    command::<()>(&server, "CONFIG SET min-replicas-to-write 1").await;
    assert!(lead(&store).await.is_refused());
    answers(&guard, "new").await;
    hits_go_on(&guard).await;
    let error = guard.invalidate("kept").await.expect_err("it may not be written");
    assert_eq!(error.kind(), stampede_guard::ErrorKind::Store);
    command::<()>(&server, "CONFIG SET min-replicas-to-write 0").await;
    guard.shutdown().await;
    assert!(!hits(&guard, "kept").await, "the invalidation was made up for");
    recovers(&guard).await;
}

/// A replica that has lost its master.
async fn orphan(server: &RedisServer) {
    command::<()>(server, &format!("REPLICAOF 127.0.0.1 {}", free_port())).await;
}

#[tokio::test]
async fn readonly_refuses_what_is_new() {
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
async fn masterdown_serves_nobody() {
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
    assert_eq!(guards.map(|guard| guard.report().store_errors), [0, 0]);
}

#[tokio::test]
async fn wrong_types_are_a_miss_and_are_overwritten() {
    let server = RedisServer::start();
    let guards = [warm(&server).await, warm(&server).await];
    let mut redis = server.connection().await;
    for (key, names) in [("v", &["v2.0"][..]), ("l", &["l"]), ("both", &["v2.0", "l"])] {
        for name in names {
            redis.rpush(format!("{{sg:r{key}}}:{name}"), "x").await.expect("an answer");
        }
        assert_eq!(calls_of_a_herd(&guards, key).await, 1, "{key}");
        assert!(hits(&guards[0], key).await);
    }
    assert_eq!(guards.map(|guard| guard.report().store_errors), [0, 0]);
}

#[tokio::test]
async fn busy_serves_nobody() {
    let server = RedisServer::with(&["--busy-reply-threshold", "10"]);
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    let mut redis = server.connection().await;
    let endless = async {
        let script = redis::cmd("EVAL").arg("while true do end").arg(0).exec_async(&mut redis).await;
        script.expect_err("it was killed");
    };
    let meanwhile = async {
        eventually("the server says that it is busy", async || {
            store.get(&Address::new("sg", 0, "x")).await.is_err_and(|error| is_unavailable(&error))
        })
        .await;
        answers(&guard, "kept").await;
        command::<()>(&server, "SCRIPT KILL").await;
    };
    tokio::join!(endless, meanwhile);
    recovers(&guard).await;
    hits_go_on(&guard).await;
}

/// A server that reads its data again, slowly.
#[tokio::test]
async fn loading_serves_nobody() {
    let server =
        RedisServer::with(&["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"]);
    let (guard, store) = (warm(&server).await, RedisStore::new(server.client()));
    command::<()>(&server, "DEBUG POPULATE 1000 filler 100").await;
    command::<()>(&server, "CONFIG SET key-load-delay 1000").await;
    let client = server.client();
    let reload = async { tell::<()>(&client, "DEBUG RELOAD").await };
    let meanwhile = async {
        eventually("the server loads", async || {
            store.get(&Address::new("sg", 0, "x")).await.is_err_and(|error| is_unavailable(&error))
        })
        .await;
        answers(&guard, "kept").await;
    };
    tokio::join!(reload, meanwhile);
    recovers(&guard).await;
    hits_go_on(&guard).await;
}

#[tokio::test]
async fn clusterdown_serves_nobody() {
    let port = free_port().to_string();
    let server = RedisServer::with(&["--cluster-enabled", "yes", "--cluster-port", &port]);
    let (guard, store) = (patient(server.client()), RedisStore::new(server.client()));
    let error = get(&store).await;
    assert!(is_unavailable(&error), "{error}");
    answers(&guard, "k").await;
    command::<()>(&server, "CLUSTER ADDSLOTSRANGE 0 16383").await;
    recovers(&guard).await;
}

/// A client of one server in front of a cluster: what lives elsewhere is answered by the origin, and somebody is told.
#[tokio::test]
async fn moved_names_the_way_out() {
    let nodes = cluster::nodes::<2>().await;
    let (guard, events) = (patient(nodes[0].client()), Events::listen());
    let mut elsewhere = 0;
    for key in 0..16 {
        let key = format!("k{key}");
        answers(&guard, &key).await;
        elsewhere += usize::from(!hits(&guard, &key).await);
        guard.shutdown().await;
    }
    assert!((1..16).contains(&elsewhere), "{elsewhere}");
    assert_eq!(events.about("ClusterClient"), 1, "{}", events.all());
}
