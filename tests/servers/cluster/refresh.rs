//! `refresh` while the master of its key changes. Its lease is lost then, or is left at the old master.

use super::shards::{Resharder, Shards, endpoint, first_owner, slot_of};
use crate::{Down, MS, SECOND, support::RedisServer};
use stampede_guard::{RedisEndpoint, StampedeGuard};
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
};
use tokio::{task::JoinSet, time::sleep};

const KEY: &str = "k";

/// Returns the slot of the key in the view.
async fn slot(node: &RedisServer) -> usize {
    slot_of(node, &format!("v:{KEY}")).await
}

/// Refreshes the value without a pause, by four callers of each of two processes, until `change` has ended and a while
/// later. A write is the number of a call, and a fetch reads the last one when it begins. No call returns a value from
/// before it, and calls share their fetches before and after.
///
/// Seen to fail, in both tests, if the entry of the first holder that a refresh meets counts.
async fn refresh_during(endpoint: &RedisEndpoint, change: impl Future<Output = ()>) {
    let (writes, shared, ended) =
        (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let guards = [(); 2].map(|()| StampedeGuard::new(endpoint.clone()).lease_ttl(SECOND));
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let (cache, writes, shared, ended) =
            (guards[caller % 2].cache::<u64>("v"), writes.clone(), shared.clone(), ended.clone());
        callers.spawn(async move {
            while !ended.load(SeqCst) {
                let (written, fetched) = (writes.fetch_add(1, SeqCst) + 1, Arc::<AtomicU64>::default());
                let (writes, fetch) = (writes.clone(), fetched.clone());
                let fetch = async move || {
                    let read = writes.load(SeqCst);
                    fetch.store(read, SeqCst);
                    sleep(20 * MS).await;
                    Ok::<_, Down>(read)
                };
                let value = cache.refresh(KEY, fetch).await.expect("a value");
                assert!(value >= written, "{value} after write {written}");
                shared.fetch_add(u64::from(value != fetched.load(SeqCst)), SeqCst);
            }
        });
    }
    sleep(SECOND).await;
    assert!(shared.load(SeqCst) > 0, "shared before");
    change.await;
    let before = shared.load(SeqCst);
    while shared.load(SeqCst) < before + 20 && !callers.is_empty() {
        tokio::select! {
            () = sleep(20 * MS) => {}
            Some(caller) = callers.join_next() => caller.expect("nothing from before its call"),
        }
    }
    ended.store(true, SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.expect("nothing from before its call");
    }
}

#[tokio::test]
async fn refresh_over_a_failover_returns_nothing_older() {
    let shards = Shards::start().await;
    let shard = first_owner(slot(&shards.masters[0]).await);
    refresh_during(&shards.endpoint(), async {
        shards.masters[shard].kill();
        shards.promoted(shard).await;
    })
    .await;
}

#[tokio::test]
async fn refresh_over_moving_slots_returns_nothing_older() {
    let nodes = super::nodes::<3>().await;
    let (slot, resharder) = (slot(&nodes[0]).await, Resharder::of(&nodes).await);
    refresh_during(&endpoint(&nodes), async {
        let mut from = first_owner(slot);
        for to in [1, 2, 1, 2].map(|step| (from + step) % 3) {
            resharder.begin_move(slot, from, to).await;
            sleep(100 * MS).await;
            resharder.move_slot(slot, from, to).await;
            (from, _) = (to, sleep(200 * MS).await);
        }
    })
    .await;
}
