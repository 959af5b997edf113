//! A cache under a lock with restricted rights, and over a cluster.

use crate::{
    Down, SECOND,
    calls::{calls_of_a_herd, command, hits, patient},
    never,
    rights::{app, documented, refused},
    support::{Origin, RedisServer},
};
use lock_table::{GetSet, LabRecipe, LockedStore, Rename, SetMembership};
use stampede_guard::{
    ErrorKind,
    lock::{FencedLock, IntoEndpoint, RedisEndpoint, SetPx},
};

/// Exercises two guards that share one lock store.
async fn guarded(stores: [LockedStore; 2]) {
    let [a, b] = stores.map(|store| patient(store).failure_ttl(30 * SECOND));
    for key in ["one", "two"] {
        assert_eq!(calls_of_a_herd(&[a.clone(), b.clone()], key).await, 1);
        assert!(hits(&b, key).await);
        a.invalidate(key).await.expect("acknowledged");
        assert!(!hits(&b, key).await);
        b.drain().await;
    }
    let failed = a.fetch("failed", async || Err::<i32, _>(Down)).await.expect_err("down");
    assert_eq!(failed.kind(), ErrorKind::Origin);
    a.drain().await;
    let error = b.fetch("failed", never::<i32>).await.expect_err("down");
    assert!(error.kind() == ErrorKind::Origin && error.retry_in().is_some(), "{error:?}");
    // One heartbeat shows whether the user may extend the lease.
    let (hasty, origin) = (a.lease_ttl(SECOND / 5), Origin::new());
    let long = hasty.fetch("long", async move || Ok::<_, Down>(origin.work(SECOND / 5).await));
    assert_eq!(long.await.expect("an answer"), 1);
    hasty.drain().await;
}

fn locked(redis: impl IntoEndpoint, recipe: impl LabRecipe) -> LockedStore {
    LockedStore::new(redis, recipe).expect("the recipe is accepted")
}

#[tokio::test]
async fn documented_rights_suffice_for_guard_over_locks() {
    let server = RedisServer::start();
    let rights: Vec<_> = documented().into_iter().chain(["+exists", "+zpopmin"]).collect();
    let client = app(&server, &rights).await;
    guarded([(); 2].map(|()| locked(client.clone(), SetPx))).await;
    command::<()>(&server, "FLUSHALL").await;
    guarded([(); 2].map(|()| locked(client.clone(), FencedLock))).await;
    assert_eq!(refused(&server).await, [""; 0]);
}

/// The lease script of the store is loaded when the connection of its locks is made.
///
/// Seen to fail if that handshake loads the scripts of the recipes only.
#[tokio::test]
async fn guard_over_locks_needs_no_eval_right() {
    let server = RedisServer::start();
    let rights: Vec<_> = documented().into_iter().filter(|right| *right != "+eval").collect();
    let client = app(&server, &[&rights[..], &["+exists", "+zpopmin"]].concat()).await;
    let guard = patient(locked(client, SetPx));
    hits(&guard, "k").await;
    guard.drain().await;
    assert!(hits(&guard, "k").await);
}

#[tokio::test]
async fn guard_over_locks_works_in_cluster() {
    let nodes = RedisServer::cluster::<3>(&[]).await;
    let endpoint = || RedisEndpoint::cluster(nodes.iter().map(RedisServer::url)).expect("an endpoint");
    let flushed = async || {
        for node in &nodes {
            command::<()>(node, "FLUSHALL").await;
        }
    };
    guarded([(); 2].map(|()| locked(endpoint(), SetPx))).await;
    flushed().await;
    guarded([(); 2].map(|()| locked(endpoint(), SetMembership::with_expiry()))).await;
    flushed().await;
    guarded([(); 2].map(|()| locked(endpoint(), GetSet::new()))).await;
    flushed().await;
    guarded([(); 2].map(|()| locked(endpoint().subscribe_via(nodes[0].client()), Rename))).await;
}
