//! One step of the world: the network and the server. The steps of processes are in [`leader`](super::leader),
//! [`reader`](super::reader) and [`wake`](super::wake).

use super::{
    config::{Config, Failover},
    names::{FRESH, normalize},
    rules::Broken,
    server::{Age, Content, Entry, FillCondition, Filled, Lease, LeaseReply, Term, Token},
    state::{Call, Counts, Fault, Phase, Reply, Request, World},
};

pub(crate) struct Step<'a> {
    pub(crate) config: &'a Config,
    pub(crate) world: World,
    named: u8,
}

impl<'a> Step<'a> {
    pub(crate) fn new(config: &'a Config, world: &World) -> Self {
        Self { config, world: world.clone(), named: FRESH }
    }

    pub(crate) fn done(mut self) -> World {
        normalize(&mut self.world);
        self.world
    }

    pub(crate) fn broken(&self, rule: Broken) -> bool {
        self.config.rules.broken(rule)
    }

    /// Returns a name that is not in use.
    fn fresh(&mut self) -> u8 {
        self.named += 1;
        self.named
    }

    pub(crate) fn token(&mut self, p: usize) -> Token {
        Token { of: p as u8, name: self.fresh() }
    }

    /// Sends a request in the background: no flight waits for its reply.
    pub(crate) fn send_in_background(&mut self, request: Request) {
        self.world.late.push(request);
    }

    /// Returns the request of the flight.
    pub(crate) fn request(&self, p: usize, f: usize) -> Request {
        let flight = &self.world.processes[p].flights[f];
        match flight.phase {
            Phase::Asking { token } => {
                let seen = flight.seen.map(|seen| seen.id);
                Request::GetOrLease { token, seen, notify: !flight.background }
            }
            Phase::Leading { token, stamp, .. } => Request::Extend { token, stamp },
            Phase::Filling { token, stamp, content, puts, .. } => {
                let entry = Entry { id: token, content, age: Age::Fresh, has_stamp: !puts };
                Request::Fill { condition: FillCondition::Lease(token, stamp), entry }
            }
            Phase::Releasing { token } => Request::Release { token, failure_marker: true },
            Phase::Waiting | Phase::Local { .. } => unreachable!("the flight has no request"),
        }
    }

    /// Executes the request of the flight on the server.
    pub(crate) fn execute_call(&mut self, p: usize, f: usize) {
        let request = self.request(p, f);
        let call = match (self.world.processes[p].flights[f].call, request) {
            (Some(Call::Sent), Request::Fill { condition: FillCondition::Lease(token, stamp), .. })
                if self.broken(Broken::CheckThenSet) =>
            {
                let held = self.world.server.l.is_of((token, stamp));
                if held { Call::Checked } else { Call::Answered(Reply::Fenced) }
            }
            (Some(Call::Checked), Request::Fill { condition, entry }) => {
                let before = self.world.server.v;
                let wakes = self.world.server.set(condition, entry, self.config.rules);
                self.check_fill(before, entry);
                self.wake(wakes);
                Call::Answered(Reply::Filled)
            }
            (_, request) => {
                let reply = self.execute(request);
                self.meets_holder(p, f, reply);
                Call::Answered(reply)
            }
        };
        self.world.processes[p].flights[f].call = Some(call);
    }

    /// The reply tells a refresh the stamp of the first holder. What was granted up to then is too old.
    fn meets_holder(&mut self, p: usize, f: usize, reply: Reply) {
        if self.flight(p, f).counts != Counts::None || self.broken(Broken::RefreshNamesOneHolder) {
            return;
        }
        if let Reply::Lead(LeaseReply::Wait { holder, .. }, _) = reply {
            let servers = [Some(self.world.server), self.world.replica];
            let mut known: Vec<_> = servers.into_iter().flatten().flat_map(|server| server.tokens()).collect();
            known.retain(|token| *token != holder || !self.broken(Broken::RefreshTakesFirstHolder));
            self.flight(p, f).counts = Counts::Except(known);
        }
    }

    /// Executes the fill of the flight on the server, which refuses to store the entry.
    pub(crate) fn refuse_fill(&mut self, p: usize, f: usize) {
        if let Request::Fill { condition, entry } = self.request(p, f) {
            let reply = self.fill(condition, entry, false);
            self.flight(p, f).call = Some(Call::Answered(reply));
        }
    }

    fn fill(&mut self, condition: FillCondition, entry: Entry, accepted: bool) -> Reply {
        let before = self.world.server;
        let (filled, wakes) = self.world.server.fill(condition, entry, accepted, self.config.rules);
        self.wake(wakes);
        if filled == Filled::Stored {
            self.check_fill(before.v, entry);
        }
        if let (Filled::Fenced, FillCondition::Lease(token, stamp)) = (filled, condition)
            && before.l.is_of((token, stamp))
        {
            self.world.faults.add(Fault::Refused);
        }
        match filled {
            Filled::Stored | Filled::Known => Reply::Filled,
            Filled::Fenced => Reply::Fenced,
            Filled::Refused => Reply::Refused,
        }
    }

    /// Executes a request on the server.
    pub(crate) fn execute(&mut self, request: Request) -> Reply {
        let (rules, floor) = (self.config.rules, self.world.floor);
        let before = self.world.server;
        let reply = match request {
            Request::GetOrLease { token, seen, notify } => {
                let stamp = self.fresh();
                let reply = self.world.server.lead(token, seen, notify, stamp, rules);
                if matches!(before.l, Lease::Held { term: Term::Ended { extension_is_due: true }, .. })
                    && self.config.ends
                    && self.world.server.l.is_of((token, stamp))
                {
                    self.world.faults.add(Fault::Taken);
                }
                Reply::Lead(reply, floor.dropped)
            }
            Request::Fill { condition, entry } => self.fill(condition, entry, true),
            Request::Release { token, failure_marker } => {
                let (held, wakes) = self.world.server.release(token, failure_marker, rules);
                self.wake(wakes);
                if held { Reply::Held(floor.dropped) } else { Reply::Lost(floor.dropped) }
            }
            Request::Extend { token, stamp } => {
                let held = self.world.server.extend(token, stamp, rules);
                if !held && before.l.is_of((token, stamp)) {
                    self.world.faults.add(Fault::Refused);
                }
                if held { Reply::Held(floor.dropped) } else { Reply::Lost(floor.dropped) }
            }
            Request::Invalidate { .. } => {
                let told = self.world.server.invalidate(rules);
                self.invalidated(request, told);
                Reply::Held(floor.dropped)
            }
            Request::Expire { .. } => {
                let id = self.token(0);
                let created = Entry { id, content: Content::Value(0), age: Age::Expired, has_stamp: false };
                let told = self.world.server.expire(created, rules);
                if before.v.is_none() && self.world.server.v.is_some() {
                    self.world.faults.add(Fault::Created);
                }
                self.invalidated(request, told);
                Reply::Held(floor.dropped)
            }
            Request::Put { token, .. } => {
                let stamp = self.fresh();
                let told = self.world.server.begin_put(token, stamp, rules);
                self.invalidated(request, told);
                Reply::Lead(LeaseReply::Granted { stamp, alive: false }, floor.dropped)
            }
        };
        if ends_others_lease(request) {
            self.leases_ended(before.l);
        }
        reply
    }

    /// Sends the messages of an invalidation, and keeps it in a failover that keeps invalidations.
    fn invalidated(&mut self, request: Request, told: u8) {
        self.world.floor.raise(request.floor());
        for (p, process) in self.world.processes.iter_mut().enumerate() {
            if told & (1 << p) != 0 {
                process.mail.gone.raise(request.floor());
            }
        }
        if self.config.failover == Failover::KeepsInvalidations {
            self.world.replica = Some(self.world.server);
        }
    }

    /// Marks the flights whose lease has ended, which is legitimate here.
    pub(crate) fn leases_ended(&mut self, before: Lease) {
        let now = self.world.server.l;
        for flight in self.world.processes.iter_mut().flat_map(|process| &mut process.flights) {
            if let Phase::Leading { token, stamp, ended, .. } = &mut flight.phase {
                *ended |= before.is_of((*token, *stamp)) && !now.is_of((*token, *stamp));
            }
        }
    }

    fn check_fill(&mut self, before: Option<Entry>, entry: Entry) {
        if self.world.server.v != Some(entry) {
            self.world.faults.add(Fault::Absent);
        }
        match entry.content {
            Content::Value(version) => {
                if version < self.world.floor.any {
                    self.world.faults.add(Fault::StaleSet);
                }
                if matches!(before, Some(Entry { content: Content::Value(newer), .. }) if newer > version) {
                    self.world.faults.add(Fault::OldOverNew);
                }
            }
            Content::Private => self.world.faults.add(Fault::Leak),
            Content::HitForPass => {}
        }
    }

    fn wake(&mut self, inboxes: u8) {
        if !self.config.wakes || self.broken(Broken::NoWake) {
            return;
        }
        for (p, process) in self.world.processes.iter_mut().enumerate() {
            process.mail.wake |= inboxes & (1 << p) != 0;
        }
    }
}

/// A fill and a release end the lease of their sender. A call of a writer and a fill that replaces a marker end any
/// lease, and a question takes one that has ended.
fn ends_others_lease(request: Request) -> bool {
    match request {
        Request::Invalidate { .. } | Request::Expire { .. } | Request::Put { .. } | Request::GetOrLease { .. } => true,
        Request::Fill { condition, .. } => matches!(condition, FillCondition::ReplaceMarker(_)),
        Request::Release { .. } | Request::Extend { .. } => false,
    }
}
