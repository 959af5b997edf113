//! Wake-ups and the flights that listen for them: mirrors `src/store/wake.rs`.

use super::{
    rules::Broken,
    state::{Floor, Mail, Phase},
    step::Step,
};
use std::mem;

impl Step<'_> {
    /// Handles a wake-up that arrives.
    pub(crate) fn hear(&mut self, p: usize) {
        let mail = mem::take(&mut self.world.processes[p].mail);
        // From the last to the first, because a flight may end.
        for f in (0..self.world.processes[p].flights.len()).rev() {
            let unread = &mut self.flight(p, f).unread;
            unread.wake |= mail.wake;
            unread.gone.raise(mail.gone);
            self.read_mail(p, f);
        }
    }

    /// Handles what the flight has received, if it listens.
    pub(crate) fn read_mail(&mut self, p: usize, f: usize) {
        let flight = self.flight(p, f);
        let waits = match flight.phase {
            Phase::Waiting => true,
            Phase::Leading { .. } | Phase::Local { .. } => false,
            // While the flight asks, it handles the message after the reply; in later phases never.
            Phase::Asking { .. } => return,
            Phase::Filling { .. } | Phase::Releasing { .. } => {
                flight.unread = Mail::default();
                return;
            }
        };
        let unread = mem::take(&mut flight.unread);
        let is_gone = unread.gone != Floor::default();
        if is_gone {
            self.gone(p, f, unread.gone);
            if waits {
                self.flight(p, f).seen = None;
            }
        }
        if waits && (unread.wake || is_gone) {
            self.lead(p, f);
        }
    }

    /// Handles an invalidation: no reader joins what this process began before.
    fn gone(&mut self, p: usize, f: usize, floor: Floor) {
        let process = &mut self.world.processes[p];
        process.heard.raise(floor);
        if self.broken(Broken::InvalidationIgnored) {
            return;
        }
        let flight = self.flight(p, f);
        (flight.stands, flight.stood) = (None, 0);
        if self.broken(Broken::LookupsStayJoinable) {
            self.unlist(p, f);
            self.world.processes[p].local = None;
        } else {
            self.forget(p);
        }
    }
}
