//! The load: callers ask alone and in herds, drop their futures, and invalidate.

use crate::{
    Result,
    args::{Duty, Sabotage},
    check::{self, Origin, Settled, Value},
    message::{Count, Message, tell},
    source::Source,
};
use fastrand::Rng;
use futures_util::future::join_all;
use stampede_guard::{Cache, Error, FetchOutcome, StampedeGuard};
use std::{
    future::pending,
    panic::panic_any,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{sleep, timeout},
};

pub(crate) struct Load {
    guard: StampedeGuard,
    values: Cache<Value>,
    source: Source,
    settled: Arc<Settled>,
    sabotage: Option<Sabotage>,
    errors: AtomicU64,
    dropped: AtomicU64,
    invalidations: AtomicU64,
    unacknowledged: AtomicU64,
}

/// The behaviour of the origin and the kind of fetch for a key.
#[derive(Clone, Copy, Debug)]
enum Class {
    Cheap,
    Shared,
    Scoped,
    Slow,
    Failing,
    Panicking,
    NotStored,
    Private,
}

/// Starts the callers of one worker.
pub(crate) fn start(load: &Arc<Load>, seed: u64, end: &watch::Receiver<bool>) -> JoinSet<()> {
    let mut seeds = Rng::with_seed(seed);
    (0..CALLERS).map(|_| load.clone().call(Rng::with_seed(seeds.u64(..)), end.clone())).collect()
}

impl Load {
    pub(crate) fn new(guard: StampedeGuard, source: Source, settled: Arc<Settled>, duty: &Duty) -> Self {
        let zero = || AtomicU64::new(0);
        let (errors, dropped, invalidations, unacknowledged) = (zero(), zero(), zero(), zero());
        let values = guard.cache("value");
        Self { guard, values, source, settled, sabotage: duty.sabotage, errors, dropped, invalidations, unacknowledged }
    }

    pub(crate) fn counted(&self) -> Count {
        let report = self.guard.stats();
        let filled = report.misses + report.bypassed + report.rejected;
        Count {
            answers: report.hits + report.stale_hits + report.coalesced + report.failed_open + filled,
            hits: report.hits,
            stale: report.stale_hits,
            coalesced: report.coalesced,
            failed_open: report.failed_open,
            errors: self.errors.load(Relaxed),
            dropped: self.dropped.load(Relaxed),
            invalidations: self.invalidations.load(Relaxed),
            unacknowledged: self.unacknowledged.load(Relaxed),
            fenced: report.fenced,
            leases_lost: report.lease_losses,
            memory: 0,
        }
    }

    /// Records the invalidations that other processes have completed.
    pub(crate) async fn hear(self: Arc<Self>) -> Result<()> {
        let mut lines = self.source.hear().await?;
        while let Some(line) = lines.next_line().await? {
            if let Some((version, key)) = line.split_once(' ') {
                self.settled.elsewhere(key, version.parse()?);
            }
        }
        Ok(())
    }

    async fn call(self: Arc<Self>, mut rng: Rng, end: watch::Receiver<bool>) {
        while !*end.borrow() {
            let class = CLASSES[rng.usize(..CLASSES.len())];
            // Keys with lower numbers are more popular.
            let number = rng.u32(..KEYS).min(rng.u32(..KEYS));
            let key = format!("{class:?} {number}");
            match rng.u8(..100) {
                0..=3 => self.invalidate(&key).await,
                4..=8 => _ = join_all((0..HERD).map(|_| self.ask(&key, class, rng.fork()))).await,
                9..=15 => {
                    let patience = Duration::from_micros(rng.u64(..60_000));
                    if timeout(patience, self.ask(&key, class, rng.fork())).await.is_err() {
                        self.dropped.fetch_add(1, Relaxed);
                    }
                }
                _ => self.ask(&key, class, rng.fork()).await,
            }
            sleep(Duration::from_millis(rng.u64(1..20))).await;
        }
    }

    async fn ask(&self, key: &str, class: Class, mut rng: Rng) {
        let (least, caller) = (self.settled.least(key), rng.u64(..));
        self.sabotage();
        match timeout(HANG, self.answer(key, class, caller, rng)).await {
            Ok(answer) => {
                self.errors.fetch_add(answer.is_err().into(), Relaxed);
                if let Some(violation) = check::violation(key, class.origin(), least, caller, &answer) {
                    tell(&Message::Violation(violation));
                }
            }
            Err(_) => tell(&Message::Violation(format!("{key} was not answered within {HANG:?}"))),
        }
    }

    async fn answer(&self, key: &str, class: Class, caller: u64, mut rng: Rng) -> Result<Value, Error> {
        let takes = match class {
            Class::Slow => 200..1_500,
            _ => 1..60,
        };
        let takes = Duration::from_millis(rng.u64(takes));
        let (source, of) = (self.source.clone(), key.to_owned());
        match class {
            Class::Cheap | Class::Slow => self.values.fetch(key, async move || source.fetch(&of, takes).await).await,
            Class::Shared => {
                let value = self.values.entry(key).fetch_arc(async move || source.fetch(&of, takes).await).await?;
                Ok(Value::clone(&value))
            }
            Class::Scoped => self.values.entry(key).fetch_scoped(|| source.fetch(&of, takes)).await,
            Class::Failing | Class::Panicking => {
                let fails = rng.bool();
                let fetch = async move || match (source.fetch(&of, takes).await, class) {
                    (_, Class::Panicking) if fails => panic_any(PANIC),
                    (_, Class::Failing) if fails => Err("the origin fails".into()),
                    (answer, _) => answer,
                };
                self.values.fetch(key, fetch).await
            }
            Class::NotStored => {
                let fetch =
                    async move |_| source.fetch(&of, takes).await.map(|value| FetchOutcome::new(value).do_not_store());
                self.values.entry(key).fetch_with(fetch).await
            }
            Class::Private => {
                let for_all = self.sabotage == Some(Sabotage::Private);
                let fetch = async move |_| {
                    let mut value = source.fetch(&of, takes).await?;
                    value.private_to = Some(caller);
                    let value = FetchOutcome::new(value);
                    Ok::<_, stampede_guard::BoxError>(if for_all { value } else { value.private() })
                };
                self.values.entry(key).fetch_with(fetch).await
            }
        }
    }

    /// Changes the origin first, then invalidates. From here on no caller may get the earlier value.
    async fn invalidate(&self, key: &str) {
        let Ok(version) = self.source.raise(key).await else { return };
        self.invalidations.fetch_add(1, Relaxed);
        match self.values.invalidate(key).await {
            Ok(()) => {
                self.settled.here(key, version);
                let _ = self.source.settled(key, version).await;
            }
            Err(_) => _ = self.unacknowledged.fetch_add(1, Relaxed),
        }
    }

    fn sabotage(&self) {
        if self.sabotage == Some(Sabotage::Tasks) {
            drop(tokio::spawn(pending::<()>()));
        }
    }
}

impl Class {
    fn origin(self) -> Origin {
        match self {
            Self::Failing => Origin::Fails,
            Self::Panicking => Origin::Panics,
            _ => Origin::Answers,
        }
    }
}

/// The payload of the panics of the load.
pub(crate) const PANIC: &str = "the origin panics";

const CLASSES: [Class; 12] = [
    Class::Cheap,
    Class::Cheap,
    Class::Cheap,
    Class::Cheap,
    Class::Shared,
    Class::Shared,
    Class::Scoped,
    Class::Slow,
    Class::Failing,
    Class::Panicking,
    Class::NotStored,
    Class::Private,
];
/// Number of keys of each class.
const KEYS: u32 = 5;
const CALLERS: usize = 24;
const HERD: usize = 20;
/// Longer than the guard may take at most: a wait timeout, a fetch, and a stopped process.
const HANG: Duration = Duration::from_secs(30);
