//! Drives one flight: gets the right to fetch, or an answer instead; fetches; tells everybody; stores.

use super::{
    BoxFetch, CacheVerdict, End, Ended, Failure, Head, Judge, Keep, LEADING, Share, Turn, Verdict,
    flight::{Flight, State},
    place::Place,
    right::{self, Claim, Leading, LeaseGuard},
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::Config,
    entry::{Entry, Kind},
    error::{Error, ErrorKind},
    key::Address,
    policy::{Freshness, freshness},
    store::{Ask, Hold, Lead, Token},
    telemetry,
};
use futures_util::FutureExt;
use std::{future::Future, panic::AssertUnwindSafe};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

/// Dropped at any await, it strands nobody: [`Flight`] lets the next one try, [`LeaseGuard`] gives the lease back.
pub(super) struct Pilot<'a, R, J> {
    pub(super) place: Place,
    pub(super) judge: J,
    pub(super) flight: Flight,
    /// The entry at hand: not good enough, but perhaps better than none.
    pub(super) seen: Option<Entry>,
    pub(super) own: Option<oneshot::Sender<Landed<'a, R>>>,
    pub(super) leading: Vec<Address>,
}

/// How a flight begins.
pub(super) enum Start {
    /// With the question who leads. Behind an answer that was served already, it gives way to anybody who does.
    Fleet { behind: bool },
    /// At once, because the store or another leader does not answer in time.
    FailOpen,
    /// At once, because a marker says that the answer stays in the process.
    PassStore(Token),
}

/// What the caller that opened the flight gets of it.
pub(super) enum Landed<'a, R> {
    Own(R, CacheVerdict),
    /// The same as those who joined, and its fetch back.
    Unused(State, BoxFetch<'a, R>),
    /// The entry at hand, because the fetch failed.
    Stale(Entry),
    /// The fetch was aborted.
    Failed(Error),
}

impl<'a, R: Send + 'a, J: Judge<R>> Pilot<'a, R, J> {
    pub(super) async fn fly(mut self, start: Start, fetch: BoxFetch<'a, R>) {
        let claim = match start {
            Start::Fleet { behind } => self.claim(behind).await,
            Start::FailOpen => Ok(Claim::Local),
            Start::PassStore(marker) => Ok(Claim::PassStore(marker)),
        };
        match claim {
            Ok(claim) => self.lead(claim, fetch).await,
            Err(state) => {
                self.flight.land(state.clone());
                self.answer(Landed::Unused(state, fetch));
            }
        }
    }

    /// Waits until the right to fetch is granted, or there is an answer without.
    async fn claim(&mut self, behind: bool) -> Result<Claim, State> {
        let place = self.place.clone();
        let mut listener = place.listen(); // before asking: no wake-up falls in between
        let give_up = clock::in_future(backoff::budget(place.config.wait, clock::draw()));
        let (mut asked, mut gone, mut disconnected) = (0, 0, false);
        let mut awaited: Vec<Token> = Vec::new();
        loop {
            let token = listener.token();
            let guard = LeaseGuard::new(place.clone(), token);
            let seen = self.seen.as_ref().map(|entry| entry.meta().id);
            let lead = match place.lead(Ask { token, lease: place.config.lease, seen }).await {
                Ok(lead) => lead,
                Err(_) if behind => return Err(State::Vacant),
                Err(error) if error.is_disconnected() && !disconnected => {
                    disconnected = true;
                    continue; // with a new token; the old one is given back behind
                }
                Err(_) => return self.go_local(Claim::Local).await,
            };
            let (remaining, holder, waiting, registered) = match lead {
                Lead::Granted { lease, seen_alive } => {
                    self.keep_seen(seen_alive);
                    return Ok(Claim::Lease(Box::new(Leading::new(lease, guard, listener))));
                }
                Lead::Hit(entry) => {
                    guard.spent();
                    asked += 1;
                    if asked > MOST_HITS && !awaited.contains(&entry.meta().id) {
                        return self.go_local(Claim::Local).await;
                    }
                    match self.hit(entry, &awaited) {
                        Some(Hit::Land(state)) => return Err(state),
                        Some(Hit::Local(marker)) => return self.go_local(Claim::PassStore(marker)).await,
                        None => continue,
                    }
                }
                Lead::Failed { retry_in, code, seen_alive } => {
                    guard.spent();
                    self.keep_seen(seen_alive);
                    if place.config.tombstone.is_zero() {
                        return self.go_local(Claim::Local).await;
                    }
                    let error = Error::failed_elsewhere(code, retry_in);
                    return Err(State::Failed(Failure::Error(error), self.seen.take()));
                }
                Lead::Wait { remaining, holder, waiting, registered, seen_alive } => {
                    guard.spent();
                    self.keep_seen(seen_alive);
                    (remaining, holder, waiting, registered)
                }
            };
            if behind {
                return Err(State::Vacant);
            }
            if listener.is_ghost(holder) && !awaited.contains(&holder) {
                awaited.push(holder);
                let _ = place.abandon(holder, None).await;
                continue;
            }
            if !awaited.contains(&holder) {
                awaited.push(holder);
            }
            let expiry = remaining + backoff::after_expiry(waiting, clock::draw());
            let pause = backoff::poll(asked, registered, clock::draw()).min(expiry);
            asked += 1;
            tokio::select! {
                dropped = listener.woken() => if dropped {
                    self.flight.detach();
                    self.seen = None;
                    gone += 1;
                    if gone == MOST_GONE {
                        return self.go_local(Claim::Local).await; // it is invalidated faster than it is computed
                    }
                },
                () = tokio::time::sleep(pause) => {}
                () = tokio::time::sleep_until(give_up) => {
                    telemetry::waited_enough(&place.engine.stats, &place.at);
                    let now = Timestamp::now();
                    match self.seen.take_if(|entry| self.judge.forgives(entry, now)) {
                        Some(entry) => return Err(State::Stale(entry)),
                        None => return self.go_local(Claim::Local).await,
                    }
                }
            }
        }
    }

    /// What an entry that the store had after all means for the flight. `None`: not enough, ask again.
    fn hit(&mut self, entry: Entry, awaited: &[Token]) -> Option<Hit> {
        let now = Timestamp::now();
        let id = entry.meta().id;
        if super::is_marker(&entry, now) {
            return Some(match entry.meta().kind {
                Kind::PassStore => Hit::Local(id),
                Kind::Pass | Kind::Value => Hit::Land(State::NotShared),
            });
        }
        // What this flight waited for counts, however short its lifetime: else those who wait would lead in turn.
        if awaited.contains(&id) && self.judge.read(&entry).is_some() {
            return Some(Hit::Land(State::Filled(entry)));
        }
        match self.judge.judge(&entry, now) {
            Verdict::Serve | Verdict::ServeAndRefresh if self.judge.read(&entry).is_some() => {
                Some(Hit::Land(State::Found(entry)))
            }
            _ => {
                self.seen = Some(entry);
                None
            }
        }
    }

    fn keep_seen(&mut self, alive: bool) {
        if !alive {
            self.seen = None;
        }
    }

    /// Computes for this process alone, unless somebody does already.
    async fn go_local(&self, claim: Claim) -> Result<Claim, State> {
        match self.flight.go_local() {
            None => Ok(claim),
            Some(join) => Err(join.landed().await),
        }
    }

    async fn lead(mut self, mut claim: Claim, fetch: BoxFetch<'a, R>) {
        let permit = match claim {
            // One within another computation must not wait for its turn: that one may hold the last permit.
            Claim::Local if self.leading.len() == 1 => self.place.engine.bulkhead.clone().acquire_owned().await.ok(),
            Claim::Local | Claim::Lease(_) | Claim::PassStore(_) => None,
        };
        let began = Timestamp::now();
        let deadline = clock::in_future(self.place.config.max_fetch);
        let fencing_token = claim.lease().map(|lease| lease.stamp);
        let turn = Turn::Lead { seen: self.seen.clone(), deadline: Some(deadline.into_std()), fencing_token };
        let fetching = self.contained(async move { fetch(turn).await });
        let head = self.attend(&mut claim, deadline, fetching).await;
        drop(permit);
        let Head { own, share, end } = match head {
            Ok(head) => head,
            Err(stop) => {
                let error = stop.error(&self.place.config);
                let own = Landed::Failed(error.clone());
                return self.failed(claim, own, Failure::Error(error), 0, End::Nothing).await;
            }
        };
        let times = (began, Timestamp::now());
        let own = Landed::Own(own, claim.verdict());
        match share {
            Share::Failed(failure, code) => self.failed(claim, own, failure, code, end).await,
            Share::Nobody => {
                self.tell(own, State::NotShared);
                self.mark(claim, Kind::Pass).await;
            }
            Share::Waiting(live) => {
                self.tell(own, State::Shared(live));
                let end = self.contained(end.reached());
                let _ = tokio::join!(self.mark(claim, Kind::PassStore), self.limited(deadline, end));
            }
            Share::Everybody(live, keep) => {
                self.flight.announce(State::Shared(live));
                self.answer(own);
                self.finish(claim, deadline, times, keep, end).await;
            }
            Share::AtEnd(keep) => {
                self.answer(own);
                self.finish(claim, deadline, times, keep, end).await;
            }
        }
    }

    /// Drives the end, and stores it. The flight is joined until that is done, so that nobody in this process computes
    /// again what is about to be stored.
    async fn finish(self, mut claim: Claim, deadline: Instant, times: (Timestamp, Timestamp), keep: Keep, end: End) {
        let end = self.contained(end.reached());
        match self.attend(&mut claim, deadline, end).await.unwrap_or(Ended::BrokenOff) {
            Ended::Payload(payload) => {
                let entry = right::entry(claim.id(), times, keep, payload);
                self.flight.announce(State::Filled(entry.clone()));
                claim.fill(&self.place, &entry).await;
            }
            Ended::OverCap => {
                self.flight.land(State::NotShared);
                self.mark(claim, Kind::Pass).await;
            }
            Ended::BrokenOff => {
                self.flight.land(State::NotShared);
                claim.give_back(None).await;
            }
        }
    }

    async fn failed(mut self, claim: Claim, own: Landed<'a, R>, failure: Failure, code: u16, end: End) {
        let tombstone = self.place.config.tombstone(code);
        let now = Timestamp::now();
        let usable = |entry: &mut Entry| self.judge.forgives(entry, now) && self.judge.read(entry).is_some();
        match self.seen.take_if(usable) {
            // Only a lease that still stands vouches for the entry: an invalidation would have taken both.
            Some(stale) if claim.lease().is_some() => match claim.give_back(tombstone).await {
                Hold::Held => self.tell(Landed::Stale(stale.clone()), State::Failed(failure, Some(stale))),
                Hold::Lost => {
                    self.tell(own, State::Failed(failure, None));
                    let deadline = Instant::now() + self.place.config.max_fetch;
                    let end = self.contained(end.reached());
                    let _ = self.limited(deadline, end).await;
                }
            },
            _ => {
                self.tell(own, State::Failed(failure, None));
                let deadline = clock::in_future(self.place.config.max_fetch);
                let end = self.contained(end.reached());
                let _ = tokio::join!(claim.give_back(tombstone), self.limited(deadline, end));
            }
        }
    }

    /// Leaves word that the answer is not for everybody; unless an entry is there that still is.
    async fn mark(&self, claim: Claim, kind: Kind) {
        let fresh = |entry: &Entry| freshness(entry, Timestamp::now()) == Freshness::Fresh;
        if self.place.config.pass_for.is_zero() || self.seen.as_ref().is_some_and(fresh) {
            claim.give_back(None).await;
        } else if claim.lease().is_some() {
            let marker = right::marker(claim.id(), kind, self.place.config.pass_for);
            claim.fill(&self.place, &marker).await;
        }
    }

    /// Answers everybody for whom the flight is over.
    fn tell(&mut self, own: Landed<'a, R>, state: State) {
        self.flight.land(state);
        self.answer(own);
    }

    /// Answers the caller that opened the flight, if it is still there.
    fn answer(&mut self, landed: Landed<'a, R>) {
        if let Some(own) = self.own.take() {
            let _ = own.send(landed);
        }
    }

    /// Runs a part of the fetch: marked as computing its key, and without letting a panic out.
    fn contained<T>(&self, part: impl Future<Output = T>) -> impl Future<Output = Result<T, Stop>> {
        let leading = self.leading.clone();
        AssertUnwindSafe(LEADING.scope(leading, part)).catch_unwind().map(|done| done.map_err(|_| Stop::Panicked))
    }

    /// Awaits a part of the fetch while the lease is kept, at most until the deadline.
    async fn attend<T>(
        &self,
        claim: &mut Claim,
        deadline: Instant,
        part: impl Future<Output = Result<T, Stop>>,
    ) -> Result<T, Stop> {
        match claim {
            Claim::Lease(leading) => tokio::select! {
                biased;
                done = self.limited(deadline, part) => done,
                never = leading.keep(&self.flight) => match never {},
            },
            Claim::Local | Claim::PassStore(_) => self.limited(deadline, part).await,
        }
    }

    async fn limited<T>(&self, deadline: Instant, part: impl Future<Output = Result<T, Stop>>) -> Result<T, Stop> {
        timeout_at(deadline, part).await.unwrap_or(Err(Stop::TimedOut))
    }
}

/// What an entry that was found while asking to lead means.
enum Hit {
    Land(State),
    Local(Token),
}

/// Why a fetch was ended.
enum Stop {
    Panicked,
    TimedOut,
}

impl Stop {
    fn error(&self, config: &Config) -> Error {
        match self {
            Self::Panicked => Error::new(ErrorKind::Panicked, "the fetch panicked"),
            Self::TimedOut => {
                let what = format!("the fetch was aborted after {:?}; see `max_fetch`", config.max_fetch);
                Error::new(ErrorKind::TimedOut, what)
            }
        }
    }
}

/// After the second invalidation during one wait the flight computes for its own process.
const MOST_GONE: u32 = 2;
/// So many entries that are not good enough are looked at in a row.
const MOST_HITS: u32 = 16;
