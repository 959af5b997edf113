//! Masters and subscribed nodes that die.

use super::shards::{Shards, first_owner, keys_of};
use crate::{
    Down, MS, SECOND,
    kit::{command, hits},
    support::{RedisServer, eventually},
};
use stampede_guard::{
    Lock, OutageCacheConfig, Policy, RedisStore, StampedeGuard,
    lock::{FencedLock, SetPx},
    store::{CacheKey, LeaseReply, LeaseRequest, Store},
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Instant,
};
use tokio::task::JoinSet;

const PROCESSES: usize = 4;
const KEYS: usize = 8;

/// Counts the calls for each process and key. A guard stands for a process: guards share nothing with each other.
struct Load {
    guards: [StampedeGuard; PROCESSES],
    keys: Vec<String>,
    calls: Vec<AtomicUsize>,
    failed: AtomicUsize,
    ended: AtomicBool,
}

impl Load {
    /// Fetches each key in each process every ten milliseconds.
    fn start(guards: &[StampedeGuard; PROCESSES], keys: &[String]) -> (Arc<Self>, JoinSet<()>) {
        let load = Arc::new(Self {
            guards: guards.clone(),
            keys: keys.to_vec(),
            calls: (0..PROCESSES * KEYS).map(|_| AtomicUsize::new(0)).collect(),
            failed: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        });
        let mut callers = JoinSet::new();
        for caller in 0..PROCESSES * KEYS {
            let load = load.clone();
            callers.spawn(async move {
                while !load.ended.load(SeqCst) {
                    let called = load.clone();
                    let fetch = async move || {
                        called.calls[caller].fetch_add(1, SeqCst);
                        tokio::time::sleep(20 * MS).await;
                        Ok::<_, Down>(1)
                    };
                    let answer = load.guards[caller / KEYS].fetch(&load.keys[caller % KEYS], fetch);
                    load.failed.fetch_add(usize::from(answer.await.is_err()), SeqCst);
                    tokio::time::sleep(10 * MS).await;
                }
            });
        }
        (load, callers)
    }
}

/// Answers that could not be stored are kept for longer than the failover takes, so that each process calls the origin
/// once. Seen to fail, with several calls, if they are kept for a second.
#[tokio::test]
async fn master_killed_under_load_costs_a_call_per_process() {
    let shards = Shards::start().await;
    let guards = [(); PROCESSES].map(|()| {
        let outage = OutageCacheConfig::max_bytes(1 << 20).ttl(30 * SECOND);
        StampedeGuard::new(shards.endpoint()).policy(Policy::fresh_for(600 * SECOND)).outage_cache(outage)
    });
    let keys = keys_of(&shards.masters, 0, KEYS + 1).await;
    for guard in &guards {
        for key in &keys[..KEYS] {
            hits(guard, key).await;
        }
        guard.drain().await;
    }
    shards.replicated(0).await;
    let (load, mut callers) = Load::start(&guards, &keys[..KEYS]);
    tokio::time::sleep(SECOND / 2).await;
    assert!(load.calls.iter().all(|calls| calls.load(SeqCst) == 0), "all processes share");

    shards.masters[0].kill();
    let killed = Instant::now();
    eventually("the replica serves", async || super::shards::serves(&shards.replicas[0]).await).await;
    let serves = Instant::now();
    eventually("answers are shared again", async || {
        let key = &keys[KEYS];
        hits(&guards[0], key).await && hits(&guards[1], key).await
    })
    .await;
    println!("the new master serves after {:?}, shared again {:?} later", serves - killed, serves.elapsed());
    eventually("each process shares again", async || {
        for guard in &guards {
            if !hits(guard, &keys[0]).await {
                return false;
            }
        }
        true
    })
    .await;
    load.ended.store(true, SeqCst);
    while let Some(caller) = callers.join_next().await {
        caller.expect("no panic");
    }
    let calls: Vec<_> = load.calls.iter().map(|calls| calls.load(SeqCst)).collect();
    println!("calls per process and key: {calls:?}");
    assert_eq!(load.failed.load(SeqCst), 0);
    assert!(calls.iter().all(|calls| *calls <= 1), "{calls:?}");
}

async fn lock_of_first_master(node: &RedisServer) -> String {
    for n in 0.. {
        let name = format!("l{n}");
        if first_owner(command(node, &format!("CLUSTER KEYSLOT {{lock:r{name}}}")).await) == 0 {
            return name;
        }
    }
    unreachable!("some slot is in the first third")
}

/// The new master has the lock and its queue.
#[tokio::test]
async fn lock_is_passed_on_after_its_master_has_died() {
    let shards = Shards::start().await;
    let locks = [Lock::new(shards.endpoint()).recipe(SetPx), Lock::new(shards.endpoint()).recipe(FencedLock)];
    let name = lock_of_first_master(&shards.masters[0]).await;
    let mut held = Vec::new();
    let mut waiting = JoinSet::new();
    for lock in &locks {
        let lock = lock.clone().store_timeout(20 * SECOND).ttl(120 * SECOND).wait(100 * SECOND);
        held.push(lock.acquire(name.as_str()).await.expect("free"));
        let (other, name) = (lock.clone(), name.clone());
        waiting.spawn(async move { other.acquire(name.as_str()).await.map(drop) });
    }
    eventually("both waiters are queued", async || {
        let mut redis = shards.masters[0].connection().await;
        let mut queued = 0;
        for recipe in ["set-px", "fused"] {
            let queue = format!("{{lock:r{name}}}:{recipe}:queue");
            queued += redis::cmd("ZCARD").arg(queue).query_async::<usize>(&mut redis).await.expect("an answer");
        }
        queued == 2
    })
    .await;
    shards.replicated(0).await;
    shards.masters[0].kill();
    shards.promoted(0).await;
    for guard in held {
        eventually("the cluster client knows the new master", async || guard.check().await.is_ok()).await;
        guard.release().await.expect("held");
    }
    while let Some(acquired) = waiting.join_next().await {
        acquired.expect("no panic").expect("in time");
    }
}

#[tokio::test]
async fn waiter_is_woken_at_the_new_master() {
    let shards = Shards::start().await;
    let [store, other] = [(); 2].map(|()| RedisStore::new(shards.endpoint()));
    let at = CacheKey::new("sg", 0, &*keys_of(&shards.masters, 0, 1).await[0]);
    store.get(&at).await.expect("an answer");
    drop(store.listen(&at));
    eventually("it is subscribed", async || store.is_subscribed() == Some(true)).await;
    shards.masters[0].kill();
    eventually("the loss is noticed", async || store.is_subscribed() == Some(false)).await;
    shards.promoted(0).await;

    let (mut leader, mut waiter) = (other.listen(&at), store.listen(&at));
    let lead = LeaseRequest::new(leader.token(), 100 * SECOND);
    eventually("the new master grants a lease", async || {
        matches!(other.get_or_lease(&at, lead).await, Ok(LeaseReply::Granted { .. }))
    })
    .await;
    let wait = LeaseRequest::new(waiter.token(), 100 * SECOND);
    eventually("it waits for a message", async || {
        matches!(store.get_or_lease(&at, wait).await, Ok(LeaseReply::Wait { registered: true, .. }))
    })
    .await;
    assert_eq!(store.is_subscribed(), Some(true));
    other.release(&at, lead.token, None).await.expect("released");
    assert!(!waiter.notified().await, "the entry was not invalidated");
}
