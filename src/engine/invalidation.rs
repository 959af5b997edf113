//! Invalidations: acknowledged, or made up for behind; and sent again when the store may have forgotten them.

use super::{Engine, Place};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::Config,
    error::{Error, ErrorKind},
    key::Address,
    store::StoreError,
    telemetry,
};
use futures_util::{StreamExt, stream};
use std::{
    collections::{HashMap, VecDeque},
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{
            AtomicI64, AtomicU64,
            Ordering::{AcqRel, Acquire, Relaxed},
        },
    },
    time::Duration,
};
use tokio::sync::oneshot;

/// The invalidations of one engine that are not done with.
#[derive(Default)]
pub(super) struct Invalidations {
    /// What is made up for, and how many invalidations of it have failed.
    made_up_for: Mutex<HashMap<Address, u64>>,
    /// What was acknowledged lately, oldest first.
    recent: Mutex<VecDeque<Recent>>,
    /// The [epoch](crate::Store::epoch) of the store in which it has been caught up with,
    epoch: AtomicU64,
    /// and when the last question was asked that was answered in it.
    heard: AtomicI64,
}

/// Not a [`Place`], which would keep its engine alive.
struct Recent {
    when: Timestamp,
    /// Of the store that acknowledged it.
    epoch: u64,
    config: Arc<Config>,
    at: Address,
}

impl Place {
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

    /// Tries again for about ten seconds after the last invalidation of the address that failed; one task does so.
    async fn make_up_for_it(&self) {
        let Some(listed) = MadeUpFor::list(self) else { return };
        let (mut attempt, mut failed) = (0, listed.failed());
        while attempt < INVALIDATE_ATTEMPTS {
            tokio::time::sleep(backoff::poll(attempt, false, clock::draw())).await;
            let answer = self.forgotten().await;
            match listed.failed() {
                // An attempt that was under way when another one failed may have been done before that.
                now if now != failed => (attempt, failed) = (0, now),
                _ if answer.is_ok() => return,
                _ => attempt += 1,
            }
        }
    }

    async fn forgotten(&self) -> Result<(), StoreError> {
        let answer = self.drop_entry().await;
        // After the store: what began before it did may have read the old entry.
        for schema in self.at.neighbours() {
            let at = self.at.in_schema(schema);
            self.engine.flights.forget(&at);
            self.engine.known.forget(&at);
            self.engine.forget_copies(&at);
        }
        if answer.is_ok() {
            self.engine.dropped.remember(&self.at);
            self.remember();
        }
        answer
    }

    /// Takes note of what was acknowledged just now.
    fn remember(&self) {
        let (now, invalidations) = (Timestamp::now(), &self.engine.invalidations);
        let mut recent = lock(&invalidations.recent);
        while recent.len() >= MOST_RECENT || recent.front().is_some_and(|oldest| now.since(oldest.when) > RECENT) {
            recent.pop_front();
        }
        let epoch = self.engine.store.epoch();
        recent.push_back(Recent { when: now, epoch, config: self.config.clone(), at: self.at.clone() });
    }
}

impl Engine {
    /// The store has answered what it was asked then. If it has another epoch than before, it sends again, behind, what
    /// was acknowledged in the last seconds before it fell silent: however long that was, they may be lost.
    pub(super) fn catch_up(self: &Arc<Self>, asked: Timestamp) {
        let (epoch, invalidations) = (self.store.epoch(), &self.invalidations);
        if invalidations.epoch.load(Acquire) == epoch {
            return invalidations.heard.store(asked.as_micros(), Relaxed);
        }
        let heard = Timestamp::from_micros(invalidations.heard.load(Relaxed)); // before others may write it anew
        if invalidations.epoch.swap(epoch, AcqRel) == epoch {
            return;
        }
        let mut recent = lock(&invalidations.recent);
        // Acknowledged again, they are remembered anew.
        let (lost, kept): (VecDeque<_>, _) = mem::take(&mut *recent).into_iter().partition(|one| one.epoch != epoch);
        *recent = kept;
        drop(recent);
        let recent: Vec<_> = lost
            .into_iter()
            .filter(|lost| heard.since(lost.when) <= RECENT)
            .map(|Recent { config, at, .. }| Place { engine: self.clone(), config, at, deadline: None })
            .collect();
        if recent.is_empty() {
            return;
        }
        telemetry::sent_again(&recent[0].at, recent.len());
        self.tasks.spawn(stream::iter(recent).for_each_concurrent(AT_ONCE, async |place| {
            if place.forgotten().await.is_err() {
                place.make_up_for_it().await;
            }
        }));
    }
}

/// An address among those that are invalidated again behind; until it is dropped, whatever ends the task.
struct MadeUpFor<'a>(&'a Place);

impl<'a> MadeUpFor<'a> {
    /// Counts a failure. `None` if the address is listed already.
    fn list(place: &'a Place) -> Option<Self> {
        let mut table = Self::table(place);
        let failed = table.entry(place.at.clone()).or_default();
        *failed += 1;
        (*failed == 1).then(|| Self(place))
    }

    fn failed(&self) -> u64 {
        Self::table(self.0).get(&self.0.at).copied().unwrap_or_default()
    }

    fn table(place: &Place) -> MutexGuard<'_, HashMap<Address, u64>> {
        lock(&place.engine.invalidations.made_up_for)
    }
}

impl Drop for MadeUpFor<'_> {
    fn drop(&mut self) {
        Self::table(self.0).remove(&self.0.at);
    }
}

/// Nothing in here panics while it holds a lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// About ten seconds.
const INVALIDATE_ATTEMPTS: u32 = 24;
/// For so long, and so many, acknowledged invalidations are remembered.
const RECENT: Duration = Duration::from_secs(10);
const MOST_RECENT: usize = 10_000;
/// So many are sent again at a time.
const AT_ONCE: usize = 64;
