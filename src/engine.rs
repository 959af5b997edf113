//! One answer per question: from the store, from somebody else's computation, or by leading.
//!
//! ```text
//! running computation?  -> join it (unless what it refreshes can be served)
//! lookup (shared)       -> judge: serve | serve and refresh behind | pass: call alone | miss
//! miss                  -> open a flight (`pilot`): lead, wait for who leads, or go local
//! ```

mod caller;
mod flight;
mod pilot;
mod place;
mod right;
mod run;
mod seam;

pub(crate) use place::Place;
pub use seam::CacheVerdict;
pub(crate) use seam::{BoxFetch, End, Ended, Failure, Head, Judge, Keep, Share, Turn, Verdict};

use crate::{
    backoff,
    clock::{self, Timestamp},
    entry::{Entry, Kind},
    error::{Error, ErrorKind},
    key::Address,
    policy::{Freshness, freshness},
    store::Store,
    telemetry::{self, Stats},
};
use caller::Caller;
use flight::Flights;
use std::{
    collections::HashSet,
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;

/// What all clones of a guard share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) stats: Stats,
    flights: Arc<Flights>,
    /// Everything that is spawned: leaders, refreshes, leases given back. Closed from the beginning, which keeps nobody
    /// from spawning, but lets any number of callers wait for it to be empty.
    tasks: TaskTracker,
    /// What is being invalidated again behind.
    made_up_for: Mutex<HashSet<Address>>,
}

tokio::task_local! {
    /// What the current task computes, through nested computations. A spawned leader inherits nothing, so it is handed
    /// on: a guard within a guard, or a fetch within a fetch, would otherwise wait for itself.
    static LEADING: Vec<Led>;
}

/// A key that is computed, and where its entry will be.
#[derive(Clone)]
struct Led {
    store: Arc<dyn Store>,
    at: Address,
}

impl Led {
    /// Whether asking for `other` would wait for this computation. Two clients may talk to one server; an embedded
    /// store in front of it is another tier.
    fn blocks(&self, other: &Place) -> bool {
        let store = &other.engine.store;
        let same_store = Arc::ptr_eq(&self.store, store) || (self.store.is_shared() && store.is_shared());
        same_store && self.at.same_resource(&other.at)
    }
}

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        let tasks = TaskTracker::new();
        tasks.close();
        let (stats, flights, made_up_for) = (Stats::default(), Arc::default(), Mutex::default());
        Arc::new(Self { store, stats, flights, tasks, made_up_for })
    }

    /// Waits until nothing that was spawned is under way.
    pub(crate) async fn shutdown(&self) {
        self.tasks.wait().await;
    }

    /// Flights under way, lookups included.
    pub(crate) fn in_flight(&self) -> usize {
        self.flights.len()
    }
}

impl Place {
    /// Answers from the store without waiting, if that can be done.
    pub(crate) fn peek<R>(&self, judge: &impl Judge<R>) -> Option<R> {
        let entry = self.engine.store.peek(&self.at)?;
        let now = Timestamp::now();
        let served = !is_marker(&entry, now) && judge.judge(&entry, now) == Verdict::Serve;
        let answer = served.then(|| judge.read(&entry))??;
        telemetry::answered(&self.engine.stats, &self.at, CacheVerdict::Hit, Duration::ZERO);
        Some(answer)
    }

    /// Answers. A computation runs in a task of its own and outlives its caller.
    ///
    /// Dropping the future takes nothing from anybody: a computation that it began goes on, one that it joined does
    /// not miss it.
    pub(crate) async fn resolve<R, J, F, Fut>(self, judge: J, fetch: F) -> (R, CacheVerdict)
    where
        R: Send + 'static,
        J: Judge<R>,
        F: FnOnce(Turn) -> Fut + Send + 'static,
        Fut: Future<Output = Head<R>> + Send + 'static,
    {
        let spawn = |engine: &Engine, flight| _ = engine.tasks.spawn(flight);
        Caller::new(self, judge, Some(spawn)).ask(boxed(fetch)).await
    }

    /// Answers. A computation runs within its caller, so that it may borrow.
    ///
    /// Dropping the future drops a computation that it began; the next one who waits takes over with its own.
    pub(crate) async fn resolve_scoped<R, J, F, Fut>(self, judge: J, fetch: F) -> (R, CacheVerdict)
    where
        R: Send,
        J: Judge<R>,
        F: FnOnce(Turn) -> Fut + Send,
        Fut: Future<Output = Head<R>> + Send,
    {
        Caller::new(self, judge, None).ask(boxed(fetch)).await
    }

    /// Drops entry and lease. What this engine had begun before is not joined by anybody who asks after it.
    ///
    /// The work is done in a task: a caller that goes away does not undo it. If the store does not acknowledge, it is
    /// tried again behind, for a while.
    pub(crate) async fn invalidate(self) -> Result<(), Error> {
        let tasks = self.engine.tasks.clone();
        let (acknowledge, acknowledged) = oneshot::channel();
        tasks.spawn(async move {
            let answer = self.forgotten().await;
            let failed = answer.is_err();
            let _ = acknowledge.send(answer);
            if failed {
                self.make_up_for_it().await;
            }
        });
        let lost = |source| Error::with_source(ErrorKind::Store, "the invalidation was not acknowledged", source);
        match acknowledged.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(error.into())),
            Err(dropped) => Err(lost(dropped.into())),
        }
    }

    /// Once for each address at a time, however often it is invalidated meanwhile.
    async fn make_up_for_it(&self) {
        let Some(_listed) = MadeUpFor::list(self) else { return };
        for attempt in 0..INVALIDATE_ATTEMPTS {
            tokio::time::sleep(backoff::poll(attempt, false, clock::draw())).await;
            if self.forgotten().await.is_ok() {
                return;
            }
        }
    }

    async fn forgotten(&self) -> Result<(), crate::store::StoreError> {
        let answer = self.drop_entry().await;
        // After the store: what began before it did may have read the old entry.
        for schema in self.at.neighbours() {
            self.engine.flights.forget(&self.at.in_schema(schema));
        }
        answer
    }
}

/// An address among those that are invalidated again behind; until it is dropped, whatever ends the task.
struct MadeUpFor<'a>(&'a Place);

impl<'a> MadeUpFor<'a> {
    fn list(place: &'a Place) -> Option<Self> {
        Self::table(place).insert(place.at.clone()).then(|| Self(place))
    }

    fn table(place: &Place) -> MutexGuard<'_, HashSet<Address>> {
        place.engine.made_up_for.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for MadeUpFor<'_> {
    fn drop(&mut self) {
        Self::table(self.0).remove(&self.0.at);
    }
}

fn boxed<'a, R, F, Fut>(fetch: F) -> BoxFetch<'a, R>
where
    F: FnOnce(Turn) -> Fut + Send + 'a,
    Fut: Future<Output = Head<R>> + Send + 'a,
{
    Box::new(move |turn| Box::pin(fetch(turn)))
}

/// Whether the entry is a pass marker that is still in force.
fn is_marker(entry: &Entry, now: Timestamp) -> bool {
    entry.meta().kind != Kind::Value && freshness(entry, now) == Freshness::Fresh
}

/// About ten seconds.
const INVALIDATE_ATTEMPTS: u32 = 24;
