//! One flight: mirrors `src/engine/{leader,execution,permit}.rs` and `leader/acquire.rs`.

use super::{
    reader::Outcome,
    rules::Broken,
    server::{Age, Content, Entry, LeaseReply, Token},
    state::{At, Call, Counts, Fault, Flight, Phase, Reader, Reply, Request, Seen, Writer},
    step::Step,
};

/// The decision of a fetch at its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Head {
    Cacheable,
    Private,
    Failed,
}

/// The reaction to a request without a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum AfterSilence {
    /// Go on without the store, or send the fill again.
    GoOn,
    /// The connection broke, so the request is sent once more.
    AskAgain,
    /// The flight has heard of a lease, and waits for what may be left of it.
    Wait,
}

impl Step<'_> {
    pub(crate) fn flight(&mut self, p: usize, f: usize) -> &mut Flight {
        &mut self.world.processes[p].flights[f]
    }

    /// Sends `get_or_lease`, each time with a new token.
    pub(crate) fn lead(&mut self, p: usize, f: usize) {
        let token = self.token(p);
        self.lead_as(p, f, token);
    }

    fn lead_as(&mut self, p: usize, f: usize, token: Token) {
        let flight = self.flight(p, f);
        (flight.phase, flight.call) = (Phase::Asking { token }, Some(Call::Sent));
        if flight.counts == Counts::None {
            self.callers_asked(p, f);
        }
    }

    /// Records the callers of a refresh at a question that is the first one to be answered with a holder.
    pub(crate) fn callers_asked(&mut self, p: usize, f: usize) {
        for reader in &mut self.world.processes[p].readers {
            if let At::Aboard { flight, asked, .. } = &mut reader.at {
                *asked |= *flight == f;
            }
        }
    }

    /// Handles the reply that arrives.
    pub(crate) fn deliver(&mut self, p: usize, f: usize, reply: Reply) {
        let flight = self.flight(p, f);
        flight.call = None;
        match (flight.phase, reply) {
            (Phase::Asking { token }, Reply::Lead(led, floor)) => self.led(p, f, token, led, floor),
            (Phase::Leading { .. }, Reply::Lost(_)) => {
                self.unlist(p, f);
                if let Phase::Leading { lost, .. } = &mut self.flight(p, f).phase {
                    *lost = true;
                }
            }
            (Phase::Releasing { .. }, Reply::Held(floor)) => self.serve_stale_or_fail(p, f, floor),
            (Phase::Releasing { .. }, Reply::Lost(floor)) if self.broken(Broken::NoHeldCheck) => {
                self.serve_stale_or_fail(p, f, floor);
            }
            (Phase::Releasing { .. }, _) => self.complete(p, f, Outcome::Failed),
            (Phase::Filling { .. }, _) => self.end(p, f),
            _ => {}
        }
    }

    fn led(&mut self, p: usize, f: usize, token: Token, led: LeaseReply, floor: u8) {
        match led {
            LeaseReply::Hit(entry) if self.flight(p, f).counts != Counts::All => self.met(p, f, entry),
            LeaseReply::Hit(entry) => {
                if entry.is_marker() {
                    return self.complete(p, f, Outcome::Uncacheable);
                }
                let servable = !entry.is_stale() || self.config.refresh;
                let is_expired = entry.age == Age::Expired && !self.broken(Broken::AwaitedIsNotJudged);
                match entry.content {
                    // The entry that the flight waited for counts at any age, unless a caller has expired it.
                    Content::Value(version) if self.flight(p, f).awaited == Some(entry.id) && !is_expired => {
                        if entry.age == Age::Expired {
                            self.world.faults.add(Fault::StaleRead);
                        }
                        self.complete(p, f, Outcome::Shared(version));
                    }
                    Content::Value(_) | Content::Private if servable => self.complete(p, f, Outcome::EntryFound(entry)),
                    content => {
                        let flight = self.flight(p, f);
                        (flight.seen, flight.stands, flight.stood) = (Some(Seen { id: entry.id, content }), None, 0);
                        self.lead(p, f);
                    }
                }
            }
            LeaseReply::Granted { stamp, alive } => {
                self.stands(p, f, alive, floor);
                if self.is_deserted(p, f) && !self.broken(Broken::DesertedFlightLeads) {
                    if !self.broken(Broken::DesertedFlightKeepsGrant) {
                        self.send_in_background(Request::Release { token, failure_marker: false });
                    }
                    return self.complete(p, f, Outcome::Abandoned);
                }
                self.begin_fetch(p, f);
                let version = self.world.origin;
                let ended = !self.world.server.l.is_of((token, stamp));
                let flight = self.flight(p, f);
                flight.awaited = None;
                flight.phase = Phase::Leading { token, stamp, version, lost: false, ended };
                self.read_mail(p, f);
            }
            LeaseReply::Wait { holder, alive } => {
                self.stands(p, f, alive, floor);
                if self.flight(p, f).background {
                    return self.complete(p, f, Outcome::Abandoned);
                }
                if self.broken(Broken::RefreshNamesOneHolder) && self.flight(p, f).counts == Counts::None {
                    self.flight(p, f).counts = Counts::Except(vec![holder]);
                }
                let awaited = self.flight(p, f).awaited.replace(holder) == Some(holder);
                if self.is_orphaned_lease(p, holder) && !awaited {
                    self.send_in_background(Request::Release { token: holder, failure_marker: false });
                    return self.lead(p, f);
                }
                self.wait(p, f);
            }
            LeaseReply::Failed { alive } => {
                self.stands(p, f, alive, floor);
                if self.flight(p, f).background {
                    return self.complete(p, f, Outcome::Abandoned);
                }
                self.serve_stale_or_fail(p, f, floor);
            }
        }
    }

    /// Handles an entry that a refresh meets: takes it, or asks for the lease.
    fn met(&mut self, p: usize, f: usize, entry: Entry) {
        let counts = match &self.flight(p, f).counts {
            Counts::Except(old) => !old.contains(&entry.id),
            Counts::None => self.broken(Broken::RefreshTakesBeforeHolder),
            Counts::All => false,
        };
        let counts = counts && (entry.has_stamp || self.broken(Broken::RefreshTakesWithoutStamp));
        match entry.content {
            Content::Value(version) if counts => return self.complete(p, f, Outcome::Refreshed(version)),
            Content::HitForPass if entry.is_marker() => return self.complete(p, f, Outcome::Uncacheable),
            _ => {}
        }
        let names_one = self.broken(Broken::RefreshNamesOneHolder);
        let flight = self.flight(p, f);
        flight.seen = Some(Seen { id: entry.id, content: entry.content });
        if names_one && flight.counts == Counts::None {
            flight.counts = Counts::Except(vec![entry.id]);
        }
        self.lead(p, f);
    }

    /// Records whether the store still has the entry with which the flight began.
    fn stands(&mut self, p: usize, f: usize, alive: bool, floor: u8) {
        let keep = alive || self.broken(Broken::NoSeenAlive);
        let flight = self.flight(p, f);
        flight.seen = flight.seen.filter(|_| keep);
        flight.stands = flight.candidate().and_then(Seen::version);
        flight.stood = if flight.stands.is_some() { floor } else { 0 };
    }

    /// Ends the flight after a failed fetch, with the stale candidate if there is one.
    fn serve_stale_or_fail(&mut self, p: usize, f: usize, floor: u8) {
        match self.flight(p, f).candidate().and_then(Seen::version) {
            Some(version) => self.complete(p, f, Outcome::ServeStale(version, floor)),
            None => self.complete(p, f, Outcome::Failed),
        }
    }

    /// Reports whether the holder is a flight of this process that has ended.
    fn is_orphaned_lease(&self, p: usize, holder: Token) -> bool {
        let alive = |flight: &Flight| flight.phase.token() == Some(holder);
        let puts = |writer: &Writer| match writer {
            Writer::Rests => false,
            Writer::Sent(request) | Writer::Executed(request, _) => {
                matches!(request, Request::Put { token, .. } if *token == holder)
            }
        };
        let is_alive = self.world.processes[p].flights.iter().any(alive) || self.world.writers.iter().any(puts);
        usize::from(holder.of) == p && !is_alive
    }

    /// Waits for the leader of another process, unless no caller wants the result any more.
    fn wait(&mut self, p: usize, f: usize) {
        self.flight(p, f).phase = Phase::Waiting;
        if self.is_deserted(p, f) {
            return self.complete(p, f, Outcome::Abandoned);
        }
        self.read_mail(p, f);
    }

    /// Reports whether no caller wants the result.
    fn is_deserted(&self, p: usize, f: usize) -> bool {
        let process = &self.world.processes[p];
        let wants = |reader: &Reader| matches!(reader.at, At::Aboard { flight, .. } if flight == f);
        !process.flights[f].background && !process.readers.iter().any(wants)
    }

    /// Ends a flight that waits, if the last caller that wanted the result has left.
    pub(crate) fn leave_if_deserted(&mut self, p: usize, f: usize) {
        if self.flight(p, f).phase == Phase::Waiting && self.is_deserted(p, f) {
            self.complete(p, f, Outcome::Abandoned);
        }
    }

    /// Notes a fetch that begins for no caller.
    fn begin_fetch(&mut self, p: usize, f: usize) {
        if self.is_deserted(p, f) {
            self.world.faults.add(Fault::ForNoCaller);
        }
    }

    /// Gives up waiting for the reply. `kept`: the request may still arrive.
    pub(crate) fn give_up(&mut self, p: usize, f: usize, kept: bool, then: AfterSilence) {
        let flight = self.flight(p, f);
        let call = flight.call.take();
        let sent = matches!(call, Some(Call::Sent | Call::Checked));
        let phase = flight.phase;
        if kept && sent {
            let request = self.request(p, f);
            self.send_in_background(request);
        }
        match phase {
            Phase::Asking { token } => {
                if let (counts @ Counts::Except(_), Some(Call::Answered(_))) = (&mut self.flight(p, f).counts, call) {
                    *counts = Counts::None;
                }
                self.send_in_background(Request::Release { token, failure_marker: false });
                match then {
                    AfterSilence::AskAgain if self.broken(Broken::SameTokenRetry) => self.lead_as(p, f, token),
                    AfterSilence::AskAgain => self.lead(p, f),
                    AfterSilence::Wait => self.wait(p, f),
                    AfterSilence::GoOn if self.flight(p, f).background => self.complete(p, f, Outcome::Abandoned),
                    AfterSilence::GoOn => self.join_or_lead_locally(p, f),
                }
            }
            Phase::Filling { again: false, .. } => {
                let flight = self.flight(p, f);
                flight.call = Some(Call::Sent);
                if let Phase::Filling { again, .. } = &mut flight.phase {
                    *again = true;
                }
            }
            Phase::Filling { token, .. } => {
                self.send_in_background(Request::Release { token, failure_marker: false });
                self.end(p, f);
            }
            Phase::Releasing { .. } => self.complete(p, f, Outcome::Failed),
            Phase::Leading { .. } | Phase::Waiting | Phase::Local { .. } => {}
        }
    }

    /// Leaves the coordinated flight. Joins the local flight, or becomes the local flight if there is none.
    fn join_or_lead_locally(&mut self, p: usize, f: usize) {
        if self.is_deserted(p, f) {
            return self.complete(p, f, Outcome::Abandoned);
        }
        self.unlist(p, f);
        let version = self.world.origin;
        let joins = self.flight(p, f).counts == Counts::All || self.broken(Broken::RefreshJoinsLocal);
        if !joins {
            self.begin_fetch(p, f);
            self.world.processes[p].local = Some(f); // in place of one that has begun
            return self.flight(p, f).phase = Phase::Local { version };
        }
        let process = &mut self.world.processes[p];
        if let Some(local) = process.local {
            for reader in &mut process.readers {
                if matches!(reader.at, At::Aboard { flight, .. } if flight == f) {
                    reader.at = At::Aboard { flight: local, own: false, asked: false };
                }
            }
            return self.end(p, f);
        }
        process.local = Some(f);
        let flight = &mut process.flights[f];
        (flight.phase, flight.call, flight.awaited) = (Phase::Local { version }, None, None);
    }

    /// Handles the head of the fetch.
    pub(crate) fn head(&mut self, p: usize, f: usize, head: Head) {
        let flight = self.flight(p, f);
        flight.call = None;
        let Phase::Leading { token, stamp, version, lost, .. } = flight.phase else {
            let Phase::Local { version } = flight.phase else { return };
            return match head {
                Head::Cacheable => self.complete(p, f, Outcome::Shared(version)),
                Head::Private => self.complete(p, f, Outcome::Private),
                Head::Failed => self.complete(p, f, Outcome::Failed),
            };
        };
        let content = match head {
            Head::Cacheable => {
                self.settle(p, f, Outcome::Shared(version));
                Content::Value(version)
            }
            Head::Private => {
                self.settle(p, f, Outcome::Private);
                self.unlist(p, f);
                if self.broken(Broken::PrivateStored) { Content::Private } else { Content::HitForPass }
            }
            Head::Failed if flight.candidate().is_some_and(Seen::is_value) => {
                (flight.phase, flight.call) = (Phase::Releasing { token }, Some(Call::Sent));
                return;
            }
            Head::Failed => {
                self.send_in_background(Request::Release { token, failure_marker: true });
                return self.complete(p, f, Outcome::Failed);
            }
        };
        if lost {
            return self.end(p, f);
        }
        let flight = self.flight(p, f);
        flight.phase = Phase::Filling { token, stamp, content, again: false, puts: false };
        flight.call = Some(Call::Sent);
        (flight.seen, flight.stands, flight.stood) = (None, None, 0);
    }

    /// Drops the flight: the lease is released in the background, and the waiters try again.
    pub(crate) fn cancel(&mut self, p: usize, f: usize) {
        let flight = self.flight(p, f);
        let sent = matches!(flight.call, Some(Call::Sent));
        if sent {
            let request = self.request(p, f);
            self.send_in_background(request);
        }
        if let Some(token) = self.flight(p, f).phase.token() {
            self.send_in_background(Request::Release { token, failure_marker: false });
        }
        self.complete(p, f, Outcome::Abandoned);
    }

    /// Removes the flight from the table, so that no further reader joins it.
    pub(crate) fn unlist(&mut self, p: usize, f: usize) {
        let process = &mut self.world.processes[p];
        process.fleet = process.fleet.filter(|&at| at != f);
        process.local = process.local.filter(|&at| at != f);
        process.refresh = process.refresh.filter(|&at| at != f);
    }
}

impl Flight {
    /// The entry that may be served if the fetch fails. A refresh has none.
    fn candidate(&self) -> Option<Seen> {
        self.seen.filter(|_| self.counts == Counts::All)
    }
}

impl Seen {
    fn version(self) -> Option<u8> {
        match self.content {
            Content::Value(version) => Some(version),
            Content::HitForPass | Content::Private => None,
        }
    }
}
