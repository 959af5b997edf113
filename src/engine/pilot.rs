//! Drives one flight: gets the right to fetch, or an answer instead; fetches; tells everybody; stores.

use super::{
    BoxFetch, CacheVerdict, EVERYBODY, End, Failure, Head, Judge, Share, Turn, Verdict,
    caller::{Caller, LATE},
    flight::State,
    is_marker,
    right::{Claim, Leading, LeaseGuard},
    run::{Left, Rest, Run},
};
use crate::{
    backoff,
    clock::{self, Timestamp},
    config::AfterWait,
    entry::{Entry, Kind},
    error::Error,
    store::{Ask, Hold, Lead, Listener, Token},
    telemetry,
};
use std::{pin::pin, sync::Arc};
use tokio::sync::oneshot;

/// Dropped at any await, it strands nobody: [`Flight`](super::flight::Flight) lets the next one try, [`LeaseGuard`] gives the lease back.
pub(super) struct Pilot<'a, R, J> {
    pub(super) judge: J,
    pub(super) own: Option<oneshot::Sender<Landed<'a, R>>>,
    /// In a box, since it moves along: an `async fn` has room for its arguments twice.
    pub(super) run: Box<Run>,
}

/// How a flight begins.
pub(super) enum Start {
    /// With the question who leads. Behind an answer that was served already, it gives way to anybody who does.
    Fleet { behind: bool },
    /// At once, because the store does not answer.
    Outage,
    /// At once, because another leader does not answer in time.
    Overdue,
    /// At once, because a marker says that the answer stays in the process.
    PassStore(Token),
}

/// What the caller that opened the flight gets of it.
pub(super) enum Landed<'a, R> {
    Own(R, CacheVerdict),
    /// Its own failure.
    OwnFailure(R, CacheVerdict),
    /// The same as those who joined, and its fetch back.
    Unused(State, BoxFetch<'a, R>),
    /// The entry at hand, because the fetch failed.
    Stale(Entry),
    /// The fetch was aborted.
    Failed(Error),
}

impl<'a, R: Send + 'a, J: Judge<R> + Clone + Send + Sync + 'static> Pilot<'a, R, J> {
    pub(super) async fn fly(mut self, start: Start, fetch: BoxFetch<'a, R>) {
        let listener = self.run.place.listen(); // before asking: no wake-up falls in between
        let claim = match start {
            Start::Fleet { behind } => self.claim(behind, listener).await,
            Start::Outage => self.run.admitted(Box::new(listener)).await,
            Start::Overdue => Ok(Claim::Local { listener: Box::new(listener), _place: None }),
            Start::PassStore(marker) => Ok(Claim::PassStore(marker)),
        };
        match claim {
            Ok(claim) => {
                if let Some(left) = self.lead(claim, fetch).await {
                    self.run.conclude(left).await;
                }
            }
            Err(state) => {
                self.run.flight.land(state.clone());
                self.answer(Landed::Unused(state, fetch));
            }
        }
    }

    /// Waits until the right to fetch is granted, or there is an answer without.
    async fn claim(&mut self, behind: bool, mut listener: Listener) -> Result<Claim, State> {
        let place = self.run.place.clone();
        let give_up = self.run.give_up;
        // What began before this flight may have been invalidated since, and nobody told it.
        let since = Some(self.run.flight.began());
        let (mut asked, mut hits, mut gone, mut disconnected) = (0, 0, 0, false);
        let mut awaited: Vec<Token> = Vec::new();
        loop {
            let opened = place.engine.gates.opened(); // before asking: none is missed in between
            let token = listener.token();
            let guard = LeaseGuard::new(place.clone(), token);
            let seen = self.run.seen.as_ref().map(|entry| entry.meta().id);
            let ask = Ask { token, lease: place.config.lease, seen };
            let lead = match self.run.listening(&listener, pin!(place.lead(ask))).await {
                Ok(lead) => lead,
                Err(_) if behind => return Err(State::Vacant),
                Err(error) if error.is_disconnected() && !disconnected => {
                    disconnected = true;
                    continue; // with a new token; the old one is given back behind
                }
                Err(error) => return self.run.fail_open(listener, error).await,
            };
            let (remaining, holder, waiting, registered) = match lead {
                Lead::Granted { lease, seen_alive } => {
                    self.run.stands(seen_alive);
                    return Ok(Claim::Lease(Box::new(Leading::new(lease, guard, listener))));
                }
                Lead::Hit(entry) => {
                    guard.spent();
                    hits += 1;
                    match self.hit(entry, &awaited) {
                        Some(Hit::Land(state)) => return Err(state),
                        Some(Hit::Local(marker)) => return self.run.pass_store(marker).await,
                        None if hits > MOST_HITS => return self.run.go_local(listener, since).await,
                        None => continue,
                    }
                }
                Lead::Failed { retry_in, code, seen_alive } => {
                    guard.spent();
                    self.run.stands(seen_alive);
                    if behind {
                        self.run.listening(&listener, pin!(self.run.linger(retry_in))).await;
                        return Err(State::Vacant);
                    }
                    if place.config.tombstone.is_zero() {
                        return self.run.go_local(listener, since).await;
                    }
                    let error = Error::failed_elsewhere(code, retry_in);
                    return Err(State::Failed(Failure::Error(error), self.run.seen.take()));
                }
                Lead::Wait { remaining, holder, waiting, registered, seen_alive } => {
                    guard.spent();
                    self.run.stands(seen_alive);
                    (remaining, holder, waiting, registered)
                }
            };
            if behind {
                self.run.listening(&listener, pin!(self.run.linger(remaining))).await;
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
            // The leader may be waiting for what this computation is part of.
            let outer = self.run.leading.split_last().map_or(&[][..], |(_, outer)| outer);
            if place.engine.waits.closes_a_cycle(&place, outer) {
                telemetry::cycle(&place.engine.stats, &place.at);
                return self.run.go_local(listener, since).await;
            }
            let expiry = remaining + backoff::after_expiry(waiting, clock::draw());
            let pause = backoff::poll(asked, registered, clock::draw()).min(expiry);
            asked += 1;
            tokio::select! {
                biased;
                dropped = listener.woken() => if dropped {
                    self.run.flight.gone();
                    self.run.seen = None;
                    gone += 1;
                    if gone == MOST_GONE {
                        // It is invalidated faster than it is computed.
                        return self.run.go_local(listener, since).await;
                    }
                },
                () = opened => {}
                () = tokio::time::sleep(pause) => {}
                () = tokio::time::sleep_until(give_up) => {
                    telemetry::waited_enough(&place.engine.stats, &place.at);
                    let now = Timestamp::now();
                    match self.run.seen.take_if(|entry| self.judge.forgives(entry, now)) {
                        Some(entry) => return Err(State::Stale(entry)),
                        None if place.deadline.is_some_and(|deadline| deadline <= give_up) => {
                            return Err(State::Declined(Error::overloaded(LATE), None));
                        }
                        None if place.config.after_wait == AfterWait::Reject => {
                            return Err(State::Declined(Error::overloaded(WAITED), None));
                        }
                        None => return self.run.go_local(listener, since).await,
                    }
                }
            }
        }
    }

    /// What an entry that the store had after all means for the flight. `None`: not enough, ask again.
    fn hit(&mut self, entry: Entry, awaited: &[Token]) -> Option<Hit> {
        let now = Timestamp::now();
        let id = entry.meta().id;
        if is_marker(&entry, now) {
            return Some(match entry.meta().kind {
                Kind::PassStore => Hit::Local(id),
                // Also if this flight does not heed it: some of those who joined may.
                Kind::Pass | Kind::Value => Hit::Land(State::NotShared(entry.meta().codec)),
            });
        }
        // What this flight waited for counts, however short its lifetime: else those who wait would lead in turn.
        if awaited.contains(&id) && self.judge.read(&entry, now).is_some() {
            return Some(Hit::Land(State::Filled(Arc::new(entry.into()))));
        }
        match self.judge.judge(&entry, now) {
            Verdict::Serve | Verdict::ServeAndRefresh if self.judge.read(&entry, now).is_some() => {
                Some(Hit::Land(State::Found(entry)))
            }
            // Each one who joined judges it, and finds another way.
            Verdict::Decline => Some(Hit::Land(State::Found(entry))),
            Verdict::Beneath if self.judge.beneath(&entry).is_some() => Some(Hit::Land(State::Found(entry))),
            _ => self.not_enough(entry),
        }
    }

    fn not_enough(&mut self, entry: Entry) -> Option<Hit> {
        self.run.flight.stands(None); // another one has taken its place
        self.run.seen = Some(entry);
        None
    }

    /// Fetches, and answers everybody who can be answered at the head.
    async fn lead(&mut self, mut claim: Claim, fetch: BoxFetch<'a, R>) -> Option<Left> {
        let now = clock::now();
        let (began, deadline) = (Timestamp::of(now), now + self.run.place.config.max_fetch);
        let fencing_token = claim.lease().map(|lease| lease.stamp);
        let (id, seen, trail) = (claim.id(), self.run.seen.clone(), self.run.trail.clone());
        let turn = Turn::Lead { id, trail, seen, deadline: deadline.into_std(), fencing_token };
        let head = self.run.attend(&mut claim, deadline, async move { fetch(turn).await }).await;
        let Head { own, share, end } = match head {
            Ok(head) => head,
            Err(stop) => {
                let error = stop.error(&self.run.place.config);
                let own = Landed::Failed(error.clone());
                let (claim, rest) = self.failed(claim, own, Failure::Error(error), Some(0), End::Nothing).await?;
                return Some(Left { claim, deadline, rest });
            }
        };
        let times = (began, Timestamp::now());
        let verdict = claim.verdict();
        let rest = match share {
            Share::Failed(failure, code) => {
                let own = Landed::OwnFailure(own, verdict);
                let (claim, rest) = self.failed(claim, own, failure, code, end).await?;
                return Some(Left { claim, deadline, rest });
            }
            Share::Nobody(class) => {
                self.tell(Landed::Own(own, verdict), State::NotShared(class));
                Rest::Mark(Kind::Pass, class, end)
            }
            Share::Waiting(live) => {
                self.tell(Landed::Own(own, verdict), State::Shared(live));
                Rest::Mark(Kind::PassStore, EVERYBODY, end)
            }
            Share::Everybody(live, keep) => {
                self.run.flight.announce(State::Shared(live));
                self.answer(Landed::Own(own, verdict));
                Rest::Store(id, times, keep, end)
            }
            Share::AtEnd(head, keep) => {
                if let Some(live) = head {
                    self.run.flight.announce(State::AtHead(live));
                }
                self.answer(Landed::Own(own, verdict));
                Rest::Store(id, times, keep, end)
            }
        };
        Some(Left { claim, deadline, rest })
    }

    async fn failed(
        &mut self,
        claim: Claim,
        own: Landed<'a, R>,
        failure: Failure,
        code: Option<u16>,
        end: End,
    ) -> Option<(Claim, Rest)> {
        let tombstone = code.and_then(|code| self.run.place.config.tombstone(code));
        let now = Timestamp::now();
        let usable = |entry: &mut Entry| self.judge.forgives(entry, now) && self.judge.read(entry, now).is_some();
        let claim = match self.run.seen.take_if(usable) {
            // Only a lease that still stands vouches for the entry: an invalidation would have taken both.
            Some(stale) if claim.lease().is_some() => {
                if let Hold::Held = claim.give_back(tombstone).await
                    && Box::pin(self.is_reached()).await
                {
                    self.tell(Landed::Stale(stale.clone()), State::Failed(failure, Some(stale)));
                    return None;
                }
                Claim::Spent
            }
            _ => claim,
        };
        self.tell(own, State::Failed(failure, None));
        Some((claim, Rest::GiveBack(tombstone, end)))
    }

    /// Whether what has led to its address still does: of a resource with indexes an invalidation drops the first one, and
    /// leaves entries and leases beneath.
    async fn is_reached(&self) -> bool {
        let place = &self.run.place;
        if self.run.trail.is_empty() {
            return true;
        }
        let found = Caller::new(place.to_primary(), self.judge.clone(), None).found().await;
        found.is_some_and(|(reached, _)| reached.at == place.at)
    }

    /// Answers everybody for whom the flight is over.
    fn tell(&mut self, own: Landed<'a, R>, state: State) {
        self.run.flight.land(state);
        self.answer(own);
    }

    /// Answers the caller that opened the flight, if it is still there.
    fn answer(&mut self, landed: Landed<'a, R>) {
        if let Some(own) = self.own.take() {
            let _ = own.send(landed);
        }
    }
}

/// What an entry that was found while asking to lead means.
enum Hit {
    Land(State),
    Local(Token),
}

pub(super) const WAITED: &str = "another computation did not end within the wait budget (`AfterWait::Reject`)";
/// After the second invalidation during one wait the flight computes for its own process.
const MOST_GONE: u32 = 2;
/// So many entries that are not good enough are looked at in a row.
const MOST_HITS: u32 = 16;
