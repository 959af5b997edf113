//! A load with invalidations, in which every answer is checked.

use crate::{Down, MS, support::eventually};
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
    calls: AtomicUsize,
    /// The invalidations that have ended, by their versions.
    invalidated: std::sync::Mutex<BTreeMap<usize, Invalidated>>,
    /// When each guard has last fetched which version.
    fetched: std::sync::Mutex<BTreeMap<(usize, usize), Instant>>,
    /// Held for a request by each guard, because a caller may join a lookup that is older than an invalidation.
    asking: [Mutex<()>; 2],
    /// Held for an invalidation.
    changing: Mutex<()>,
}

/// An invalidation that has ended. One that was not acknowledged counts for its own guard alone.
#[derive(Clone, Copy)]
struct Invalidated {
    by: usize,
    at: Instant,
    is_acknowledged: bool,
}

/// An answer that was older than an invalidation that counted before its request.
struct Stale {
    began: Instant,
    /// For how long the invalidation had counted.
    age: Duration,
    /// Whether its guard has requested the invalidation.
    is_own: bool,
    /// How long before its guard has last fetched it, if it has.
    fetched_before: Option<Duration>,
}

/// What two guards have got, from the two of them as from two processes.
pub(crate) struct Load {
    guards: [StampedeGuard; 2],
    values: Vec<Value>,
    requests: AtomicUsize,
    failed: AtomicUsize,
    wrong: AtomicUsize,
    stale: std::sync::Mutex<Vec<Stale>>,
    /// Whether the load has invalidations.
    invalidates: bool,
    /// Whether it has none for a while.
    is_calm: AtomicBool,
    invalidations: AtomicUsize,
    not_acknowledged: AtomicUsize,
    slowest_micros: AtomicUsize,
    ended: AtomicBool,
}

impl Load {
    pub(crate) fn new(guards: [StampedeGuard; 2], keys: impl IntoIterator<Item = String>) -> Arc<Self> {
        Arc::new(Self::with(guards, keys, true))
    }

    /// Returns a load without invalidations.
    pub(crate) fn reading(guards: [StampedeGuard; 2], keys: impl IntoIterator<Item = String>) -> Arc<Self> {
        Arc::new(Self::with(guards, keys, false))
    }

    fn with(guards: [StampedeGuard; 2], keys: impl IntoIterator<Item = String>, invalidates: bool) -> Self {
        Self {
            guards,
            values: keys.into_iter().map(|key| Value { key, ..Value::default() }).collect(),
            requests: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
            wrong: AtomicUsize::new(0),
            stale: std::sync::Mutex::default(),
            invalidates,
            is_calm: AtomicBool::new(false),
            invalidations: AtomicUsize::new(0),
            not_acknowledged: AtomicUsize::new(0),
            slowest_micros: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
        }
    }

    async fn ask(self: &Arc<Self>, guard: usize, key: usize) {
        let value = &self.values[key];
        let _asking = value.asking[guard].lock().await;
        let began = Instant::now();
        let load = self.clone();
        let fetch = async move || {
            load.values[key].calls.fetch_add(1, Relaxed);
            let version = load.values[key].version.load(SeqCst);
            tokio::time::sleep(5 * MS).await;
            load.values[key].fetched.lock().expect("no panic").insert((guard, version), Instant::now());
            Ok::<_, Down>((key, version))
        };
        let answer = self.guards[guard].fetch(&value.key, fetch).await;
        self.requests.fetch_add(1, Relaxed);
        self.slowest_micros.fetch_max(usize::try_from(began.elapsed().as_micros()).expect("short"), Relaxed);
        match answer {
            Err(_) => _ = self.failed.fetch_add(1, Relaxed),
            Ok((answered, _)) if answered != key => _ = self.wrong.fetch_add(1, Relaxed),
            Ok((_, version)) => {
                let invalidated = value.invalidated.lock().expect("no panic");
                let counts = |of: &&Invalidated| of.at < began && (of.is_acknowledged || of.by == guard);
                let before = invalidated.range(version + 1..).map(|(_, of)| of).filter(counts);
                let Some(at) = before.clone().map(|of| of.at).min() else { return };
                let is_own = before.clone().any(|of| of.by == guard);
                let fetched = value.fetched.lock().expect("no panic").get(&(guard, version)).copied();
                let fetched_before = fetched.map(|at| began.saturating_duration_since(at));
                let stale = Stale { began, age: began - at, is_own, fetched_before };
                self.stale.lock().expect("no panic").push(stale);
            }
        }
    }

    async fn change(&self, guard: usize, key: usize) {
        let value = &self.values[key];
        let _changing = value.changing.lock().await;
        let version = value.version.fetch_add(1, SeqCst) + 1;
        self.invalidations.fetch_add(1, Relaxed);
        let is_acknowledged = self.guards[guard].invalidate(value.key.clone()).await.is_ok();
        self.not_acknowledged.fetch_add(usize::from(!is_acknowledged), Relaxed);
        let invalidated = Invalidated { by: guard, at: Instant::now(), is_acknowledged };
        value.invalidated.lock().expect("no panic").insert(version, invalidated);
    }

    /// Makes 200 requests a second until the end, one in twenty of them an invalidation if the load has any.
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
                    7 if load.invalidates && !load.is_calm.load(SeqCst) => load.change(guard, key).await,
                    _ => load.ask(guard, key).await,
                }
            });
            while let Some(ended) = tasks.try_join_next() {
                ended.expect("no panic");
            }
        }
        tasks.join_all().await;
    }

    /// Ends the load, prints what has happened, and asserts that no request has failed, got the value of another key, or got
    /// one that its own process had invalidated.
    pub(crate) async fn end(&self, running: JoinHandle<()>, what: &str) {
        self.ended.store(true, SeqCst);
        running.await.expect("no panic");
        let of = |count: &AtomicUsize| count.load(SeqCst);
        let errors = self.store_errors();
        println!(
            "{what}: {} requests, {} calls, slowest {} us, {} invalidations, {} not acknowledged, {errors} store errors",
            of(&self.requests),
            self.calls_for(|_| true),
            of(&self.slowest_micros),
            of(&self.invalidations),
            of(&self.not_acknowledged),
        );
        let stale = self.stale.lock().expect("no panic");
        println!("{what}: {} stale", stale.len());
        for Stale { age, is_own, fetched_before, .. } in &*stale {
            println!("{age:?}, own: {is_own}, fetched {fetched_before:?} before");
        }
        let own = stale.iter().filter(|stale| stale.is_own).count();
        assert_eq!(
            (of(&self.failed), of(&self.wrong), own),
            (0, 0, 0),
            "failed, wrong, invalidated by its own process"
        );
    }

    pub(crate) fn invalidates(&self) -> bool {
        self.invalidates
    }

    /// Waits, without further invalidations, until the ones that the store has not acknowledged were sent again.
    pub(crate) async fn calms_down(&self) {
        self.is_calm.store(true, SeqCst);
        for guard in &self.guards {
            eventually("invalidations are sent again", async || guard.health().pending_invalidations == 0).await;
        }
        self.is_calm.store(false, SeqCst);
    }

    /// Requests each key once.
    pub(crate) async fn warm_up(self: &Arc<Self>) {
        for key in 0..self.values.len() {
            self.ask(0, key).await;
        }
    }

    /// Returns the number of calls of the origin for some keys.
    pub(crate) fn calls_for(&self, counts: impl Fn(&str) -> bool) -> usize {
        self.values.iter().filter(|value| counts(&value.key)).map(|value| value.calls.load(SeqCst)).sum()
    }

    /// Returns the number of errors that the guards have seen of the store.
    pub(crate) fn store_errors(&self) -> u64 {
        self.guards.iter().map(|guard| guard.stats().store_errors).sum()
    }

    pub(crate) fn guards(&self) -> &[StampedeGuard; 2] {
        &self.guards
    }

    /// Returns the number of answers that were older than an invalidation that was acknowledged before.
    pub(crate) fn stale(&self) -> usize {
        self.stale.lock().expect("no panic").len()
    }

    /// Returns for how long the invalidation of the oldest answer had been acknowledged when its request began.
    pub(crate) fn oldest(&self) -> Duration {
        self.stale.lock().expect("no panic").iter().map(|stale| stale.age).max().unwrap_or_default()
    }

    /// Returns the ages of the stale answers to requests from then on, except for those that their guard had fetched itself
    /// within this time, and that only the other guard had invalidated: see [`end`](Self::end).
    pub(crate) fn stale_since(&self, then: Instant, kept_for: Duration) -> Vec<Duration> {
        let is_kept = |stale: &Stale| stale.fetched_before.is_some_and(|before| before < kept_for);
        let stale = self.stale.lock().expect("no panic");
        stale.iter().filter(|stale| stale.began >= then && !is_kept(stale)).map(|stale| stale.age).collect()
    }

    pub(crate) fn not_acknowledged(&self) -> usize {
        self.not_acknowledged.load(SeqCst)
    }
}
