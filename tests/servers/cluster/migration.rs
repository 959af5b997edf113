//! Slots that move under load.

use super::shards::{Resharder, endpoint, first_owner, slot_of};
use crate::{
    Down, MS, SECOND,
    kit::{hits, patient},
};
use stampede_guard::StampedeGuard;
use std::{
    sync::{
        Arc,
        atomic::{
            AtomicBool, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

const KEYS: usize = 1_000;

/// A key, whose value is its name and a version.
#[derive(Default)]
struct Value {
    version: AtomicUsize,
    /// The version whose invalidation was acknowledged last.
    acknowledged: AtomicUsize,
    /// Held for a request by each guard, because a caller may join a lookup that is older than an invalidation.
    asking: [Mutex<()>; 2],
    /// Held for an invalidation.
    changing: Mutex<()>,
}

/// What two guards have got, from the two of them as from two processes.
struct Load {
    guards: [StampedeGuard; 2],
    values: Vec<Value>,
    requests: AtomicUsize,
    calls: AtomicUsize,
    failed: AtomicUsize,
    wrong: AtomicUsize,
    stale: AtomicUsize,
    invalidations: AtomicUsize,
    not_acknowledged: AtomicUsize,
    slowest_micros: AtomicUsize,
    ended: AtomicBool,
}

impl Load {
    fn new(guards: [StampedeGuard; 2]) -> Arc<Self> {
        Arc::new(Self {
            guards,
            values: (0..KEYS).map(|_| Value::default()).collect(),
            requests: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            wrong: AtomicUsize::new(0),
            stale: AtomicUsize::new(0),
            invalidations: AtomicUsize::new(0),
            not_acknowledged: AtomicUsize::new(0),
            slowest_micros: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        })
    }

    async fn ask(&self, guard: usize, key: usize) {
        let value = &self.values[key];
        let _asking = value.asking[guard].lock().await;
        let (began, least) = (Instant::now(), value.acknowledged.load(SeqCst));
        let fetch = async || {
            self.calls.fetch_add(1, Relaxed);
            let version = value.version.load(SeqCst);
            tokio::time::sleep(5 * MS).await;
            Ok::<_, Down>((key, version))
        };
        let answer = self.guards[guard].fetch_scoped(format!("key-{key}"), fetch).await;
        self.requests.fetch_add(1, Relaxed);
        self.slowest_micros.fetch_max(usize::try_from(began.elapsed().as_micros()).expect("short"), Relaxed);
        match answer {
            Err(_) => _ = self.failed.fetch_add(1, Relaxed),
            Ok((answered, _)) if answered != key => _ = self.wrong.fetch_add(1, Relaxed),
            Ok((_, version)) if version < least => _ = self.stale.fetch_add(1, Relaxed),
            Ok(_) => {}
        }
    }

    async fn change(&self, guard: usize, key: usize) {
        let value = &self.values[key];
        let _changing = value.changing.lock().await;
        let version = value.version.fetch_add(1, SeqCst) + 1;
        self.invalidations.fetch_add(1, Relaxed);
        match self.guards[guard].invalidate(format!("key-{key}")).await {
            Ok(()) => value.acknowledged.store(version, SeqCst),
            Err(_) => _ = self.not_acknowledged.fetch_add(1, Relaxed),
        }
    }

    /// Makes 200 requests a second, one in twenty of them an invalidation, until the end.
    async fn run(self: Arc<Self>) {
        let (mut ticks, mut tasks) = (interval(5 * MS), JoinSet::new());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for n in 0.. {
            if self.ended.load(SeqCst) {
                break;
            }
            ticks.tick().await;
            let (load, guard, key) = (self.clone(), n % 2, fastrand::usize(..KEYS));
            tasks.spawn(async move {
                match n % 20 {
                    7 => load.change(guard, key).await,
                    _ => load.ask(guard, key).await,
                }
            });
            while let Some(ended) = tasks.try_join_next() {
                ended.expect("no panic");
            }
        }
        tasks.join_all().await;
    }
}

/// The names of a lease and of an entry that do not exist cannot be asked for together in a slot that moves. The cluster
/// client says so after its few retries. Seen to fail with a bare `ClusterClient`: no answer within the store timeout.
#[tokio::test]
async fn lease_in_a_moving_slot_is_refused_before_the_timeout() {
    let nodes = super::nodes::<2>().await;
    let guard = StampedeGuard::new(endpoint(&nodes)).store_timeout(SECOND);
    let slot = slot_of(&nodes[0], "k").await;
    let from = usize::from(slot >= 8_192);
    assert!(!hits(&guard, "other").await, "connected");
    Resharder::of(&nodes).await.begin_move(slot, from, 1 - from).await;
    assert!(!hits(&guard, "k").await);
    let error = guard.health().last_error.expect("it was refused").message;
    assert!(error.contains("TryAgain") || error.contains("TRYAGAIN"), "{error}");
}

/// Moves slots of the keys under load, evenly over the time.
async fn migrate_under_load(slots: usize, time: Duration) {
    let nodes = super::nodes::<3>().await;
    let resharder = Resharder::of(&nodes).await;
    let load = Load::new([(); 2].map(|()| patient(endpoint(&nodes))));
    let running = tokio::spawn(load.clone().run());
    let mut ticks = interval(time / u32::try_from(slots).expect("few"));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let began = Instant::now();
    let mut owners: Vec<_> = (0..16_384).map(first_owner).collect();
    for n in 0..slots {
        ticks.tick().await;
        let slot = slot_of(&nodes[0], &format!("key-{}", n % KEYS)).await;
        let from = owners[slot];
        owners[slot] = (from + 1) % 3;
        resharder.move_slot(slot, from, owners[slot]).await;
    }
    let took = began.elapsed();
    tokio::time::sleep(SECOND).await;
    load.ended.store(true, SeqCst);
    running.await.expect("no panic");
    let of = |count: &AtomicUsize| count.load(SeqCst);
    let errors: u64 = load.guards.iter().map(|guard| guard.stats().store_errors).sum();
    println!(
        "{slots} slots in {took:?}: {} requests, {} calls, slowest {} us, {} invalidations, {} not acknowledged, {errors} \
         store errors",
        of(&load.requests),
        of(&load.calls),
        of(&load.slowest_micros),
        of(&load.invalidations),
        of(&load.not_acknowledged),
    );
    assert_eq!((of(&load.failed), of(&load.wrong), of(&load.stale)), (0, 0, 0), "failed, wrong, stale");
}

/// Seen to fail, with stale answers, if an invalidation is acknowledged without being sent.
#[tokio::test]
async fn hundred_slots_move_under_load() {
    migrate_under_load(100, 10 * SECOND).await;
}

/// Takes a minute.
#[tokio::test]
#[ignore = "takes a minute; hundred_slots_move_under_load is the short form"]
async fn five_hundred_slots_move_under_load_in_a_minute() {
    migrate_under_load(500, 60 * SECOND).await;
}
