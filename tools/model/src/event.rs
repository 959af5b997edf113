//! The effect of each action.

use super::{
    action::Action,
    reader::Outcome,
    rules::Broken,
    server::{Age, Content, Lease, LeaseReply},
    state::{At, Call, Flight, Mail, Phase, Process, Reply, Request, Verb, Writer},
    step::Step,
};

impl Step<'_> {
    pub(crate) fn take(&mut self, action: Action) {
        self.world.mishaps -= u8::from(action.is_mishap());
        match action {
            Action::Ask { p, r } => self.ask(p, r),
            Action::AskAgain { p, r } => self.round(p, r),
            Action::ExecuteLookup { p, l } => {
                self.world.processes[p].lookups[l].found = Some(self.world.server.v);
            }
            Action::LookedUp { p, r } => {
                let process = &self.world.processes[p];
                if let At::Lookup(l) = process.readers[r].at
                    && let Some(found) = process.lookups[l].found
                {
                    self.looked_up(p, r, found);
                }
            }
            Action::LookupFails { p, r } => self.lookup_failed(p, r),
            Action::WaitedEnough { p, r } => self.waited_enough(p, r),
            Action::Execute { p, f } => self.execute_call(p, f),
            Action::RefuseFill { p, f } => self.refuse_fill(p, f),
            Action::Deliver { p, f } => {
                if let Some(Call::Answered(reply)) = self.world.processes[p].flights[f].call {
                    self.deliver(p, f, reply);
                }
            }
            Action::Leave { p, r } => self.leave(p, r),
            Action::GiveUp { p, f, kept, then } => self.give_up(p, f, kept, then),
            Action::Duplicate { p, f } => {
                let request = self.request(p, f);
                self.send_in_background(request);
            }
            Action::Poll { p, f } => self.poll(p, f),
            Action::Heartbeat { p, f } => self.world.processes[p].flights[f].call = Some(Call::Sent),
            Action::Answer { p, f, head } => self.head(p, f, head),
            Action::Cancel { p, f } => self.cancel(p, f),
            Action::Hear { p } => self.hear(p),
            Action::MailLost { p } => self.world.processes[p].mail = Mail::default(),
            Action::Die { p } => self.die(p),
            Action::ExecuteLate { n } => {
                let request = self.world.late.remove(n);
                self.execute(request);
            }
            Action::LoseLate { n } => _ = self.world.late.remove(n),
            Action::Commit { w } => self.commit(w),
            Action::ExecuteWrite { w } => self.execute_write(w),
            Action::DuplicateWrite { w } => {
                if let Writer::Sent(request) | Writer::Executed(request, _) = self.world.writers[w] {
                    self.send_in_background(request);
                }
            }
            Action::WriteUnheard { w, kept } => self.write_unheard(w, kept),
            Action::WriteDone { w } => self.write_done(w),
            Action::LeaseEnds => {
                let l = self.world.server.l;
                let sent = |flight: &Flight| match flight.phase {
                    Phase::Leading { token, stamp, .. } => flight.call == Some(Call::Sent) && l.is_of((token, stamp)),
                    _ => false,
                };
                let due = self.world.processes.iter().flat_map(|process| &process.flights).any(sent);
                self.world.server.end_lease(due);
            }
            Action::MarkAges => self.world.server.age_mark(),
            Action::LeaseExpires => {
                let before = std::mem::replace(&mut self.world.server.l, Lease::Free);
                self.leases_ended(before);
            }
            Action::EntryBecomesStale => {
                if let Some(entry) = &mut self.world.server.v {
                    entry.age = Age::Stale;
                }
            }
            Action::EntryEvicted => self.world.server.v = None,
            Action::Replicate => self.world.replica = Some(self.world.server),
            Action::FailOver => {
                let before = self.world.server;
                self.world.server = self.world.replica.take().unwrap_or(before);
                self.leases_ended(before.l);
            }
        }
    }

    /// Commits at the origin, and calls the verb of the writer.
    fn commit(&mut self, w: usize) {
        self.world.origin += 1;
        let version = self.world.origin;
        self.world.writers[w] = Writer::Sent(match self.config.writers[w] {
            Verb::Invalidate => Request::Invalidate { version },
            Verb::Expire => Request::Expire { version },
            Verb::Put => Request::Put { token: self.token(w), version },
        });
        if self.broken(Broken::ForgetBeforeStore) {
            self.forget(w);
        }
    }

    /// Executes what the writer has sent. A put counts from its first script on, whenever its value was committed, so a
    /// put that comes later has the later commit.
    fn execute_write(&mut self, w: usize) {
        let Writer::Sent(mut request) = self.world.writers[w] else { return };
        if let Request::Put { version, .. } = &mut request
            && *version <= self.world.floor.any
            && !self.broken(Broken::PutIsSentAgain)
        {
            self.world.origin += 1;
            *version = self.world.origin;
        }
        let reply = self.execute(request);
        self.world.writers[w] = Writer::Executed(request, reply);
    }

    /// Gives up waiting for the reply to the call of the writer. The invalidation is pending, and is sent again. `kept`:
    /// the request may still arrive.
    fn write_unheard(&mut self, w: usize, kept: bool) {
        let (Writer::Sent(request) | Writer::Executed(request, _)) = self.world.writers[w] else { return };
        if kept {
            self.send_in_background(request);
        }
        self.forget(w);
        self.world.writers[w] = Writer::Sent(match request {
            Request::Put { .. } if self.broken(Broken::PutIsSentAgain) => request,
            request => Request::Invalidate { version: request.floor().any },
        });
    }

    /// Handles the reply to the call of the writer. A put goes on with its fill.
    fn write_done(&mut self, w: usize) {
        let Writer::Executed(request, reply) = self.world.writers[w] else { return };
        if !self.broken(Broken::NoForget) && !self.broken(Broken::ForgetBeforeStore) {
            self.forget(w);
        }
        self.world.processes[w].heard.raise(request.floor());
        self.world.writers[w] = Writer::Rests;
        if let (Request::Put { token, version }, Reply::Lead(LeaseReply::Granted { stamp, .. }, _)) = (request, reply) {
            let content = Content::Value(version);
            let f = self.begin(w, Phase::Filling { token, stamp, content, again: false, puts: true }, None);
            self.flight(w, f).call = Some(Call::Sent);
        }
    }

    fn poll(&mut self, p: usize, f: usize) {
        if !self.broken(Broken::PollByGet) {
            self.lead(p, f);
        } else if let Some(entry) = self.world.server.v {
            self.complete(p, f, Outcome::EntryFound(entry));
        }
    }

    /// Requests in flight stay in flight.
    fn die(&mut self, p: usize) {
        for f in 0..self.world.processes[p].flights.len() {
            if self.world.processes[p].flights[f].call == Some(Call::Sent) {
                let request = self.request(p, f);
                self.send_in_background(request);
            }
        }
        self.world.processes[p] = Process { dead: true, ..Process::default() };
    }
}
