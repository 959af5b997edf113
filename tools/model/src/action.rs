//! The actions that may happen next.

use super::{
    config::Config,
    leader::{AfterSilence, Head},
    server::{Lease, Mark, Term},
    state::{At, Call, Mail, Phase, Verb, World, Writer},
};

/// `p` is the index of a process, `r` of a reader in it, `f` of a flight in it, `l` of a lookup in it, `n` of a late
/// request, `w` of a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Ask { p: usize, r: usize },
    AskAgain { p: usize, r: usize },
    ExecuteLookup { p: usize, l: usize },
    LookedUp { p: usize, r: usize },
    LookupFails { p: usize, r: usize },
    WaitedEnough { p: usize, r: usize },
    Leave { p: usize, r: usize },
    Execute { p: usize, f: usize },
    RefuseFill { p: usize, f: usize },
    Deliver { p: usize, f: usize },
    GiveUp { p: usize, f: usize, kept: bool, then: AfterSilence },
    Duplicate { p: usize, f: usize },
    Poll { p: usize, f: usize },
    Heartbeat { p: usize, f: usize },
    Answer { p: usize, f: usize, head: Head },
    Cancel { p: usize, f: usize },
    Hear { p: usize },
    MailLost { p: usize },
    Die { p: usize },
    ExecuteLate { n: usize },
    LoseLate { n: usize },
    Commit { w: usize },
    ExecuteWrite { w: usize },
    DuplicateWrite { w: usize },
    WriteUnheard { w: usize, kept: bool },
    WriteDone { w: usize },
    LeaseEnds,
    MarkAges,
    LeaseExpires,
    EntryBecomesStale,
    EntryEvicted,
    Replicate,
    FailOver,
}

impl Action {
    pub(super) fn is_mishap(self) -> bool {
        matches!(
            self,
            Self::LookupFails { .. }
                | Self::GiveUp { .. }
                | Self::Duplicate { .. }
                | Self::Cancel { .. }
                | Self::Leave { .. }
                | Self::Die { .. }
                | Self::DuplicateWrite { .. }
                | Self::WriteUnheard { .. }
        )
    }
}

impl Config {
    /// Adds every action that may happen in this state.
    pub(super) fn possible(&self, world: &World, actions: &mut Vec<Action>) {
        for p in 0..world.processes.len() {
            self.of_process(world, p, actions);
        }
        self.of_network(world, actions);
        self.of_server(world, actions);
    }

    fn of_process(&self, world: &World, p: usize, actions: &mut Vec<Action>) {
        let process = &world.processes[p];
        for (r, reader) in process.readers.iter().enumerate() {
            match reader.at {
                // Readers are interchangeable, so one of several equal readers is enough.
                _ if r > 0 && process.readers[r - 1] == *reader => {}
                At::Rest if reader.left > 0 => actions.push(Action::Ask { p, r }),
                At::Again => actions.push(Action::AskAgain { p, r }),
                At::Lookup(l) => {
                    if process.lookups[l].found.is_some() {
                        actions.push(Action::LookedUp { p, r });
                    }
                    if self.losses && world.mishaps > 0 {
                        actions.push(Action::LookupFails { p, r });
                    }
                }
                At::Aboard { .. } => {
                    if self.wait_timeouts {
                        actions.push(Action::WaitedEnough { p, r });
                    }
                    if self.leaves && world.mishaps > 0 {
                        actions.push(Action::Leave { p, r });
                    }
                }
                At::Rest => {}
            }
        }
        for (l, lookup) in process.lookups.iter().enumerate() {
            if lookup.found.is_none() {
                actions.push(Action::ExecuteLookup { p, l });
            }
        }
        for f in 0..process.flights.len() {
            self.of_flight(world, p, f, actions);
        }
        if process.mail != Mail::default() {
            actions.push(Action::Hear { p });
            if self.wakes && self.losses {
                actions.push(Action::MailLost { p });
            }
        }
        if self.deaths && world.mishaps > 0 && p != 0 && !process.dead {
            actions.push(Action::Die { p });
        }
    }

    fn of_flight(&self, world: &World, p: usize, f: usize, actions: &mut Vec<Action>) {
        let flight = &world.processes[p].flights[f];
        let mishaps = world.mishaps > 0;
        match flight.call {
            Some(Call::Sent | Call::Checked) => {
                actions.push(Action::Execute { p, f });
                if self.refusals && matches!(flight.phase, Phase::Filling { .. }) {
                    actions.push(Action::RefuseFill { p, f });
                }
            }
            Some(Call::Answered(_)) => actions.push(Action::Deliver { p, f }),
            None => {}
        }
        if let Some(call) = flight.call {
            if self.losses && mishaps {
                let asking = matches!(flight.phase, Phase::Asking { .. });
                let may = |then: &AfterSilence| match then {
                    AfterSilence::GoOn => true,
                    AfterSilence::AskAgain => asking,
                    AfterSilence::Wait => asking && flight.awaited.is_some(),
                };
                for then in [AfterSilence::GoOn, AfterSilence::AskAgain, AfterSilence::Wait].into_iter().filter(may) {
                    actions.push(Action::GiveUp { p, f, kept: false, then });
                    if call == Call::Sent {
                        actions.push(Action::GiveUp { p, f, kept: true, then });
                    }
                }
            }
            if self.duplicates && mishaps {
                actions.push(Action::Duplicate { p, f });
            }
        }
        let heads = [(true, Head::Cacheable), (self.private, Head::Private), (self.failures, Head::Failed)];
        let heads = heads.into_iter().filter(|(may, _)| *may).map(|(_, head)| Action::Answer { p, f, head });
        match flight.phase {
            Phase::Waiting => {
                if !self.wakes {
                    actions.push(Action::Poll { p, f });
                }
            }
            Phase::Leading { lost, .. } => {
                actions.extend(heads);
                if self.heartbeats && !lost && flight.call.is_none() {
                    actions.push(Action::Heartbeat { p, f });
                }
            }
            Phase::Local { .. } => actions.extend(heads),
            Phase::Asking { .. } | Phase::Filling { .. } | Phase::Releasing { .. } => {}
        }
        if self.cancels
            && mishaps
            && matches!(flight.phase, Phase::Asking { .. } | Phase::Waiting | Phase::Leading { .. })
        {
            actions.push(Action::Cancel { p, f });
        }
    }

    fn of_network(&self, world: &World, actions: &mut Vec<Action>) {
        for n in 0..world.late.len() {
            if n > 0 && world.late[n - 1] == world.late[n] {
                continue;
            }
            actions.push(Action::ExecuteLate { n });
            if self.wakes && self.losses {
                actions.push(Action::LoseLate { n });
            }
        }
        for (w, writer) in world.writers.iter().enumerate() {
            match writer {
                Writer::Rests if world.origin < self.commits => actions.push(Action::Commit { w }),
                Writer::Rests => continue,
                Writer::Sent(_) => actions.push(Action::ExecuteWrite { w }),
                Writer::Executed(..) => actions.push(Action::WriteDone { w }),
            }
            if self.losses && world.mishaps > 0 && *writer != Writer::Rests {
                actions.push(Action::WriteUnheard { w, kept: false });
                if matches!(writer, Writer::Sent(_)) {
                    actions.push(Action::WriteUnheard { w, kept: true });
                }
            }
            // A second invalidation is an invalidation.
            if self.duplicates && world.mishaps > 0 && self.writers[w] != Verb::Invalidate && *writer != Writer::Rests {
                actions.push(Action::DuplicateWrite { w });
            }
        }
    }

    fn of_server(&self, world: &World, actions: &mut Vec<Action>) {
        if self.expiry && world.server.l != Lease::Free {
            actions.push(Action::LeaseExpires);
        }
        if let Lease::Held { term, mark, .. } = world.server.l
            && (self.expiry || self.ends)
        {
            if term == Term::Running {
                actions.push(Action::LeaseEnds);
            }
            // While the server serves its clients, it executes within a quarter of a second what they have sent before.
            let is_stalled = self.ends && term == Term::Ended { extension_is_due: true };
            if mark == Mark::Fresh && !is_stalled {
                actions.push(Action::MarkAges);
            }
        }
        if let Some(entry) = world.server.v {
            if self.stale && !entry.is_stale() {
                actions.push(Action::EntryBecomesStale);
            }
            if self.eviction {
                actions.push(Action::EntryEvicted);
            }
        }
        if world.replica.is_some_and(|replica| replica != world.server) {
            actions.push(Action::Replicate);
            actions.push(Action::FailOver);
        }
    }
}
