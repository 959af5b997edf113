//! Many who want one lock, go away at any moment, die with it, and are cut off: never two at a time, and never nobody.
//!
//! Seen to fail when a release compares no token, and when a hand-over is counted from the arrival of its message.

use crate::support::{RedisServer, relay::Relay};
use stampede_guard::{
    Lock, LockGuard,
    lock::{Fused, IntoServer, Recipe, SetPx},
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::{task::JoinSet, time::timeout};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// What a holder that dies costs the others.
const TTL: Duration = Duration::from_millis(300);

/// Who holds the lock by its own account, until when, and the largest fencing token that was seen.
#[derive(Default)]
struct Witness(Mutex<(Option<(u64, Instant)>, u64)>);

impl Witness {
    /// Nobody else may believe at this moment to hold it.
    fn enters(&self, guard: &LockGuard, id: u64) {
        let (now, remaining) = (Instant::now(), guard.remaining().expect("it expires"));
        let mut seen = self.0.lock().expect("nobody panics with it");
        if let Some((other, until)) = seen.0
            && now < until
            && !remaining.is_zero()
        {
            panic!("{id} and {other} hold it, the latter for {:?} yet", until - now);
        }
        if let Some(token) = guard.fencing_token() {
            assert!(token > seen.1, "fencing tokens grow: {token} after {}", seen.1);
            seen.1 = token;
        }
        seen.0 = Some((id, now + remaining));
    }

    fn leaves(&self, id: u64) {
        let mut seen = self.0.lock().expect("nobody panics with it");
        if seen.0.is_some_and(|(holder, _)| holder == id) {
            seen.0 = None;
        }
    }
}

async fn storm(recipe: impl Recipe + Clone, fair: bool, seed: u64) {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port()).parse().expect("an address");
    let mut relays = Vec::new();
    for _ in 0..4 {
        relays.push(Relay::to(address).await);
    }
    let lock = |server: redis::Client| {
        Lock::new(server.into_server()).recipe(recipe.clone()).fair(fair).ttl(TTL).op_timeout(5 * SECOND)
    };
    let locks: Vec<_> = relays.iter().map(|relay| lock(relay.client())).collect();
    let witness = Arc::new(Witness::default());
    let mut tasks = JoinSet::new();
    for id in 0..24 {
        let (lock, witness) = (locks[id % locks.len()].clone().wait(60 * SECOND), witness.clone());
        tasks.spawn(wants_it(lock, witness, id as u64, fastrand::Rng::with_seed(seed + id as u64)));
    }
    let cuts = tokio::spawn(async move {
        let mut rng = fastrand::Rng::with_seed(seed);
        loop {
            tokio::time::sleep(MS * rng.u32(5..60)).await;
            relays[rng.usize(..relays.len())].cut();
        }
    });
    while let Some(ended) = tasks.join_next().await {
        ended.expect("nobody saw two holders");
    }
    cuts.abort();
    for lock in &locks {
        lock.shutdown().await;
    }
    // Whatever happened, it is free when the last ttl is over.
    let after = lock(server.client()).wait(60 * SECOND).acquire("storm").await.expect("free");
    after.release().await.expect("held");
}

async fn wants_it(lock: Lock, witness: Arc<Witness>, id: u64, mut rng: fastrand::Rng) {
    for round in 0..12 {
        let impatient = rng.u8(..100) < 40;
        let patience = if impatient { MS * rng.u32(..30) } else { 120 * SECOND };
        let acquired = match timeout(patience, lock.acquire("storm")).await {
            Ok(acquired) => acquired,
            Err(_) if impatient => continue,
            Err(_) => panic!("nobody waits that long"),
        };
        // The first question of all may meet a cut; whoever has a place in the queue may not.
        let Ok(guard) = acquired else { continue };
        let held = id * 1000 + round;
        witness.enters(&guard, held);
        tokio::time::sleep(MS * rng.u32(..3)).await;
        match rng.u8(..100) {
            0..4 => std::mem::forget(guard), // as a crash leaves it
            4..30 => {
                witness.leaves(held);
                drop(guard);
            }
            30..50 => {
                witness.leaves(held);
                let _ = timeout(MS * rng.u32(..2), guard.release()).await;
            }
            _ => {
                witness.leaves(held);
                let _ = guard.release().await; // lost, or cut off: the witness has seen to it
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fused_and_fair() {
    storm(Fused, true, fastrand::u64(..1 << 40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn fused_and_unfair() {
    storm(Fused, false, fastrand::u64(..1 << 40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_px_and_fair() {
    storm(SetPx, true, fastrand::u64(..1 << 40)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_px_and_unfair() {
    storm(SetPx, false, fastrand::u64(..1 << 40)).await;
}
