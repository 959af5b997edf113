//! A load with invalidations, in which every answer is checked.

use crate::{Down, MS};
use stampede_guard::StampedeGuard;
use std::{
    collections::BTreeMap,
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
    task::{JoinHandle, JoinSet},
    time::{MissedTickBehavior, interval},
};

/// A key, whose value is its name and a version.
#[derive(Default)]
struct Value {
    key: String,
    version: AtomicUsize,
    /// The versions whose invalidations were acknowledged, and when.
    acknowledged: std::sync::Mutex<BTreeMap<usize, Instant>>,
    /// Held for a request by each guard, because a caller may join a lookup that is older than an invalidation.
    asking: [Mutex<()>; 2],
    /// Held for an invalidation.
    changing: Mutex<()>,
}

/// What two guards have got, from the two of them as from two processes.
pub(crate) struct Load {
    guards: [StampedeGuard; 2],
    values: Vec<Value>,
    requests: AtomicUsize,
    calls: AtomicUsize,
    failed: AtomicUsize,
    wrong: AtomicUsize,
    stale: AtomicUsize,
    oldest_micros: AtomicUsize,
    invalidations: AtomicUsize,
    not_acknowledged: AtomicUsize,
    slowest_micros: AtomicUsize,
    ended: AtomicBool,
}

impl Load {
    pub(crate) fn new(guards: [StampedeGuard; 2], keys: impl IntoIterator<Item = String>) -> Arc<Self> {
        Arc::new(Self {
            guards,
            values: keys.into_iter().map(|key| Value { key, ..Value::default() }).collect(),
            requests: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            wrong: AtomicUsize::new(0),
            stale: AtomicUsize::new(0),
            oldest_micros: AtomicUsize::new(0),
            invalidations: AtomicUsize::new(0),
            not_acknowledged: AtomicUsize::new(0),
            slowest_micros: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        })
    }

    async fn ask(self: &Arc<Self>, guard: usize, key: usize) {
        let value = &self.values[key];
        let _asking = value.asking[guard].lock().await;
        let began = Instant::now();
        let load = self.clone();
        let fetch = async move || {
            load.calls.fetch_add(1, Relaxed);
            let version = load.values[key].version.load(SeqCst);
            tokio::time::sleep(5 * MS).await;
            Ok::<_, Down>((key, version))
        };
        let answer = self.guards[guard].fetch(&value.key, fetch).await;
        self.requests.fetch_add(1, Relaxed);
        self.slowest_micros.fetch_max(usize::try_from(began.elapsed().as_micros()).expect("short"), Relaxed);
        match answer {
            Err(_) => _ = self.failed.fetch_add(1, Relaxed),
            Ok((answered, _)) if answered != key => _ = self.wrong.fetch_add(1, Relaxed),
            Ok((_, version)) => {
                let acknowledged = value.acknowledged.lock().expect("no panic");
                let next = acknowledged.range(version + 1..).next();
                // Not positive if the request began before.
                let age = next.map_or(Duration::ZERO, |(_, at)| began.saturating_duration_since(*at));
                self.stale.fetch_add(usize::from(!age.is_zero()), Relaxed);
                self.oldest_micros.fetch_max(usize::try_from(age.as_micros()).expect("short"), Relaxed);
            }
        }
    }

    async fn change(&self, guard: usize, key: usize) {
        let value = &self.values[key];
        let _changing = value.changing.lock().await;
        let version = value.version.fetch_add(1, SeqCst) + 1;
        self.invalidations.fetch_add(1, Relaxed);
        match self.guards[guard].invalidate(value.key.clone()).await {
            Ok(()) => _ = value.acknowledged.lock().expect("no panic").insert(version, Instant::now()),
            Err(_) => _ = self.not_acknowledged.fetch_add(1, Relaxed),
        }
    }

    /// Makes 200 requests a second, one in twenty of them an invalidation, until the end.
    pub(crate) async fn run(self: Arc<Self>) {
        let (mut ticks, mut tasks) = (interval(5 * MS), JoinSet::new());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for n in 0.. {
            if self.ended.load(SeqCst) {
                break;
            }
            ticks.tick().await;
            let (load, guard, key) = (self.clone(), n % 2, fastrand::usize(..self.values.len()));
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

    /// Ends the load, prints what has happened, and asserts that no request has failed or got the value of another key.
    pub(crate) async fn end(&self, running: JoinHandle<()>, what: &str) {
        self.ended.store(true, SeqCst);
        running.await.expect("no panic");
        let of = |count: &AtomicUsize| count.load(SeqCst);
        let errors: u64 = self.guards.iter().map(|guard| guard.stats().store_errors).sum();
        println!(
            "{what}: {} requests, {} calls, slowest {} us, {} invalidations, {} not acknowledged, {errors} store errors",
            of(&self.requests),
            of(&self.calls),
            of(&self.slowest_micros),
            of(&self.invalidations),
            of(&self.not_acknowledged),
        );
        assert_eq!((of(&self.failed), of(&self.wrong)), (0, 0), "failed, wrong");
    }

    pub(crate) fn guards(&self) -> &[StampedeGuard; 2] {
        &self.guards
    }

    /// Returns the number of answers that were older than an invalidation that was acknowledged before.
    pub(crate) fn stale(&self) -> usize {
        self.stale.load(SeqCst)
    }

    /// Returns for how long the invalidation of the oldest answer had been acknowledged when its request began.
    pub(crate) fn oldest(&self) -> Duration {
        Duration::from_micros(self.oldest_micros.load(SeqCst) as u64)
    }

    pub(crate) fn not_acknowledged(&self) -> usize {
        self.not_acknowledged.load(SeqCst)
    }
}
