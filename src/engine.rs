//! One answer per question: from the store, from somebody else's computation, or by leading.
//!
//! ```text
//! running computation?  -> join it (unless what it refreshes can be served)
//! lookup (shared)       -> judge: serve | serve and refresh behind | pass: call alone | miss
//! miss                  -> open a flight (`pilot`): lead, wait for who leads, or go local
//! ```

mod beside;
mod caller;
mod flight;
mod gate;
mod invalidation;
mod known;
mod near;
mod pilot;
mod place;
mod right;
mod run;
mod seam;
mod shared;
mod waits;

pub(crate) use near::Near;
pub(crate) use place::Place;
pub use seam::CacheVerdict;
#[cfg(feature = "http")]
pub(crate) use seam::Index;
pub(crate) use seam::{
    BoxFetch, Class, EVERYBODY, End, Ended, Failure, Head, Hop, Judge, Keep, NO_ONE, Offer, Share, Turn, Verdict,
};
#[cfg(feature = "redis")]
pub(crate) use shared::{Shared, WeakShared};

use crate::{
    clock::Timestamp,
    entry::{Entry, Kind, Payload},
    key::Address,
    near::NearCache,
    policy::{Freshness, freshness},
    store::{Inbox, Right, Store, Token},
    telemetry::{self, Stats},
};
use beside::Beside;
use caller::Caller;
use flight::Flights;
use gate::Gates;
use invalidation::Invalidations;
use known::{Dropped, Known};
use near::Nears;
use right::Made;
use std::{
    borrow::Cow,
    future::Future,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};
use tokio_util::task::TaskTracker;
use waits::Waits;

/// What all clones of a guard share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) stats: Stats,
    /// Whether the store is taken to answer reads at once, as one of this process does until it has not.
    at_once: AtomicBool,
    flights: Arc<Flights>,
    gates: Gates,
    waits: Waits,
    /// Everything that is spawned: leaders, refreshes, leases given back. Closed from the beginning, which keeps nobody
    /// from spawning, but lets any number of callers wait for it to be empty.
    tasks: TaskTracker,
    invalidations: Invalidations,
    known: Known,
    dropped: Dropped,
    nears: Nears,
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
        Arc::new(Self {
            at_once: AtomicBool::new(!store.is_shared()),
            store,
            stats: Stats::default(),
            flights: Arc::default(),
            gates: Gates::default(),
            waits: Waits::default(),
            tasks,
            invalidations: Invalidations::default(),
            known: Known::default(),
            dropped: Dropped::default(),
            nears: Nears::default(),
        })
    }

    /// A near cache for a clone of the guard.
    pub(crate) fn near_cache(&self, settings: NearCache) -> Option<Arc<Near>> {
        let near = Arc::new(Near::before(&*self.store, settings)?);
        self.nears.add(&near);
        Some(near)
    }

    /// What this process keeps of the address is of no use any more.
    pub(crate) fn forget_copies(&self, at: &Address) {
        self.nears.forget(at);
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
    /// Answers from the store without waiting, if that can be done: what is fresh.
    pub(crate) fn peek<R>(&self, judge: &impl Judge<R>, now: Timestamp) -> Option<R> {
        let mut at = Cow::Borrowed(&self.at);
        for _ in 0..=DEPTH {
            let entry = self.at_hand(&at, now)?;
            match judge.judge(&entry, now) {
                _ if is_marker(&entry, now) => return None,
                Verdict::Beneath => at = Cow::Owned(judge.beneath(&entry)?.from(&at)),
                Verdict::Serve if freshness(&entry, now) == Freshness::Fresh => {
                    let answer = judge.read(&entry, now)?;
                    telemetry::answered(&self.engine.stats, &at, CacheVerdict::Hit, || Duration::ZERO);
                    if self.config.near.is_some() {
                        telemetry::near_hit(&self.engine.stats);
                    }
                    return Some(answer);
                }
                _ => return None,
            }
        }
        None
    }

    /// The entry, if there is one in this process.
    fn at_hand(&self, at: &Address, now: Timestamp) -> Option<Entry> {
        match &self.config.near {
            Some(near) => near.get(at, now),
            None => self.engine.store.peek(at),
        }
    }

    /// Answers. A computation runs in a task of its own and outlives its caller.
    ///
    /// Dropping the future takes nothing from anybody: a computation that it began goes on, one that it joined does
    /// not miss it.
    pub(crate) fn resolve<R, J, F, Fut>(self, judge: J, fetch: F) -> impl Future<Output = (R, CacheVerdict)> + Send
    where
        R: Send + 'static,
        J: Judge<R> + Clone + Send + Sync + 'static,
        F: FnOnce(Turn) -> Fut + Send + 'static,
        Fut: Future<Output = Head<R>> + Send + 'static,
    {
        let spawn = |engine: &Engine, flight| _ = engine.tasks.spawn(flight);
        Caller::asking(self, judge, Some(spawn), boxed(fetch))
    }

    /// Answers from the store, or not at all: nothing is computed, and nobody waited for. One that may be served while
    /// it is refreshed is served, and not refreshed.
    pub(crate) async fn look<R: Send, J: Judge<R> + Clone + Send + Sync + 'static>(
        self,
        judge: J,
    ) -> Option<(R, CacheVerdict)> {
        Caller::new(self, judge, None).look().await
    }

    /// The entry that is there, and where. It may be of no use to whoever asks.
    pub(crate) async fn found<R: Send, J: Judge<R> + Clone + Send + Sync + 'static>(
        self,
        judge: J,
    ) -> Option<(Self, Entry)> {
        Caller::new(self, judge, None).found().await
    }

    /// The address of the whole resource.
    pub(crate) fn to_primary(&self) -> Self {
        Self { at: self.at.to_primary(), ..self.clone() }
    }

    /// Puts this in the place of that entry, if it is still there.
    pub(crate) async fn replace(&self, entry: &Entry, keep: Keep, payload: Payload) {
        let meta = entry.meta();
        let now = Timestamp::now();
        let times = (now.before(meta.cost), now);
        let made = Made::new(Token::unique(Inbox::unique()), times, keep, payload);
        // Whatever came of it: the entry is as good as it was.
        let _ = self.fill(Right::Promote(meta.id), &made).await;
    }

    /// Answers. A computation runs within its caller, so that it may borrow.
    ///
    /// Dropping the future drops a computation that it began; the next one who waits takes over with its own.
    pub(crate) fn resolve_scoped<'a, R, J, F, Fut>(
        self,
        judge: J,
        fetch: F,
    ) -> impl Future<Output = (R, CacheVerdict)> + Send
    where
        R: Send + 'a,
        J: Judge<R> + Clone + Send + Sync + 'static,
        F: FnOnce(Turn) -> Fut + Send + 'a,
        Fut: Future<Output = Head<R>> + Send + 'a,
    {
        Caller::asking(self, judge, None, boxed(fetch))
    }
}

fn boxed<'a, R, F, Fut>(fetch: F) -> BoxFetch<'a, R>
where
    F: FnOnce(Turn) -> Fut + Send + 'a,
    Fut: Future<Output = Head<R>> + Send + 'a,
{
    Box::new(move |turn| Box::pin(fetch(turn)))
}

/// So many indexes are followed on the way to an entry.
pub(crate) const DEPTH: usize = 4;

/// Whether the entry is a pass marker that is still in force.
fn is_marker(entry: &Entry, now: Timestamp) -> bool {
    entry.meta().kind != Kind::Value && freshness(entry, now) == Freshness::Fresh
}
