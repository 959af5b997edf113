//! One question, from the side of whoever asks it.

mod fly;
mod join;
mod round;
mod way;

use super::{
    BoxFetch, CacheVerdict, End, Ended, Engine, Head, Judge, LEADING, Led, Offer, Place, Share, Turn, Verdict,
    flight::{Scope, Wanted},
    is_marker,
    pilot::{Landed, Start},
    right::Made,
    waits::Waiting,
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::Outage,
    entry::{Entry, Kind, Live},
    error::{Error, ErrorKind},
    key::Address,
    policy::{Freshness, freshness},
    store::{BoxFuture, Inbox, Right, StoreError, Token},
    telemetry,
};
use futures_util::{
    FutureExt,
    future::{Either, lazy},
};
use round::{Aside, Round, Step, aside, done};
use std::{future::Future, marker::PhantomData};
use tokio::time::{Instant, timeout_at};

/// Where a computation goes that outlives its caller.
type Spawn<'a> = fn(&Engine, BoxFuture<'a, ()>);

pub(super) struct Caller<'a, R, J> {
    place: Place,
    judge: J,
    /// None: a computation runs within its caller.
    spawn: Option<Spawn<'a>>,
    asked: Timestamp,
    /// The end of its wait budget, over all rounds,
    budget: Instant,
    /// or its deadline, if that is earlier.
    give_up: Instant,
    /// What the caller's task computes already.
    leading: Vec<Led>,
    /// What was passed on the way to its place.
    trail: Vec<Live>,
    /// Where the store has sent it, and past how many, if it has gone on from there by memory alone.
    recalled: Option<Box<(Address, usize)>>,
    /// Where it asks, if that is from within another computation.
    noted: Option<Box<Waiting>>,
    /// Whether it was sent on by a computation that it had waited for: what that one has made counts.
    waited: bool,
    /// Where it asks after it has met an answer that was too old for it: it joins no flight that has one already.
    newer: Option<Scope>,
    answer: PhantomData<fn() -> R>,
}

impl<'a, R: Send + 'a, J: Judge<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    pub(super) fn new(place: Place, judge: J, spawn: Option<Spawn<'a>>) -> Self {
        let leading = LEADING.try_with(Clone::clone).unwrap_or_default();
        let now = clock::now();
        let budget = now + backoff::budget(place.config.wait, clock::draw());
        let give_up = place.deadline.map_or(budget, |deadline| deadline.min(budget));
        let (asked, trail) = (Timestamp::of(now), Vec::new());
        let (recalled, noted, waited, newer, answer) = (None, None, false, None, PhantomData);
        Self { place, judge, spawn, asked, budget, give_up, leading, trail, recalled, noted, waited, newer, answer }
    }

    /// Asks. Not before it is polled: a request may be made by one task and awaited by another, as behind a buffer, and
    /// within which computation it is asked is for the latter to say.
    pub(super) fn asking(
        place: Place,
        judge: J,
        spawn: Option<Spawn<'a>>,
        fetch: BoxFetch<'a, R>,
    ) -> impl Future<Output = (R, CacheVerdict)> + Send {
        lazy(move |_| {
            let mut caller = Self::new(place, judge, spawn);
            async move { caller.ask(fetch).await }
        })
        .flatten()
    }

    async fn ask(&mut self, fetch: BoxFetch<'a, R>) -> (R, CacheVerdict) {
        let (answer, verdict) = self.answer(fetch).await;
        let took = || Timestamp::now().since(self.asked);
        telemetry::answered(&self.place.engine.stats, &self.place.at, verdict, took);
        (answer, verdict)
    }

    /// What is there for it, without computing or waiting.
    pub(super) async fn look(mut self) -> Option<(R, CacheVerdict)> {
        let entry = self.find().await.ok()??;
        let now = Timestamp::now();
        let served = matches!(self.judge.judge(&entry, now), Verdict::Serve | Verdict::ServeAndRefresh);
        let answer = (served && !is_marker(&entry, now)).then(|| self.judge.read(&entry, now))??;
        let verdict = of_stored(&entry, now);
        telemetry::answered(&self.place.engine.stats, &self.place.at, verdict, || now.since(self.asked));
        Some((answer, verdict))
    }

    async fn answer(&mut self, mut fetch: BoxFetch<'a, R>) -> (R, CacheVerdict) {
        self.noted = Waiting::enter(&self.place, &self.leading);
        for _ in 0..ROUNDS {
            if self.is_within() {
                break;
            }
            fetch = match self.round(fetch).await {
                Round::Answer(answer, verdict) => return (answer, verdict),
                Round::Again(unused) => unused,
                Round::Newer(scope, unused) => {
                    self.newer = Some(scope);
                    unused
                }
                Round::Beneath(hop, unused) => {
                    if !self.descend(hop) {
                        fetch = unused;
                        break;
                    }
                    (self.waited, self.newer, self.recalled) = (true, None, None);
                    unused
                }
            };
        }
        Box::pin(self.alone(fetch)).await
    }

    async fn round(&mut self, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        let fetch = match self.join(fetch) {
            Ok(joined) => return joined.await,
            Err(unused) => unused,
        };
        let found = self.find().await;
        self.after_lookup(found, fetch).await
    }

    /// What can be done without asking the store. The fetch comes back if that is nothing.
    fn join<'s>(&'s mut self, fetch: BoxFetch<'a, R>) -> Result<Aside<'s, 'a, R>, BoxFetch<'a, R>> {
        if self.newer == Some(Scope::Local) {
            return Ok(self.local(Start::Overdue, None, fetch));
        }
        self.come_back();
        // A flight is joined without a lookup, unless what it has seen is good enough for this caller, or not for it.
        if let Some(join) = self.place.engine.flights.join(&self.place.at, self.wanted(None))
            && !join.seen().is_some_and(|seen| self.servable(seen) || self.declines(seen) || self.is_told_to_pass(seen))
        {
            return Ok(Box::pin(self.wait(join, fetch)));
        }
        match !self.is_within() && self.place.engine.dropped.take(&self.place.at) {
            true => Ok(self.compute(None, fetch)),
            false => Err(fetch),
        }
    }

    /// What is done with what the store has said.
    fn after_lookup<'s>(&'s self, found: Result<Option<Entry>, StoreError>, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        if self.is_within() {
            return aside(self.answer_alone(fetch));
        }
        let entry = match found {
            Ok(Some(entry)) => entry,
            Ok(None) => return Either::Right(self.compute(None, fetch)),
            Err(error) => return self.without_store(error, fetch),
        };
        let now = Timestamp::now();
        if is_marker(&entry, now) {
            let marker = entry.meta().id;
            return match entry.meta().kind {
                Kind::PassStore => Either::Right(self.local(Start::PassStore(marker), None, fetch)),
                _ if !self.judge.heeds(entry.meta().codec) => Either::Right(self.compute(Some(entry), fetch)),
                Kind::Pass | Kind::Value => aside(self.pass(marker, fetch)),
            };
        }
        if self.waited
            && entry.meta().answered >= self.asked
            && let Some(answer) = self.judge.read(&entry, now)
        {
            return done(Round::Answer(answer, CacheVerdict::Coalesced));
        }
        match self.judge.judge(&entry, now) {
            Verdict::Serve => match self.judge.read(&entry, now) {
                Some(answer) => done(Round::Answer(answer, of_stored(&entry, now))),
                None => Either::Right(self.compute(Some(entry), fetch)),
            },
            Verdict::ServeAndRefresh => match self.judge.read(&entry, now) {
                Some(answer) => aside(self.refresh(entry, answer, fetch)),
                None => Either::Right(self.compute(Some(entry), fetch)),
            },
            Verdict::Validate | Verdict::Ignore | Verdict::Beneath => Either::Right(self.compute(Some(entry), fetch)),
            Verdict::Decline => aside(self.answer_alone(fetch)),
        }
    }

    /// Opens the flight of the fleet, or joins it.
    fn compute<'s>(&'s self, seen: Option<Entry>, fetch: BoxFetch<'a, R>) -> Aside<'s, 'a, R> {
        match self.place.engine.flights.enter(&self.place.at, Scope::Fleet, seen.clone(), self.wanted(None)) {
            Ok(join) => Box::pin(self.wait(join, fetch)),
            Err(flight) => Box::pin(self.fly(flight, Start::Fleet { behind: false }, seen, fetch)),
        }
    }

    /// Opens the flight of this process, or joins one that began after `since`.
    fn local<'s>(&'s self, start: Start, since: Option<Timestamp>, fetch: BoxFetch<'a, R>) -> Aside<'s, 'a, R> {
        match self.place.engine.flights.enter(&self.place.at, Scope::Local, None, self.wanted(since)) {
            Ok(join) => Box::pin(self.wait_for_local(join, fetch)),
            Err(flight) => Box::pin(self.fly(flight, start, None, fetch)),
        }
    }

    fn without_store<'s>(&'s self, error: StoreError, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match self.place.config.outage {
            Outage::FailOpen => Either::Right(self.local(Start::Outage, None, fetch)),
            Outage::FailClosed => done(self.refuse(Error::store_down(error.into()))),
        }
    }

    /// Answers with the stale entry; if nobody refreshes it yet, this caller's fetch does, behind.
    async fn refresh(&self, entry: Entry, answer: R, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        if let Err(flight) =
            self.place.engine.flights.enter(&self.place.at, Scope::Fleet, Some(entry.clone()), self.wanted(None))
        {
            let (mut own, within) = self.take_off(flight, Start::Fleet { behind: true }, Some(entry.clone()), fetch);
            within.await;
            // A scoped refresh has run in here, and if it succeeded its answer is the better one.
            if let Ok(Landed::Own(answer, verdict)) = own.try_recv() {
                return Round::Answer(answer, verdict);
            }
        }
        Round::Answer(answer, of_stored(&entry, Timestamp::now()))
    }

    /// Whether it asks for what its own task computes.
    fn is_within(&self) -> bool {
        self.leading.iter().any(|led| led.blocks(&self.place))
    }

    fn wanted(&self, since: Option<Timestamp>) -> Wanted {
        Wanted { since, nested: !self.leading.is_empty(), under_way: self.newer.is_some() }
    }

    fn servable(&self, entry: &Entry) -> bool {
        matches!(self.judge.judge(entry, Timestamp::now()), Verdict::Serve | Verdict::ServeAndRefresh)
    }

    /// Whether somebody else's head says that the answer for this caller is elsewhere.
    fn is_elsewhere(&self, live: &Live) -> bool {
        matches!(self.judge.share(live), Offer::Beneath(_))
    }

    /// Whether the entry is there, but not for this caller.
    fn declines(&self, entry: &Entry) -> bool {
        self.judge.judge(entry, Timestamp::now()) == Verdict::Decline
    }

    /// Whether the entry is a marker that this caller makes a call of its own.
    fn is_told_to_pass(&self, entry: &Entry) -> bool {
        let meta = entry.meta();
        meta.kind == Kind::Pass && is_marker(entry, Timestamp::now()) && self.judge.heeds(meta.codec)
    }

    /// The entry as an answer, if it may stand in for one that failed.
    fn forgiven(&self, entry: &Entry) -> Option<R> {
        let now = Timestamp::now();
        self.judge.forgives(entry, now).then(|| self.judge.read(entry, now))?
    }

    /// The entry, of which the store has said that it stands, or no answer.
    fn stale_or_refused(&self, standing: Option<Entry>, error: Error) -> Round<'a, R> {
        match standing.and_then(|entry| self.forgiven(&entry)) {
            Some(answer) => Round::Answer(answer, CacheVerdict::Stale),
            None => self.refuse(error),
        }
    }

    fn refuse(&self, error: Error) -> Round<'a, R> {
        if error.kind() == ErrorKind::Overloaded {
            telemetry::shed(&self.place.engine.stats, &self.place.at, &error);
        }
        Round::Answer(self.judge.refuse(error), CacheVerdict::Refused)
    }

    /// A call under a pass marker: for this caller only, unless the answer turns out to be for everybody after all.
    async fn pass(&self, marker: Token, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        let (began, deadline) = (Timestamp::now(), clock::in_future(self.place.config.max_fetch));
        let id = Token::unique(Inbox::unique());
        let Head { own, share, end } = fetch(Turn::Pass { id, trail: self.trail.clone() }).await;
        let answered = Timestamp::now();
        if !matches!(end, End::Nothing) {
            let place = self.place.clone();
            self.place.engine.tasks.spawn(async move {
                let ended = timeout_at(deadline, end.reached()).await;
                if let (Ok(Ended::Payload(payload)), Share::Everybody(_, keep) | Share::AtEnd(_, keep)) = (ended, share)
                {
                    let made = Made::new(id, (began, answered), keep, payload);
                    let _ = place.fill(Right::Promote(marker), &made).await;
                }
            });
        }
        Round::Answer(own, CacheVerdict::Bypassed)
    }

    async fn answer_alone(&self, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        let (answer, verdict) = self.alone(fetch).await;
        Round::Answer(answer, verdict)
    }

    async fn alone(&self, fetch: BoxFetch<'a, R>) -> (R, CacheVerdict) {
        (fetch(Turn::Alone).await.own, CacheVerdict::Bypassed)
    }
}

/// What an entry that is served as it is makes of an answer.
fn of_stored(entry: &Entry, now: Timestamp) -> CacheVerdict {
    if freshness(entry, now) == Freshness::Fresh { CacheVerdict::Hit } else { CacheVerdict::Stale }
}

/// So often a caller asks again, for instance because the one it waited for was cancelled, before it helps itself.
const ROUNDS: usize = 64;
/// Why somebody with a deadline gets no answer.
pub(super) const LATE: &str = "the answer would come after the deadline";
