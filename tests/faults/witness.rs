//! Sends requests and records their answers, their latency and the origin calls that they cause.

use crate::{
    Down, MS,
    support::{Origin, herd},
};
use stampede_guard::StampedeGuard;
use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep, timeout};

/// Sends requests to guards that stand for processes, and records the results. Values are `key@version`, so each value
/// names its key and its version. A filler may follow. Clones share one record.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Book>);

struct Book {
    processes: Vec<StampedeGuard>,
    filler: String,
    /// Version that the origin answers with. Each invalidation increments it.
    version: AtomicUsize,
    origins: Mutex<HashMap<(usize, String), Origin>>,
    struck: Mutex<Option<Instant>>,
    seen: Mutex<Seen>,
}

/// The recorded results.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: usize,
    /// Requests without an answer or with a wrong one.
    pub(crate) broken: Vec<String>,
    pub(crate) slowest: Duration,
    /// Number of requests per process that took about a store timeout or longer.
    pub(crate) slow: HashMap<usize, usize>,
}

impl Witness {
    pub(crate) fn new(processes: impl IntoIterator<Item = StampedeGuard>) -> Self {
        Self::with_filler(processes, 0)
    }

    /// Returns a witness whose values have `extra` bytes more.
    pub(crate) fn with_filler(processes: impl IntoIterator<Item = StampedeGuard>, extra: usize) -> Self {
        Self(Arc::new(Book {
            processes: processes.into_iter().collect(),
            filler: ".".repeat(extra),
            version: AtomicUsize::new(1),
            origins: Mutex::default(),
            struck: Mutex::default(),
            seen: Mutex::default(),
        }))
    }

    pub(crate) fn guard(&self, process: usize) -> &StampedeGuard {
        &self.0.processes[process]
    }

    /// Increments the version at the origin, and returns it.
    pub(crate) fn change(&self) -> usize {
        self.0.version.fetch_add(1, SeqCst) + 1
    }

    pub(crate) fn version(&self) -> usize {
        self.0.version.load(SeqCst)
    }

    /// Returns the origin of a key in a process. It is open unless [`hold`](Self::hold) created it.
    fn origin(&self, process: usize, key: &str) -> Origin {
        lock(&self.0.origins).entry((process, key.to_owned())).or_insert_with(Origin::new).clone()
    }

    /// Makes the fetches of the key in the process wait until the origin is opened.
    pub(crate) fn hold(&self, process: usize, key: &str) -> Origin {
        lock(&self.0.origins).entry((process, key.to_owned())).or_insert_with(Origin::gated).clone()
    }

    /// Records the start of the fault. Requests in flight count their time from here.
    pub(crate) fn struck(&self) {
        *lock(&self.0.struck) = Some(Instant::now());
    }

    /// Sends one request. It must be answered with a value of its key that is not older than `floor`.
    pub(crate) async fn ask(&self, process: usize, key: &str, floor: usize) {
        let (witness, origin, of) = (self.clone(), self.origin(process, key), key.to_owned());
        let fetch = async move || {
            let version = witness.version();
            origin.work(5 * MS).await;
            Ok::<_, Down>(format!("{of}@{version}{}", witness.0.filler))
        };
        let asked = Instant::now();
        let answer = timeout(HANG, self.guard(process).fetch(key, fetch)).await;
        let took = self.took(process, asked);
        let version = match &answer {
            Ok(Ok(value)) => {
                let version = value.strip_prefix(&format!("{key}@"));
                version.and_then(|version| version.trim_end_matches('.').parse().ok())
            }
            _ => None,
        };
        if version.is_none_or(|version: usize| version < floor) {
            self.complain(format!("process {process} asked for {key}@{floor} and got {answer:?} after {took:?}"));
        }
    }

    /// Records and returns the latency of a request that started at `asked`.
    pub(crate) fn took(&self, process: usize, asked: Instant) -> Duration {
        let took = lock(&self.0.struck).map_or(asked, |struck| struck.max(asked)).elapsed();
        let mut seen = lock(&self.0.seen);
        seen.requests += 1;
        seen.slowest = seen.slowest.max(took);
        if took > SLOW {
            *seen.slow.entry(process).or_default() += 1;
        }
        took
    }

    /// Sends `callers` concurrent requests in each of the processes.
    pub(crate) async fn herd(&self, callers: usize, processes: &[usize], key: &str, floor: usize) {
        let all = herd(callers * processes.len(), |i| {
            let (witness, process, key) = (self.clone(), processes[i % processes.len()], key.to_owned());
            async move { witness.ask(process, &key, floor).await }
        });
        all.await;
    }

    /// Waits until each process hits what the other one fills, and returns how long that took.
    pub(crate) async fn shared_again(&self) -> Duration {
        let began = Instant::now();
        let shares = async |key: String, first: usize, second: usize| {
            let fetch = |process: usize| async move || Ok::<_, Down>(process);
            let filled = self.guard(first).fetch(key.clone(), fetch(first)).await;
            let found = self.guard(second).fetch(key, fetch(second)).await;
            filled.is_ok_and(|value| value == first) && found.is_ok_and(|value| value == first)
        };
        for n in 0.. {
            if shares(format!("there-{n}"), 0, 1).await && shares(format!("back-{n}"), 1, 0).await {
                break;
            }
            if began.elapsed() > HANG {
                self.complain("nothing is shared again".to_owned());
                break;
            }
            sleep(5 * MS).await;
        }
        began.elapsed()
    }

    /// Returns the results since the last call.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut *lock(&self.0.seen))
    }

    /// Records a broken promise.
    pub(crate) fn complain(&self, what: String) {
        lock(&self.0.seen).broken.push(what);
    }

    /// Returns the number of origin calls for the key in all processes.
    pub(crate) fn calls(&self, key: &str) -> usize {
        lock(&self.0.origins).iter().filter(|((_, of), _)| of == key).map(|(_, origin)| origin.calls()).sum()
    }

    /// Returns the maximum number of concurrent origin calls of one process for one key.
    pub(crate) fn peak(&self) -> usize {
        lock(&self.0.origins).values().map(Origin::peak).max().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of concurrent origin calls of one process for one key: one for the fleet, one local, and one whose
/// lease was lost with the server.
///
/// The local fetch started while Redis was down. Callers that reach Redis do not join it because its value may have
/// been invalidated.
pub(crate) const MOST_AT_ONCE: usize = 3;
/// A request that takes longer hangs.
const HANG: Duration = Duration::from_secs(30);
/// Slightly less than the default store timeout (250 ms).
const SLOW: Duration = Duration::from_millis(240);
