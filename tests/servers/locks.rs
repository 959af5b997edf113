//! Locks where the server is not simply one Redis that allows everything.

use crate::{
    SECOND, acl, cluster,
    support::{RedisServer, eventually},
};
use redis::{aio::ConnectionLike, cluster::ClusterClient};
use stampede_guard::{
    Lock,
    lock::{Counter, ExistsSetex, Fused, GetSet, IntoServer, LockErrorKind, Recipe, Rename, SetMembership, SetPx},
};
use std::{error::Error, sync::Arc};
use tokio::{sync::Mutex, task::JoinSet};

/// Acquired, found held, queued for by some in turn, extended and released.
async fn everything(lock: Lock, queued: usize, redis: impl ConnectionLike + Clone) {
    let lock = lock.op_timeout(20 * SECOND).wait(60 * SECOND);
    let first = lock.acquire("everything").await.expect("free");
    assert!(lock.try_acquire("everything").await.expect("an answer").is_none());
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut waiting = JoinSet::new();
    for n in 0..queued {
        let (other, order) = (lock.clone(), order.clone());
        waiting.spawn(async move {
            let guard = other.acquire("everything").await.expect("in time");
            order.lock().await.push(n);
            guard.release().await.expect("held");
        });
        // The next one comes when this one has its place.
        eventually("it stands in the queue", async || waiting_for(redis.clone()).await > n).await;
    }
    if lock.guarantees().extendable {
        first.extend(30 * SECOND).await.expect("held");
    }
    first.release().await.expect("held");
    waiting.join_all().await;
    assert_eq!(*order.lock().await, (0..queued).collect::<Vec<_>>());
    lock.check("everything").await.expect("free");
}

/// With either recipe.
async fn waiting_for(mut redis: impl ConnectionLike) -> usize {
    let mut waiting = 0;
    for recipe in ["set-px", "fused"] {
        let name = format!("{{lock:reverything}}:{recipe}:queue");
        waiting += redis::cmd("LLEN").arg(name).query_async::<usize>(&mut redis).await.expect("an answer");
    }
    waiting
}

#[tokio::test]
async fn the_documented_rights_are_enough_for_locks() {
    let server = RedisServer::start();
    let client = acl::app(&server, &acl::documented_for("locks")).await;
    let redis = server.connection().await;
    everything(Lock::new(client.clone()), 5, redis.clone()).await;
    everything(Lock::new(client).recipe(Fused), 5, redis).await;
    assert_eq!(acl::refused(&server).await, [""; 0]);
}

#[tokio::test]
async fn a_right_that_is_missing_is_an_error_in_the_servers_words() {
    let server = RedisServer::start();
    let client = acl::app(&server, &["on", ">secret", "~{lock:*", "+get"]).await;
    let refused = Lock::new(client).op_timeout(20 * SECOND).acquire("refused").await.expect_err("not allowed");
    assert_eq!(refused.kind(), LockErrorKind::Store);
    let source = refused.source().and_then(Error::source).expect("the server's own words").to_string();
    assert!(source.contains("permissions"), "{source}");
}

/// Polled for without rights to channels, and yet in turn.
#[tokio::test]
async fn without_rights_to_channels_those_who_wait_poll() {
    let server = RedisServer::start();
    let rights: Vec<_> =
        acl::documented_for("locks").into_iter().filter(|right| !["+publish", "+subscribe"].contains(right)).collect();
    let client = acl::app(&server, &rights).await;
    let redis = server.connection().await;
    everything(Lock::new(client.clone()), 3, redis.clone()).await;
    everything(Lock::new(client).recipe(Fused), 3, redis).await;
}

#[tokio::test]
async fn locks_over_a_cluster_are_held_waited_for_in_turn_and_released() {
    let nodes = cluster::nodes::<3>().await;
    let client = ClusterClient::new(nodes.iter().map(RedisServer::url).collect::<Vec<_>>()).expect("a client");
    let redis = client.get_async_connection().await.expect("connected");
    everything(Lock::new(client.clone()), 4, redis.clone()).await;
    everything(Lock::new(client.clone()).recipe(Fused), 4, redis.clone()).await;
    let woken = client.clone().into_server().wakes_from(nodes[1].client());
    everything(Lock::new(woken).recipe(Fused), 4, redis.clone()).await;
    let recipes: [Arc<dyn Fn(Lock) -> Lock>; 6] = [
        with(Counter),
        with(ExistsSetex),
        with(GetSet::new()),
        with(Rename),
        with(SetMembership::default()),
        with(SetMembership::with_expiry()),
    ];
    for recipe in recipes {
        everything(recipe(Lock::new(client.clone())), 0, redis.clone()).await;
    }
}

fn with(recipe: impl Recipe + Clone) -> Arc<dyn Fn(Lock) -> Lock> {
    Arc::new(move |lock| lock.recipe(recipe.clone()))
}

#[tokio::test]
async fn over_a_connection_those_who_wait_poll_unless_a_client_is_named() {
    let server = RedisServer::start();
    let manager = server.client().get_connection_manager().await.expect("connected");
    let redis = server.connection().await;
    everything(Lock::new(manager.clone()), 3, redis.clone()).await;
    everything(Lock::new(manager.into_server().wakes_from(server.client())).recipe(SetPx), 3, redis).await;
}
