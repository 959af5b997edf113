//! One answer per question: from the store, from somebody else's computation, or by leading.
//!
//! ```text
//! running computation?  -> join it (unless what it refreshes can be served)
//! lookup (shared)       -> judge: serve | serve and refresh behind | pass: call alone | miss
//! miss                  -> open a flight (`pilot`): lead, wait for who leads, or go local
//! ```

mod flight;
mod pilot;
mod place;
mod right;
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
    store::{BoxFuture, Store, StoreError, Token},
    telemetry::{self, Stats},
};
use flight::{Flight, Flights, Join, Scope, State};
use pilot::{Landed, Pilot, Start};
use right::Claim;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::{
    sync::{Semaphore, oneshot},
    time::timeout,
};
use tokio_util::task::TaskTracker;

/// What all clones of a guard share.
pub(crate) struct Engine {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) stats: Stats,
    flights: Arc<Flights>,
    /// Everything that is spawned: leaders, refreshes, leases given back.
    tasks: TaskTracker,
    /// Bounds the fetches that run because the store does not answer.
    bulkhead: Arc<Semaphore>,
}

tokio::task_local! {
    /// What the current task computes, through nested computations. A spawned leader inherits nothing, so it is handed
    /// on: a guard within a guard, or a fetch within a fetch, would otherwise wait for itself.
    static LEADING: Vec<Address>;
}

/// How a flight is driven: returned to be awaited by its caller, or spawned.
type Drive<'a> = fn(&Engine, BoxFuture<'a, ()>) -> Option<BoxFuture<'a, ()>>;

impl Engine {
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            stats: Stats::default(),
            flights: Arc::default(),
            tasks: TaskTracker::new(),
            bulkhead: Arc::new(Semaphore::new(LOCAL_FETCHES)),
        })
    }

    /// Waits until nothing that was spawned is under way.
    pub(crate) async fn shutdown(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
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
        let drive: Drive<'static> = |engine, flight| {
            engine.tasks.spawn(flight);
            None
        };
        Caller { place: self, judge, drive }.ask(boxed(fetch)).await
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
        Caller { place: self, judge, drive: |_, flight| Some(flight) }.ask(boxed(fetch)).await
    }

    /// Drops entry and lease. What this process had begun before is not joined by anybody who asks after it.
    ///
    /// The work is done in a task: a caller that goes away does not undo it. If the store does not acknowledge, it is
    /// tried again behind, for a while.
    pub(crate) async fn invalidate(self) -> Result<(), Error> {
        let tasks = self.engine.tasks.clone();
        let (acknowledge, acknowledged) = oneshot::channel();
        tasks.spawn(async move {
            let mut acknowledge = Some(acknowledge);
            for attempt in 0..INVALIDATE_ATTEMPTS {
                let answer = self.drop_entry().await;
                self.forget(); // after the store: what began before it did may have read the old entry
                let done = answer.is_ok();
                if let Some(acknowledge) = acknowledge.take() {
                    let _ = acknowledge.send(answer);
                }
                if done {
                    return;
                }
                tokio::time::sleep(backoff::poll(attempt, false, clock::draw())).await;
            }
        });
        let lost = |source| Error::with_source(ErrorKind::Store, "the invalidation was not acknowledged", source);
        match acknowledged.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(lost(error.into())),
            Err(dropped) => Err(lost(dropped.into())),
        }
    }

    fn forget(&self) {
        for schema in self.at.neighbours() {
            self.engine.flights.forget(&self.at.in_schema(schema));
        }
    }
}

/// One question.
struct Caller<'a, J> {
    place: Place,
    judge: J,
    drive: Drive<'a>,
}

/// What one round came to.
enum Round<'a, R> {
    Answer(R, CacheVerdict),
    /// Not answered: ask again, with the fetch that was not used.
    Again(BoxFetch<'a, R>),
}

impl<'a, J> Caller<'a, J> {
    async fn ask<R: Send + 'a>(self, fetch: BoxFetch<'a, R>) -> (R, CacheVerdict)
    where
        J: Judge<R>,
    {
        let began = Timestamp::now();
        let (answer, verdict) = self.answer(fetch).await;
        let took = Timestamp::now().since(began);
        telemetry::answered(&self.place.engine.stats, &self.place.at, verdict, took);
        (answer, verdict)
    }

    async fn answer<R: Send + 'a>(&self, mut fetch: BoxFetch<'a, R>) -> (R, CacheVerdict)
    where
        J: Judge<R>,
    {
        if leading().iter().any(|led| led.same_resource(&self.place.at)) {
            return self.alone(fetch).await;
        }
        for _ in 0..ROUNDS {
            match self.round(fetch).await {
                Round::Answer(answer, verdict) => return (answer, verdict),
                Round::Again(unused) => fetch = unused,
            }
        }
        self.alone(fetch).await
    }

    async fn round<R: Send + 'a>(&self, fetch: BoxFetch<'a, R>) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        // A flight is joined without a lookup, unless it refreshes what this caller would be served.
        let servable = |seen: &Entry| {
            matches!(self.judge.judge(seen, Timestamp::now()), Verdict::Serve | Verdict::ServeAndRefresh)
        };
        if let Some(join) = self.place.engine.flights.join(&self.place.at)
            && !join.seen.as_ref().is_some_and(servable)
        {
            return self.wait(join, fetch).await;
        }
        let Ok(found) = self.look_up().await else { return self.local(Start::FailOpen, fetch).await };
        let now = Timestamp::now();
        let Some(entry) = found else { return self.compute(None, fetch).await };
        if is_marker(&entry, now) {
            let marker = entry.meta().id;
            return match entry.meta().kind {
                Kind::PassStore => self.local(Start::PassStore(marker), fetch).await,
                Kind::Pass | Kind::Value => self.pass(marker, fetch).await,
            };
        }
        match self.judge.judge(&entry, now) {
            Verdict::Serve => match self.judge.read(&entry) {
                Some(answer) => Round::Answer(answer, CacheVerdict::Hit),
                None => self.compute(Some(entry), fetch).await,
            },
            Verdict::ServeAndRefresh => match self.judge.read(&entry) {
                Some(answer) => self.refresh(entry, answer, fetch).await,
                None => self.compute(Some(entry), fetch).await,
            },
            Verdict::Validate | Verdict::Ignore => self.compute(Some(entry), fetch).await,
        }
    }

    /// One read of the store, shared with everybody who asks meanwhile.
    async fn look_up(&self) -> Result<Option<Entry>, StoreError> {
        let place = self.place.clone();
        let read = async move { place.get().await };
        self.place.engine.flights.look_up(&self.place.at, read).await
    }

    /// Opens the flight of the fleet, or joins it.
    async fn compute<R: Send + 'a>(&self, seen: Option<Entry>, fetch: BoxFetch<'a, R>) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        match self.place.engine.flights.enter(&self.place.at, Scope::Fleet, seen.clone()) {
            Ok(join) => self.wait(join, fetch).await,
            Err(flight) => self.fly(flight, Start::Fleet { behind: false }, seen, fetch).await,
        }
    }

    /// Opens the flight of this process, or joins it.
    async fn local<R: Send + 'a>(&self, start: Start, fetch: BoxFetch<'a, R>) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        match self.place.engine.flights.enter(&self.place.at, Scope::Local, None) {
            Err(flight) => self.fly(flight, start, None, fetch).await,
            // However long it takes: it depends on nobody else, and ends with `max_fetch`.
            Ok(join) => self.settle(join.landed().await, fetch).await,
        }
    }

    /// Answers with the stale entry; if nobody refreshes it yet, this caller's fetch does, behind.
    async fn refresh<R: Send + 'a>(&self, entry: Entry, answer: R, fetch: BoxFetch<'a, R>) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        if let Err(flight) = self.place.engine.flights.enter(&self.place.at, Scope::Fleet, Some(entry.clone())) {
            let mut own = self.take_off(flight, Start::Fleet { behind: true }, Some(entry), fetch).await;
            // A scoped refresh has run in here, and its answer is the better one.
            if let Ok(Landed::Own(answer, verdict)) = own.try_recv() {
                return Round::Answer(answer, verdict);
            }
        }
        Round::Answer(answer, CacheVerdict::Stale)
    }

    async fn fly<R: Send + 'a>(
        &self,
        flight: Flight,
        start: Start,
        seen: Option<Entry>,
        fetch: BoxFetch<'a, R>,
    ) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        match self.take_off(flight, start, seen, fetch).await.await {
            Ok(Landed::Own(answer, verdict)) => Round::Answer(answer, verdict),
            Ok(Landed::Unused(state, fetch)) => self.settle(state, fetch).await,
            Ok(Landed::Stale(entry)) => match self.judge.read(&entry) {
                Some(answer) => Round::Answer(answer, CacheVerdict::Stale),
                None => self.refuse(Error::new(ErrorKind::Codec, "the stale entry does not decode")),
            },
            Ok(Landed::Failed(error)) => self.refuse(error),
            Err(_) => self.refuse(Error::new(ErrorKind::Panicked, "the task of the fetch was ended")),
        }
    }

    async fn take_off<R: Send + 'a>(
        &self,
        flight: Flight,
        start: Start,
        seen: Option<Entry>,
        fetch: BoxFetch<'a, R>,
    ) -> oneshot::Receiver<Landed<'a, R>>
    where
        J: Judge<R>,
    {
        let (own, mine) = oneshot::channel();
        let mut leading = leading();
        leading.push(self.place.at.clone());
        let pilot =
            Pilot { place: self.place.clone(), judge: self.judge.clone(), flight, seen, own: Some(own), leading };
        let flight = telemetry::in_current_span(pilot.fly(start, fetch));
        if let Some(flight) = (self.drive)(&self.place.engine, Box::pin(flight)) {
            flight.await;
        }
        mine
    }

    /// Waits for a flight of the fleet, at most for the wait budget.
    async fn wait<R: Send + 'a>(&self, join: Join, fetch: BoxFetch<'a, R>) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        let seen = join.seen.clone();
        match timeout(self.budget(), join.landed()).await {
            Ok(state) => self.settle(state, fetch).await,
            Err(_) => {
                telemetry::waited_enough(&self.place.engine.stats, &self.place.at);
                match seen.as_ref().and_then(|entry| self.forgiven(entry)) {
                    Some(answer) => Round::Answer(answer, CacheVerdict::Stale),
                    None => self.local(Start::FailOpen, fetch).await,
                }
            }
        }
    }

    /// What the state of a flight means for somebody who joined it.
    async fn settle<R: Send + 'a>(&self, state: State, fetch: BoxFetch<'a, R>) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        let shared = match state {
            State::Running | State::Vacant => return Round::Again(fetch),
            State::Found(entry) => match self.judge.judge(&entry, Timestamp::now()) {
                Verdict::Serve | Verdict::ServeAndRefresh => self.judge.read(&entry),
                Verdict::Validate | Verdict::Ignore => return Round::Again(fetch),
            },
            State::Filled(entry) => self.judge.read(&entry),
            State::Stale(entry) => match self.forgiven(&entry) {
                Some(answer) => return Round::Answer(answer, CacheVerdict::Stale),
                None => None,
            },
            State::Shared(live) => self.judge.share(&live),
            State::NotShared => None,
            State::Failed(failure, stale) => {
                if let Some(answer) = stale.as_ref().and_then(|entry| self.forgiven(entry)) {
                    return Round::Answer(answer, CacheVerdict::Stale);
                }
                match failure {
                    Failure::Error(error) => return self.refuse(error),
                    Failure::Live(live) => self.judge.share(&live),
                }
            }
        };
        match shared {
            Some(answer) => Round::Answer(answer, CacheVerdict::Coalesced),
            // Not for this caller, for instance of another type: it gets an answer all the same.
            None => self.answer_alone(fetch).await,
        }
    }

    /// The entry as an answer, if it may stand in for one that failed.
    fn forgiven<R>(&self, entry: &Entry) -> Option<R>
    where
        J: Judge<R>,
    {
        self.judge.forgives(entry, Timestamp::now()).then(|| self.judge.read(entry))?
    }

    fn refuse<R>(&self, error: Error) -> Round<'a, R>
    where
        J: Judge<R>,
    {
        Round::Answer(self.judge.refuse(error), CacheVerdict::Refused)
    }

    /// A call under a pass marker: for this caller only, unless the answer turns out to be for everybody after all.
    async fn pass<R: Send + 'a>(&self, marker: Token, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        let turn = Turn::Lead { seen: None, deadline: None, fencing_token: None };
        let began = Timestamp::now();
        let Head { own, share, end } = fetch(turn).await;
        let answered = Timestamp::now();
        if !matches!(end, End::Nothing) {
            let place = self.place.clone();
            self.place.engine.tasks.spawn(async move {
                if let (Ended::Payload(payload), Share::Everybody(_, keep) | Share::AtEnd(keep)) =
                    (end.reached().await, share)
                {
                    let claim = Claim::PassStore(marker);
                    let entry = right::entry(claim.id(), (began, answered), keep, payload);
                    claim.fill(&place, &entry).await;
                }
            });
        }
        Round::Answer(own, CacheVerdict::Bypassed)
    }

    async fn answer_alone<R: Send + 'a>(&self, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        let (answer, verdict) = self.alone(fetch).await;
        Round::Answer(answer, verdict)
    }

    async fn alone<R: Send + 'a>(&self, fetch: BoxFetch<'a, R>) -> (R, CacheVerdict) {
        (fetch(Turn::Alone).await.own, CacheVerdict::Bypassed)
    }

    fn budget(&self) -> Duration {
        backoff::budget(self.place.config.wait, clock::draw())
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

fn leading() -> Vec<Address> {
    LEADING.try_with(Clone::clone).unwrap_or_default()
}

/// So often a caller asks again, for instance because the one it waited for was cancelled, before it helps itself.
const ROUNDS: usize = 64;
/// Fetches at a time that run because the store does not answer.
const LOCAL_FETCHES: usize = 64;
/// About half a minute.
const INVALIDATE_ATTEMPTS: u32 = 64;
