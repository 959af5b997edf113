//! The effect of each action.

use super::{
    action::Action,
    reader::Outcome,
    rules::Broken,
    server::Lease,
    state::{At, Call, Flight, Mail, Phase, Process, Request, Writer},
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
            Action::Commit => {
                self.world.origin += 1;
                self.world.writer = Writer::Sent;
                if self.broken(Broken::ForgetBeforeStore) {
                    self.forget(0);
                }
            }
            Action::ExecuteInvalidation => {
                self.execute(Request::Invalidate { version: self.world.origin });
                self.world.writer = Writer::Executed;
            }
            Action::InvalidationUnheard { kept } => {
                if kept {
                    self.send_in_background(Request::Invalidate { version: self.world.origin });
                }
                self.forget(0);
                self.world.writer = Writer::Sent;
            }
            Action::InvalidationDone => {
                if !self.broken(Broken::NoForget) && !self.broken(Broken::ForgetBeforeStore) {
                    self.forget(0);
                }
                self.world.processes[0].heard = self.world.origin;
                self.world.writer = Writer::Rests;
            }
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
                    entry.stale = true;
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
