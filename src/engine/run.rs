//! One run of a computation: what it runs for, within which bounds, and what is left to do when its head is there.

use super::{
    Beside, Class, EVERYBODY, End, Ended, Keep, LEADING, Led, NO_ONE, Place,
    flight::{Flight, State, Wanted},
    right::{Claim, Made},
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::{Config, Outage},
    entry::{Entry, Kind, Live},
    error::{Error, ErrorKind},
    policy::{Freshness, freshness},
    store::{Listener, StoreError, Token, Tombstone},
};
use futures_util::{FutureExt, future::join};
use std::{future::Future, panic::AssertUnwindSafe, pin::Pin, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout, timeout_at};

pub(super) struct Run {
    pub(super) place: Place,
    pub(super) flight: Flight,
    /// The entry at hand: not good enough, but perhaps better than none.
    pub(super) seen: Option<Entry>,
    /// What was passed on the way to its address.
    pub(super) trail: Vec<Live>,
    /// What it computes, and what that is part of.
    pub(super) leading: Vec<Led>,
    /// When its caller has waited enough for others.
    pub(super) give_up: Instant,
    /// Whether it runs within its caller, who is kept waiting by all that is not handed to a task.
    pub(super) scoped: bool,
}

/// What is left of a flight when everybody is answered who can be answered at the head.
pub(super) struct Left {
    pub(super) claim: Claim,
    /// When its fetch is aborted.
    pub(super) deadline: Instant,
    pub(super) rest: Rest,
}

/// What is left to do.
pub(super) enum Rest {
    /// Drive the end, and store it.
    Store(Token, (Timestamp, Timestamp), Keep, End),
    /// Leave word that the answer is not for this class of callers.
    Mark(Kind, Class, End),
    /// Let others try, after the tombstone.
    GiveBack(Option<Tombstone>, End),
}

/// Why a part of a fetch was ended.
pub(super) enum Stop {
    Panicked,
    TimedOut,
}

impl Run {
    /// Takes in what the store says of the entry at hand. One that is gone must not be served any more.
    pub(super) fn stands(&mut self, alive: bool) {
        if !alive {
            self.seen = None;
        }
        self.flight.stands(self.seen.clone());
    }

    /// Computes for this process alone, unless another flight does that began after `since`.
    pub(super) async fn go_local(&self, listener: Listener, since: Option<Timestamp>) -> Result<Claim, State> {
        self.alone_in_process(Claim::Local { listener: Box::new(listener), _place: None }, since).await
    }

    /// Computes for this process alone because the store does not answer, or does not compute.
    pub(super) async fn fail_open(&self, listener: Listener, error: StoreError) -> Result<Claim, State> {
        match self.place.config.outage {
            Outage::FailOpen => match self.go_local(listener, None).await? {
                Claim::Local { listener, .. } => self.admitted(listener).await,
                claim => Ok(claim),
            },
            Outage::FailClosed => Err(State::Declined(Error::store_down(error.into()), self.flight.standing())),
        }
    }

    /// Waits for a place in the bulkhead. What is part of another computation needs none: that one may hold the last.
    pub(super) async fn admitted(&self, listener: Box<Listener>) -> Result<Claim, State> {
        if self.is_nested() {
            return Ok(Claim::Local { listener, _place: None });
        }
        let bulkhead = self.place.config.bulkhead.clone();
        let permit = match bulkhead.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                self.flight.announce(State::Queued);
                let Ok(Ok(permit)) = timeout_at(self.give_up, bulkhead.acquire_owned()).await else {
                    let error = Error::overloaded("the store does not answer, and too much is computed without it");
                    return Err(State::Declined(error, None));
                };
                self.flight.announce(State::Running);
                permit
            }
        };
        Ok(Claim::Local { listener, _place: Some(permit) })
    }

    /// Computes for this process alone, as a marker says.
    pub(super) async fn pass_store(&self, marker: Token) -> Result<Claim, State> {
        self.alone_in_process(Claim::PassStore(marker), None).await
    }

    async fn alone_in_process(&self, claim: Claim, since: Option<Timestamp>) -> Result<Claim, State> {
        let nested = self.is_nested();
        let Some(join) = self.flight.go_local(Wanted { since, nested, under_way: false }) else { return Ok(claim) };
        // It may be waiting for what this one is part of.
        let config = &self.place.config;
        let budget = backoff::budget(config.wait, clock::draw());
        let patience = if nested { budget } else { config.max_fetch + budget };
        match timeout(patience, join.landed(|_| false)).await {
            Ok(State::Queued) | Err(_) => Ok(claim),
            Ok(state) => Err(state),
        }
    }

    /// Whether it is part of another computation.
    fn is_nested(&self) -> bool {
        self.leading.len() > 1
    }

    /// Awaits while it leads nothing yet. Told of an invalidation meanwhile, it leaves the map at once; what follows from
    /// that is for those who hear of it next.
    pub(super) async fn listening<T>(&self, listener: &Listener, mut awaited: Pin<&mut impl Future<Output = T>>) -> T {
        tokio::select! {
            biased;
            () = listener.told() => {
                self.flight.gone();
                awaited.await
            }
            done = &mut awaited => done,
        }
    }

    /// Stays for a moment as the refresh of its key, so that not every request asks anew whether another one leads.
    pub(super) async fn linger(&self, most: Duration) {
        if !self.scoped {
            sleep(most.min(LINGER)).await;
        }
    }

    /// Runs a part of the fetch: marked as computing its key, without letting a panic out, at most until the deadline,
    /// and while the lease is kept.
    pub(super) fn attend<T>(
        &self,
        claim: &mut Claim,
        deadline: Instant,
        part: impl Future<Output = T>,
    ) -> impl Future<Output = Result<T, Stop>> {
        let part = LEADING.scope(self.leading.clone(), part);
        let contained = AssertUnwindSafe(part).catch_unwind().map(|done| done.map_err(|_| Stop::Panicked));
        let limited = timeout_at(deadline, contained).map(|done| done.unwrap_or(Err(Stop::TimedOut)));
        Beside::new(limited, claim.keep(&self.flight))
    }

    /// Does what is left to do. The flight is joined until an entry is stored, so that nobody in this process computes
    /// again what is about to be there.
    pub(super) async fn conclude(self: Box<Self>, left: Left) {
        if self.scoped {
            let tasks = self.place.engine.tasks.clone();
            tasks.spawn(async move { self.concluded(left).await });
        } else {
            self.concluded(left).await;
        }
    }

    async fn concluded(&self, left: Left) {
        let Left { mut claim, deadline, rest } = left;
        match rest {
            Rest::Store(id, times, keep, end) => {
                let ended = match end {
                    End::Now(payload) => Ended::Payload(payload),
                    end => self.attend(&mut claim, deadline, end.reached()).await.unwrap_or(Ended::BrokenOff),
                };
                match ended {
                    Ended::Payload(payload) => {
                        let made = Arc::new(Made::new(id, times, keep, payload));
                        // Joined while it is filled only if that is of use to those who come now.
                        let state = State::Filled(made.clone());
                        match freshness(&made.entry, Timestamp::now()) {
                            Freshness::Fresh => self.flight.announce(state),
                            _ => self.flight.land(state),
                        }
                        if let (None, Some((_, index))) = (claim.lease(), &made.index) {
                            // It stays here; others are led to where they meet by it.
                            self.place.engine.known.remember(&self.place.at, index);
                        }
                        claim.fill(&self.place, &self.flight, &made).await;
                    }
                    Ended::OverCap => {
                        self.flight.land(State::NotShared(EVERYBODY));
                        self.mark(claim, Kind::Pass, EVERYBODY).await;
                    }
                    // Those who wait for it try again, one for all: to release them would be the stampede.
                    Ended::BrokenOff => {
                        claim.give_back(None).await;
                        self.flight.land(State::Vacant);
                    }
                }
            }
            // What is rare is boxed, here and below: every flight would have room for it.
            Rest::Mark(kind, class, end) => {
                Box::pin(join(self.mark(claim, kind, class), self.driven(deadline, end))).await;
            }
            Rest::GiveBack(tombstone, end) => {
                Box::pin(join(claim.give_back(tombstone), self.driven(deadline, end))).await;
            }
        }
    }

    /// Leaves word that the answer is not for this class of callers; unless an entry is there that is still fresh.
    async fn mark(&self, claim: Claim, kind: Kind, class: Class) {
        let fresh = |e: &Entry| e.meta().kind == Kind::Value && freshness(e, Timestamp::now()) == Freshness::Fresh;
        if class == NO_ONE || self.place.config.pass_for.is_zero() || self.seen.as_ref().is_some_and(fresh) {
            claim.give_back(None).await;
        } else if claim.lease().is_some() {
            let marker = Made::marker(claim.id(), kind, class, self.place.config.pass_for);
            claim.fill(&self.place, &self.flight, &marker).await;
        }
    }

    /// Drives an end that is not stored, for those who read along.
    async fn driven(&self, deadline: Instant, end: End) {
        let _ = self.attend(&mut Claim::Spent, deadline, end.reached()).await;
    }
}

impl Stop {
    pub(super) fn error(&self, config: &Config) -> Error {
        match self {
            Self::Panicked => Error::new(ErrorKind::Panicked, "the fetch panicked"),
            Self::TimedOut => {
                let what = format!("the fetch was aborted after {:?}; see `max_fetch`", config.max_fetch);
                Error::new(ErrorKind::TimedOut, what)
            }
        }
    }
}

const LINGER: Duration = Duration::from_millis(50);
