//! Waiting for the computation of somebody else.

use super::{Caller, LATE, Round, Step, aside, done};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::AfterWait,
    engine::{
        BoxFetch, CacheVerdict, Failure, Judge, Offer, Verdict,
        flight::{Join, Scope, State},
        pilot::{Start, WAITED},
        right::Made,
    },
    error::Error,
    telemetry,
};
use futures_util::future::Either;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

impl<'a, R: Send + 'a, J: Judge<R> + Clone + Send + Sync + 'static> Caller<'a, R, J> {
    /// Waits for a flight of the fleet, at most for the wait budget.
    pub(super) async fn wait(&self, join: Join, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        if self.is_cycle() {
            return self.answer_alone(fetch).await;
        }
        if let Some(why) = self.turned_away(&join) {
            return self.stale_or_refused(join.stands(), Error::overloaded(why));
        }
        let landed = timeout_at(self.give_up, join.landed(|live| self.is_elsewhere(live))).await;
        self.after_wait(landed.ok(), &join, fetch).await
    }

    /// `landed`: if it was within the time.
    fn after_wait<'s>(&'s self, landed: Option<State>, join: &Join, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        if let Some(state) = landed {
            return self.settle(state, fetch);
        }
        telemetry::waited_enough(&self.place.engine.stats, &self.place.at);
        if self.is_late() {
            return done(self.stale_or_refused(join.stands(), Error::overloaded(LATE)));
        }
        match join.stands().and_then(|entry| self.forgiven(&entry)) {
            Some(answer) => done(Round::Answer(answer, CacheVerdict::Stale)),
            None if self.place.config.after_wait == AfterWait::Reject => done(self.refuse(Error::overloaded(WAITED))),
            None => self.overdue(join, fetch),
        }
    }

    /// Goes on without the leader. Where it is the store that is missing, the bulkhead holds for this one too.
    fn overdue<'s>(&'s self, join: &Join, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match self.place.gate() {
            Err(error) => self.without_store(error, fetch),
            Ok(()) if join.is_queued() => Either::Right(self.local(Start::Outage, None, fetch)),
            // Not what began before this caller asked: it may have been invalidated since.
            Ok(()) => Either::Right(self.local(Start::Overdue, Some(self.asked), fetch)),
        }
    }

    /// Waits for the flight of this process to its end.
    pub(super) async fn wait_for_local(&self, join: Join, fetch: BoxFetch<'a, R>) -> Round<'a, R> {
        if self.is_cycle() {
            return self.answer_alone(fetch).await;
        }
        if let Some(why) = self.turned_away(&join) {
            return self.refuse(Error::overloaded(why));
        }
        // It ends with its fetch, and to give up on it earlier would be the stampede. But it may be waiting for what this
        // caller is part of.
        let (config, budget) = (&self.place.config, backoff::budget(self.place.config.wait, clock::draw()));
        let patience = clock::in_future(if self.leading.is_empty() { config.max_fetch + budget } else { budget });
        let patience = self.place.deadline.map_or(patience, |deadline| deadline.min(patience));
        let landed = timeout_at(patience, join.landed(|live| self.is_elsewhere(live))).await;
        self.after_local(landed.ok(), fetch).await
    }

    /// `landed`: if it was within the time.
    fn after_local<'s>(&'s self, landed: Option<State>, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        match landed {
            // To queue in its place, one after the other, would be to wait as often as there are others.
            Some(State::Declined(error, standing)) if self.give_up <= clock::in_future(Duration::ZERO) => {
                done(self.stale_or_refused(standing, error))
            }
            Some(state) => self.settle(state, fetch),
            None if self.is_late() => done(self.refuse(Error::overloaded(LATE))),
            None => aside(self.answer_alone(fetch)),
        }
    }

    /// Why it does not wait with the others, if there is a reason.
    fn turned_away(&self, join: &Join) -> Option<&'static str> {
        let too_late = |deadline: Instant| {
            let left = deadline.saturating_duration_since(clock::in_future(Duration::ZERO));
            join.expected().is_some_and(|end| end.since(Timestamp::now()) > left)
        };
        if join.has_landed() {
            None // there is nothing to wait for
        } else if join.crowd() > self.place.config.max_waiters {
            Some("too many wait for this computation already")
        } else if self.place.deadline.is_some_and(too_late) {
            Some(LATE)
        } else {
            None
        }
    }

    /// Whether the computation that it would wait for waits for what this caller is part of.
    fn is_cycle(&self) -> bool {
        let is_cycle = self.place.engine.waits.closes_a_cycle(&self.place, &self.leading);
        if is_cycle {
            telemetry::cycle(&self.place.engine.stats, &self.place.at);
        }
        is_cycle
    }

    fn is_late(&self) -> bool {
        self.place.deadline.is_some_and(|deadline| deadline <= clock::in_future(Duration::ZERO))
    }

    /// What the state of a flight means for somebody who joined it.
    pub(super) fn settle<'s>(&'s self, state: State, fetch: BoxFetch<'a, R>) -> Step<'s, 'a, R> {
        let shared = match state {
            State::Found(entry) => {
                if let Some(hop) = self.hop(&entry) {
                    return done(Round::Beneath(hop, fetch));
                }
                let now = Timestamp::now();
                match (self.judge.judge(&entry, now), self.judge.read(&entry, now)) {
                    (Verdict::Serve, Some(answer)) => Offer::Taken(answer),
                    (Verdict::ServeAndRefresh, Some(answer)) => {
                        return aside(self.refresh(entry, answer, fetch));
                    }
                    (Verdict::Serve | Verdict::ServeAndRefresh, None) | (Verdict::Decline, _) => Offer::Declined,
                    (Verdict::Validate | Verdict::Ignore | Verdict::Beneath, _) => {
                        return done(Round::Again(fetch));
                    }
                }
            }
            State::Filled(made) => {
                let Made { entry, index } = &*made;
                if let Some((variant, index)) = index {
                    match self.hop(index) {
                        Some(hop) if hop.variant == *variant => {}
                        Some(hop) => return done(Round::Beneath(hop, fetch)),
                        None => return done(Round::Newer(Scope::Fleet, fetch)),
                    }
                }
                // Made while this caller waited, it counts, however short its lifetime; joined too late, it is judged.
                match entry.meta().answered >= self.asked || self.servable(entry) {
                    true => self.judge.read(entry, Timestamp::now()).map_or(Offer::Declined, Offer::Taken),
                    false if self.declines(entry) => Offer::Declined,
                    false => return done(Round::Newer(Scope::Fleet, fetch)),
                }
            }
            State::NotShared(class) if self.judge.heeds(class) => Offer::Declined,
            State::Running | State::Queued | State::Vacant | State::Declined(..) | State::NotShared(_) => {
                return done(Round::Again(fetch));
            }
            State::Stale(entry) => match self.forgiven(&entry) {
                Some(answer) => return done(Round::Answer(answer, CacheVerdict::Stale)),
                None => Offer::Declined,
            },
            State::Shared(live) | State::AtHead(live) => self.judge.share(&live),
            State::Failed(failure, stale) => {
                if let Some(answer) = stale.as_ref().and_then(|entry| self.forgiven(entry)) {
                    return done(Round::Answer(answer, CacheVerdict::Stale));
                }
                match failure {
                    Failure::Error(error) => return done(self.refuse(error)),
                    Failure::Live(live) => self.judge.share(&live),
                }
            }
        };
        done(match shared {
            Offer::Taken(answer) => Round::Answer(answer, CacheVerdict::Coalesced),
            // For instance of another type: it gets an answer all the same.
            Offer::Declined => return aside(self.answer_alone(fetch)),
            // Its body may take long, and holds the lease until then.
            Offer::TooOld => Round::Newer(Scope::Local, fetch),
            Offer::Again => Round::Again(fetch),
            Offer::Beneath(hop) => Round::Beneath(hop, fetch),
        })
    }
}
