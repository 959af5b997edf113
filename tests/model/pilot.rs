//! One flight: `src/engine/{pilot,right,run}.rs`.

use super::{
    reader::Landing,
    rules::Broken,
    server::{Content, Led, Token},
    state::{At, Call, Flight, Phase, Reply, Request, Seen},
    step::Step,
};

/// What a fetch answers at its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Head {
    Everybody,
    Private,
    Failed,
}

impl Step<'_> {
    pub(crate) fn flight(&mut self, p: usize, f: usize) -> &mut Flight {
        &mut self.world.processes[p].flights[f]
    }

    /// Asks who leads, each time with a new token.
    pub(crate) fn lead(&mut self, p: usize, f: usize) {
        let token = self.token(p);
        self.lead_as(p, f, token);
    }

    fn lead_as(&mut self, p: usize, f: usize, token: Token) {
        let flight = self.flight(p, f);
        (flight.phase, flight.call) = (Phase::Asking { token }, Some(Call::Sent));
    }

    /// The answer arrives.
    pub(crate) fn deliver(&mut self, p: usize, f: usize, reply: Reply) {
        let flight = self.flight(p, f);
        flight.call = None;
        match (flight.phase, reply) {
            (Phase::Asking { token }, Reply::Led(led, floor)) => self.led(p, f, token, led, floor),
            (Phase::Leading { .. }, Reply::Lost(_)) => {
                self.detach(p, f);
                if let Phase::Leading { lost, .. } = &mut self.flight(p, f).phase {
                    *lost = true;
                }
            }
            (Phase::GivingBack { .. }, Reply::Held(floor)) => self.forgive(p, f, floor),
            (Phase::GivingBack { .. }, Reply::Lost(floor)) if self.broken(Broken::NoHeldCheck) => {
                self.forgive(p, f, floor);
            }
            (Phase::GivingBack { .. }, _) => self.land(p, f, Landing::Failed),
            (Phase::Filling { .. }, _) => self.end(p, f),
            _ => {}
        }
    }

    fn led(&mut self, p: usize, f: usize, token: Token, led: Led, floor: u8) {
        match led {
            Led::Hit(entry) => {
                if entry.is_marker() {
                    return self.land(p, f, Landing::NotShared);
                }
                let servable = !entry.stale || self.config.refresh;
                match entry.content {
                    // What it waited for counts at any age.
                    Content::Value(version) if self.flight(p, f).awaited == Some(entry.id) => {
                        self.land(p, f, Landing::Shared(version));
                    }
                    Content::Value(_) | Content::Private if servable => self.land(p, f, Landing::Found(entry)),
                    content => {
                        let flight = self.flight(p, f);
                        (flight.seen, flight.stands, flight.stood) = (Some(Seen { id: entry.id, content }), None, 0);
                        self.lead(p, f);
                    }
                }
            }
            Led::Granted { stamp, alive } => {
                self.stands(p, f, alive, floor);
                let version = self.world.origin;
                let ended = !self.world.server.l.is_of((token, stamp));
                let flight = self.flight(p, f);
                flight.awaited = None;
                flight.phase = Phase::Leading { token, stamp, version, lost: false, ended };
                self.read_mail(p, f);
            }
            Led::Wait { holder, alive } => {
                self.stands(p, f, alive, floor);
                if self.flight(p, f).behind {
                    return self.land(p, f, Landing::Vacant);
                }
                let awaited = self.flight(p, f).awaited.replace(holder) == Some(holder);
                if self.is_ghost(p, holder) && !awaited {
                    self.send_behind(Request::Abandon { token: holder, tombstone: false });
                    return self.lead(p, f);
                }
                self.flight(p, f).phase = Phase::Waiting;
                self.read_mail(p, f);
            }
            Led::Failed { alive } => {
                self.stands(p, f, alive, floor);
                if self.flight(p, f).behind {
                    return self.land(p, f, Landing::Vacant);
                }
                self.forgive(p, f, floor);
            }
        }
    }

    /// Takes in what the store says of the entry at hand.
    fn stands(&mut self, p: usize, f: usize, alive: bool, floor: u8) {
        let keep = alive || self.broken(Broken::NoSeenAlive);
        let flight = self.flight(p, f);
        flight.seen = flight.seen.filter(|_| keep);
        flight.stands = flight.seen.and_then(Seen::version);
        flight.stood = if flight.stands.is_some() { floor } else { 0 };
    }

    /// The entry at hand for a fetch that failed.
    fn forgive(&mut self, p: usize, f: usize, floor: u8) {
        match self.flight(p, f).seen.and_then(Seen::version) {
            Some(version) => self.land(p, f, Landing::Stale(version, floor)),
            None => self.land(p, f, Landing::Failed),
        }
    }

    /// Whether the holder is a flight of this process that is no more.
    fn is_ghost(&self, p: usize, holder: Token) -> bool {
        let alive = |flight: &Flight| flight.phase.token() == Some(holder);
        usize::from(holder.of) == p && !self.world.processes[p].flights.iter().any(alive)
    }

    /// The request is given up. `kept`: it may still arrive. `retry`: the connection broke, so it is tried once more.
    pub(crate) fn give_up(&mut self, p: usize, f: usize, kept: bool, retry: bool) {
        let flight = self.flight(p, f);
        let sent = matches!(flight.call, Some(Call::Sent | Call::Checked));
        let phase = flight.phase;
        flight.call = None;
        if kept && sent {
            let request = self.request(p, f);
            self.send_behind(request);
        }
        match phase {
            Phase::Asking { token } => {
                self.send_behind(Request::Abandon { token, tombstone: false });
                if retry && self.broken(Broken::SameTokenRetry) {
                    self.lead_as(p, f, token);
                } else if retry {
                    self.lead(p, f);
                } else if self.flight(p, f).behind {
                    self.land(p, f, Landing::Vacant);
                } else {
                    self.alone_in_process(p, f, 0);
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
                self.send_behind(Request::Abandon { token, tombstone: false });
                self.end(p, f);
            }
            Phase::GivingBack { .. } => self.land(p, f, Landing::Failed),
            Phase::Leading { .. } | Phase::Waiting | Phase::Local { .. } => {}
        }
    }

    /// It leaves the fleet, and joins the local flight if that is not among the first `since`, or becomes it.
    pub(crate) fn alone_in_process(&mut self, p: usize, f: usize, since: usize) {
        self.detach(p, f);
        let version = self.world.origin;
        let process = &mut self.world.processes[p];
        if let Some(local) = process.local.filter(|&at| at >= since) {
            for reader in &mut process.readers {
                if matches!(reader.at, At::Aboard { flight, .. } if flight == f) {
                    reader.at = At::Aboard { flight: local, own: false };
                }
            }
            return self.end(p, f);
        }
        process.local = Some(f);
        let flight = &mut process.flights[f];
        (flight.phase, flight.call, flight.awaited) = (Phase::Local { version }, None, None);
    }

    /// The wait budget of a flight is over.
    pub(crate) fn waited(&mut self, p: usize, f: usize) {
        let flight = self.flight(p, f);
        match flight.seen.and_then(Seen::version) {
            Some(version) => {
                let stood = flight.stood;
                self.land(p, f, Landing::Stale(version, stood));
            }
            None => self.alone_in_process(p, f, f),
        }
    }

    /// The fetch answers.
    pub(crate) fn head(&mut self, p: usize, f: usize, head: Head) {
        let flight = self.flight(p, f);
        flight.call = None;
        let Phase::Leading { token, stamp, version, lost, .. } = flight.phase else {
            let Phase::Local { version } = flight.phase else { return };
            return match head {
                Head::Everybody => self.land(p, f, Landing::Shared(version)),
                Head::Private => self.land(p, f, Landing::Private),
                Head::Failed => self.land(p, f, Landing::Failed),
            };
        };
        let content = match head {
            Head::Everybody => {
                self.settle(p, f, Landing::Shared(version));
                Content::Value(version)
            }
            Head::Private => {
                self.settle(p, f, Landing::Private);
                self.detach(p, f);
                if self.broken(Broken::PrivateStored) { Content::Private } else { Content::Pass }
            }
            Head::Failed if flight.seen.is_some_and(Seen::is_value) => {
                (flight.phase, flight.call) = (Phase::GivingBack { token }, Some(Call::Sent));
                return;
            }
            Head::Failed => {
                self.send_behind(Request::Abandon { token, tombstone: true });
                return self.land(p, f, Landing::Failed);
            }
        };
        if lost {
            return self.end(p, f);
        }
        let flight = self.flight(p, f);
        (flight.phase, flight.call) = (Phase::Filling { token, stamp, content, again: false }, Some(Call::Sent));
        (flight.seen, flight.stands, flight.stood) = (None, None, 0);
    }

    /// It is dropped: the lease is given back behind, those who joined try again.
    pub(crate) fn cancel(&mut self, p: usize, f: usize) {
        let flight = self.flight(p, f);
        let sent = matches!(flight.call, Some(Call::Sent));
        if sent {
            let request = self.request(p, f);
            self.send_behind(request);
        }
        if let Some(token) = self.flight(p, f).phase.token() {
            self.send_behind(Request::Abandon { token, tombstone: false });
        }
        self.land(p, f, Landing::Vacant);
    }

    /// Nobody new joins it.
    pub(crate) fn detach(&mut self, p: usize, f: usize) {
        let process = &mut self.world.processes[p];
        process.fleet = process.fleet.filter(|&at| at != f);
        process.local = process.local.filter(|&at| at != f);
    }
}

impl Seen {
    fn version(self) -> Option<u8> {
        match self.content {
            Content::Value(version) => Some(version),
            Content::Pass | Content::Private => None,
        }
    }
}
