//! Leaders that die, take long, or compute what is invalidated meanwhile.

use super::{At, SECOND, connected, guard, guards, locked};
use crate::support::{
    Down, MS, Origin, RedisServer,
    child::{self, Env},
    herd, never, processes,
};
use serde::{Deserialize, Serialize};
use stampede_guard::{Outage, StampedeGuard, lock::Redlock, store::LockedStore};
use std::time::Duration;

recipes!(cases {
    one_takes_over_from_a_leader_that_was_killed
    what_was_invalidated_meanwhile_never_lands
});

/// How long a lock lives without its holder.
const TTL: Duration = Duration::from_millis(500);

#[derive(Serialize, Deserialize)]
struct Leads {
    recipe: String,
    at: At,
}

/// A process that leads, says so, and then computes for as long as it lives.
#[tokio::test(flavor = "multi_thread")]
async fn leading_child() {
    let Some(Env { task: Leads { recipe, at }, .. }) = child::enabled::<Leads>() else { return };
    let fetch = async || {
        child::ready_and_wait().await;
        Ok::<_, Down>("old".to_owned())
    };
    guard(locked(&recipe, &at).hold(TTL), &recipe, "killed", TTL).fetch("k", fetch).await.expect("an answer");
}

async fn one_takes_over_from_a_leader_that_was_killed(recipe: &str) {
    let guards = guards::<3>(recipe, "killed", 30 * SECOND).await.map(|guard| guard.wait(1000 * SECOND));
    let task = Leads { recipe: recipe.to_owned(), at: At::shared() };
    let mut leader = processes::spawn(1, "guard::leaders::leading_child", &task).pop().expect("a child");
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

/// No lock ends by itself here: the next one leads as soon as the first one has heard of it. Seen to fail without `Ears`
/// (nobody leads until the first one has ended), and with the fence left out of `fill.lua` (the old value lands).
async fn what_was_invalidated_meanwhile_never_lands(recipe: &str) {
    let [a, b, c] = guards(recipe, "invalidated", 1000 * SECOND).await.map(|guard| guard.wait(1000 * SECOND));
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
    let new = tokio::time::timeout(30 * SECOND, new).await.expect("the old one holds it no more");
    assert_eq!(new.expect("an answer"), "new");
    b.shutdown().await;
    origin.open();
    let old = old.await.expect("no panic").expect("an answer");
    assert_eq!(old, "old", "it was asked for before");
    a.shutdown().await;
    for guard in [a, b, c] {
        assert_eq!(guard.fetch("k", never::<String>).await.expect("a hit"), "new");
    }
}

/// Nobody is connected to hear it. Seen to fail with the locks not looked after when messages were missed.
#[tokio::test]
async fn an_invalidation_that_is_not_heard_of_is_made_up_for() {
    let server = RedisServer::start();
    let at = At { urls: [server.url(), server.url(), server.url()] };
    let stores = [(); 2].map(|()| locked("set_px", &at));
    for store in &stores {
        connected(store).await;
    }
    let [a, b] = stores.map(|store| guard(store, "set_px", "deaf", 1000 * SECOND).wait(1000 * SECOND));
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
    let new = tokio::time::timeout(30 * SECOND, new).await.expect("the old one holds it no more");
    assert_eq!(new.expect("an answer"), 2);
    origin.open();
    old.await.expect("no panic").expect("an answer");
}

/// What this process has dropped it asks for by asking who leads, which takes the lock. Seen to fail with an error wherever
/// the lock does not answer.
#[tokio::test]
async fn what_others_have_stored_is_served_without_the_servers_of_the_lock() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let guards = [(); 2].map(|()| {
        let lock = Redlock::with(servers[1..].iter().map(RedisServer::client)).server_timeout(5 * SECOND);
        let store = LockedStore::new(servers[0].client(), lock).expect("it frees");
        StampedeGuard::new(store).op_timeout(30 * SECOND).outage(Outage::FailClosed)
    });
    guards[0].invalidate("k").await.expect("acknowledged");
    assert_eq!(guards[1].fetch("k", async || Ok::<_, Down>(1)).await.expect("an answer"), 1);
    guards[1].shutdown().await;
    for server in &servers[1..] {
        server.kill();
    }
    assert_eq!(guards[0].fetch("k", never::<i32>).await.expect("a hit"), 1);
}
