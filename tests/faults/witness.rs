//! Asks, and keeps book: who was answered, with what, after how long, and what the origin had to do for it.

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

/// Asks guards that stand for processes. Values are `key@version`, so that each one tells whose it is and when it was
/// made. Clones keep one book.
#[derive(Clone)]
pub(crate) struct Witness(Arc<Book>);

struct Book {
    processes: Vec<StampedeGuard>,
    /// What the origin answers with; an invalidation goes with a new one.
    version: AtomicUsize,
    origins: Mutex<HashMap<(usize, String), Origin>>,
    struck: Mutex<Option<Instant>>,
    seen: Mutex<Seen>,
}

/// What was seen.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) requests: usize,
    /// Not answered, or not with what it had to be.
    pub(crate) broken: Vec<String>,
    pub(crate) slowest: Duration,
    /// For each process, the requests that took as long as an operation timeout.
    pub(crate) slow: HashMap<usize, usize>,
}

impl Witness {
    pub(crate) fn new(processes: impl IntoIterator<Item = StampedeGuard>) -> Self {
        Self(Arc::new(Book {
            processes: processes.into_iter().collect(),
            version: AtomicUsize::new(1),
            origins: Mutex::default(),
            struck: Mutex::default(),
            seen: Mutex::default(),
        }))
    }

    pub(crate) fn guard(&self, process: usize) -> &StampedeGuard {
        &self.0.processes[process]
    }

    /// Changes what the origin answers with; returns the new version.
    pub(crate) fn change(&self) -> usize {
        self.0.version.fetch_add(1, SeqCst) + 1
    }

    pub(crate) fn version(&self) -> usize {
        self.0.version.load(SeqCst)
    }

    /// The origin of that key in that process; open, unless it was made by [`hold`](Self::hold).
    fn origin(&self, process: usize, key: &str) -> Origin {
        lock(&self.0.origins).entry((process, key.to_owned())).or_insert_with(Origin::new).clone()
    }

    /// Lets the key's fetches in that process wait until its origin is opened.
    pub(crate) fn hold(&self, process: usize, key: &str) -> Origin {
        lock(&self.0.origins).entry((process, key.to_owned())).or_insert_with(Origin::gated).clone()
    }

    /// From now on it goes wrong: what is under way is not to blame for the time before.
    pub(crate) fn struck(&self) {
        *lock(&self.0.struck) = Some(Instant::now());
    }

    /// One request. It has to be answered, with a value of its key that is not older than `floor`.
    pub(crate) async fn ask(&self, process: usize, key: &str, floor: usize) {
        let (witness, origin, of) = (self.clone(), self.origin(process, key), key.to_owned());
        let fetch = async move || {
            let version = witness.version();
            origin.work(5 * MS).await;
            Ok::<_, Down>(format!("{of}@{version}"))
        };
        let asked = Instant::now();
        let answer = timeout(HANG, self.guard(process).fetch(key, fetch)).await;
        let took = self.took(process, asked);
        let version = match &answer {
            Ok(Ok(value)) => value.strip_prefix(&format!("{key}@")).and_then(|version| version.parse().ok()),
            _ => None,
        };
        if version.is_none_or(|version: usize| version < floor) {
            self.complain(format!("process {process} asked for {key}@{floor} and got {answer:?} after {took:?}"));
        }
    }

    /// Takes note of how long a request took that was made then.
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

    /// So many requests at one moment in each of these processes.
    pub(crate) async fn herd(&self, callers: usize, processes: &[usize], key: &str, floor: usize) {
        let all = herd(callers * processes.len(), |i| {
            let (witness, process, key) = (self.clone(), processes[i % processes.len()], key.to_owned());
            async move { witness.ask(process, &key, floor).await }
        });
        all.await;
    }

    /// Returns when what one process fills is a hit in another one, in both directions, and how long that took.
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

    /// What was seen since the last time.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut *lock(&self.0.seen))
    }

    /// Something was seen that must not be.
    pub(crate) fn complain(&self, what: String) {
        lock(&self.0.seen).broken.push(what);
    }

    /// What the key has cost, in all processes.
    pub(crate) fn calls(&self, key: &str) -> usize {
        lock(&self.0.origins).iter().filter(|((_, of), _)| of == key).map(|(_, origin)| origin.calls()).sum()
    }

    /// The most calls for one key that ever ran at once in one process.
    pub(crate) fn peak(&self) -> usize {
        lock(&self.0.origins).values().map(Origin::peak).max().unwrap_or_default()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Calls of one process for one key at once. One for the fleet; one that was begun for this process alone while Redis was
/// away, which is not joined by who can ask Redis, since it may have been invalidated; and one whose lease was lost with
/// the server.
pub(crate) const MOST_AT_ONCE: usize = 3;
/// What takes longer hangs.
const HANG: Duration = Duration::from_secs(30);
/// An operation timeout, nearly.
const SLOW: Duration = Duration::from_millis(240);
