//! Leaders that crash, take long, or fetch a value that is invalidated in the meantime.

use crate::{
    At, SECOND, connected, guard, guards, locked,
    support::{
        Down, MS, Origin, RedisServer,
        child::{self, Env},
        herd, never, processes,
    },
};
use lock_table::LockedStore;
use lock_table::Redlock;
use serde::{Deserialize, Serialize};
use stampede_guard::{StampedeGuard, StoreFailure};
use std::time::Duration;

recipes!(cases {
    one_caller_takes_over_from_killed_leader
    fill_is_dropped_after_concurrent_invalidation
});

/// TTL of a lock without its holder.
const TTL: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
struct Leads {
    recipe: String,
    at: At,
}

/// Child process: leads, reports it, and keeps fetching until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn leading_child() {
    let Some(Env { task: Leads { recipe, at }, .. }) = child::enabled::<Leads>() else { return };
    let fetch = async || {
        child::ready_and_wait().await;
        Ok::<_, Down>("old".to_owned())
    };
    guard(locked(&recipe, &at).hold(TTL), &recipe, "killed", TTL).fetch("k", fetch).await.expect("an answer");
}

async fn one_caller_takes_over_from_killed_leader(recipe: &str) {
    let guards = guards::<3>(recipe, "killed", 30 * SECOND).await.map(|guard| guard.wait_timeout(1000 * SECOND));
    let task = Leads { recipe: recipe.to_owned(), at: At::shared() };
    let mut leader = processes::spawn(1, "leaders::leading_child", &task).pop().expect("a child");
    leader.wait_ready().await;
    let origin = Origin::new();
    let callers = herd(60, |i| {
        let (guard, origin) = (guards[i % 3].clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.work(20 * MS).await;
                Ok::<_, Down>("new".to_owned())
            };
            guard.fetch("k", fetch).await.expect("an answer")
        }
    });
    leader.kill().await;
    assert_eq!(callers.await, vec!["new"; 60]);
    assert_eq!(origin.calls(), 1);
}

/// No lock expires during this test: the next leader starts as soon as the first holder receives the invalidation
/// message.
///
/// Seen to fail without `MessageForwarder` (no caller leads until the first fetch has ended), and without the fence in
/// `fill.lua` (the old value is stored).
async fn fill_is_dropped_after_concurrent_invalidation(recipe: &str) {
    let [a, b, c] = guards(recipe, "invalidated", 1000 * SECOND).await.map(|guard| guard.wait_timeout(1000 * SECOND));
    let origin = Origin::gated();
    let old = tokio::spawn({
        let (a, origin) = (a.clone(), origin.clone());
        async move {
            let fetch = async move || {
                origin.call().await;
                Ok::<_, Down>("old".to_owned())
            };
            a.fetch("k", fetch).await
        }
    });
    origin.arrived(1).await;
    b.invalidate("k").await.expect("acknowledged");
    let new = b.fetch("k", async || Ok::<_, Down>("new".to_owned()));
    let new = tokio::time::timeout(30 * SECOND, new).await.expect("the old leader has released the lock");
    assert_eq!(new.expect("an answer"), "new");
    b.drain().await;
    origin.open();
    let old = old.await.expect("no panic").expect("an answer");
    assert_eq!(old, "old", "this caller asked before the invalidation");
    a.drain().await;
    for guard in [a, b, c] {
        assert_eq!(guard.fetch("k", never::<String>).await.expect("a hit"), "new");
    }
}

/// No subscriber is connected when the invalidation message is sent.
///
/// Seen to fail if the store does not verify its locks after a gap in the messages.
#[tokio::test]
async fn missed_invalidation_frees_lock_after_reconnect() {
    let server = RedisServer::start();
    let at = At { urls: [server.url(), server.url(), server.url()] };
    let stores = [(); 2].map(|()| locked("set_px", &at));
    for store in &stores {
        connected(store).await;
    }
    let [a, b] = stores.map(|store| guard(store, "set_px", "deaf", 1000 * SECOND).wait_timeout(1000 * SECOND));
    let origin = Origin::gated();
    let old = tokio::spawn({
        let origin = origin.clone();
        async move { a.fetch("k", async move || Ok::<_, Down>(origin.call().await)).await }
    });
    origin.arrived(1).await;
    let mut redis = server.connection().await;
    redis::cmd("CLIENT").arg(&["KILL", "TYPE", "pubsub"]).exec_async(&mut redis).await.expect("killed");
    b.invalidate("k").await.expect("acknowledged");
    let new = b.fetch("k", async || Ok::<_, Down>(2));
    let new = tokio::time::timeout(30 * SECOND, new).await.expect("the old leader has released the lock");
    assert_eq!(new.expect("an answer"), 2);
    origin.open();
    old.await.expect("no panic").expect("an answer");
}

/// After its own invalidation a process looks the key up with a lease request, which acquires the lock. If the lock
/// servers are down, the stored entry is served nevertheless.
///
/// Seen to fail if every error of the lock is an error of the lookup.
#[tokio::test]
async fn stored_entry_is_served_while_lock_servers_are_down() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let guards = [(); 2].map(|()| {
        let lock = Redlock::with(servers[1..].iter().map(RedisServer::client)).server_timeout(5 * SECOND);
        let store = LockedStore::new(servers[0].client(), lock).expect("the recipe is accepted");
        StampedeGuard::new(store).store_timeout(30 * SECOND).on_store_failure(StoreFailure::FailClosed)
    });
    guards[0].invalidate("k").await.expect("acknowledged");
    assert_eq!(guards[1].fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    guards[1].drain().await;
    for server in &servers[1..] {
        server.kill();
    }
    assert_eq!(guards[0].fetch("k", never::<i32>).await.expect("a hit"), 1);
}
