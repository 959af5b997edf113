//! One request from the side of its reader: mirrors `src/engine/call.rs` and `flight.rs`.

use super::{
    rules::Broken,
    server::{Age, Content, Entry, FillCondition},
    state::{At, Call, Counts, Fault, Flight, Floor, Lookup, Mail, Phase, Process, Request, Seen},
    step::Step,
};

/// What a reader gets.
#[derive(Clone, Copy)]
pub(crate) enum Answer {
    Value(u8),
    /// A version that is stale, while a flight refreshes it.
    Refreshing(u8),
    /// A stale version instead of an error, or at the end of the wait. The second number is the newest invalidation
    /// that had been executed when the store confirmed the entry.
    Stale(u8, u8),
    /// An error, the result of a call that no other reader shares, or nothing, because the caller has gone.
    Own,
    /// A private response of another caller.
    Foreign,
}

/// The outcome of a flight, as its waiters see it.
#[derive(Clone, Copy)]
pub(crate) enum Outcome {
    EntryFound(Entry),
    Shared(u8),
    /// The entry of another process, which counts for the refreshes that had called before their flight met the first
    /// holder. For a later one its fetch may have begun before the call.
    Refreshed(u8),
    ServeStale(u8, u8),
    Uncacheable,
    Private,
    Failed,
    Abandoned,
}

impl Step<'_> {
    fn process(&mut self, p: usize) -> &mut Process {
        &mut self.world.processes[p]
    }

    pub(crate) fn ask(&mut self, p: usize, r: usize) {
        let origin = self.world.origin;
        let process = self.process(p);
        let reader = &mut process.readers[r];
        reader.must = if reader.refreshes { Floor::all(origin) } else { process.heard };
        self.round(p, r);
    }

    /// Joins the flight of the process, unless that flight refreshes an entry that this reader would be served.
    /// Otherwise reads the store.
    pub(crate) fn round(&mut self, p: usize, r: usize) {
        if self.process(p).readers[r].refreshes {
            return self.refresh(p, r);
        }
        let refresh = self.config.refresh;
        let joins = |f: &usize| !(refresh && self.world.processes[p].flights[*f].seen.is_some_and(Seen::is_value));
        match self.world.processes[p].fleet.filter(joins) {
            Some(f) => self.join(p, r, f),
            None => self.look_up(p, r),
        }
    }

    /// Joins a refresh whose fetch has not begun, or opens one. The entry that it reads is the first hit that it ignores.
    fn refresh(&mut self, p: usize, r: usize) {
        let joins_running = self.broken(Broken::RefreshJoinsRunning);
        let process = self.process(p);
        let is_ahead = |phase: &Phase| matches!(phase, Phase::Asking { .. } | Phase::Waiting);
        match process.refresh.filter(|&f| joins_running || is_ahead(&process.flights[f].phase)) {
            Some(f) => self.join(p, r, f),
            None => {
                let token = self.token(p);
                let f = self.begin(p, Phase::Asking { token }, None);
                let process = self.process(p);
                (process.flights[f].call, process.flights[f].counts) = (Some(Call::Sent), Counts::None);
                process.refresh = Some(f);
                process.readers[r].at = At::Aboard { flight: f, own: true, asked: true };
            }
        }
    }

    fn look_up(&mut self, p: usize, r: usize) {
        let process = self.process(p);
        let at = process.lookups.iter().position(|lookup| lookup.listed).unwrap_or_else(|| {
            process.lookups.push(Lookup { listed: true, found: None });
            process.lookups.len() - 1
        });
        process.readers[r].at = At::Lookup(at);
    }

    fn join(&mut self, p: usize, r: usize, f: usize) {
        match self.process(p).flights[f].phase {
            Phase::Filling { content: Content::Value(version), .. } => self.answer(p, r, Answer::Value(version)),
            _ => self.process(p).readers[r].at = At::Aboard { flight: f, own: false, asked: false },
        }
    }

    /// Handles the result of the reader's lookup.
    pub(crate) fn looked_up(&mut self, p: usize, r: usize, found: Option<Entry>) {
        self.leave_lookup(p, r);
        match found {
            None => self.compute(p, r, None),
            Some(entry) if entry.is_marker() => self.pass(p, r, entry),
            Some(Entry { content: Content::Value(version), age: Age::Fresh, .. }) => {
                self.answer(p, r, Answer::Value(version));
            }
            Some(Entry { content: Content::Value(version), .. }) if self.config.refresh => {
                self.answer(p, r, Answer::Refreshing(version));
                if self.process(p).fleet.is_none() {
                    let f = self.open(p, found.map(Seen::of));
                    self.process(p).flights[f].background = true;
                }
            }
            Some(Entry { content: Content::Private, .. }) => self.answer(p, r, Answer::Foreign),
            Some(entry) => self.compute(p, r, Some(Seen::of(entry))),
        }
    }

    /// Handles a lookup that fails for this reader: the reader continues without the store.
    pub(crate) fn lookup_failed(&mut self, p: usize, r: usize) {
        self.leave_lookup(p, r);
        self.go_local(p, r);
    }

    fn leave_lookup(&mut self, p: usize, r: usize) {
        let process = self.process(p);
        let At::Lookup(at) = process.readers[r].at else { return };
        process.readers[r].at = At::Again;
        process.lookups[at].listed &= process.lookups[at].found.is_none();
        if process.readers.iter().any(|reader| reader.at == At::Lookup(at)) {
            return;
        }
        process.lookups.remove(at);
        for reader in &mut process.readers {
            if let At::Lookup(other) = &mut reader.at {
                *other -= usize::from(*other > at);
            }
        }
    }

    fn compute(&mut self, p: usize, r: usize, seen: Option<Seen>) {
        match self.process(p).fleet {
            Some(f) => self.join(p, r, f),
            None => {
                let f = self.open(p, seen);
                self.process(p).readers[r].at = At::Aboard { flight: f, own: true, asked: false };
            }
        }
    }

    /// Opens the coordinated flight, which sends `get_or_lease`.
    fn open(&mut self, p: usize, seen: Option<Seen>) -> usize {
        let token = self.token(p);
        let f = self.begin(p, Phase::Asking { token }, seen);
        let process = self.process(p);
        (process.flights[f].call, process.fleet) = (Some(Call::Sent), Some(f));
        f
    }

    pub(crate) fn begin(&mut self, p: usize, phase: Phase, seen: Option<Seen>) -> usize {
        let flights = &mut self.process(p).flights;
        let (call, background, stands, stood, awaited, unread) = (None, false, None, 0, None, Mail::default());
        let counts = Counts::All;
        flights.push(Flight { phase, call, background, seen, stands, stood, awaited, unread, counts });
        flights.len() - 1
    }

    /// Joins the local flight, or opens one.
    fn go_local(&mut self, p: usize, r: usize) {
        let flight = match self.process(p).local {
            Some(f) => At::Aboard { flight: f, own: false, asked: false },
            None => {
                let version = self.world.origin;
                let f = self.begin(p, Phase::Local { version }, None);
                self.process(p).local = Some(f);
                At::Aboard { flight: f, own: true, asked: false }
            }
        };
        self.process(p).readers[r].at = flight;
    }

    /// Calls the origin under a hit-for-pass marker. The response is for its caller; if it is shareable, it replaces
    /// the marker.
    fn pass(&mut self, p: usize, r: usize, marker: Entry) {
        let content = Content::Value(self.world.origin);
        let entry = Entry { id: self.token(p), content, age: Age::Fresh, has_stamp: false };
        self.send_in_background(Request::Fill { condition: FillCondition::ReplaceMarker(marker.id), entry });
        self.answer(p, r, Answer::Own);
    }

    /// Handles the end of the reader's wait timeout or deadline.
    pub(crate) fn waited_enough(&mut self, p: usize, r: usize) {
        let At::Aboard { flight: f, .. } = self.process(p).readers[r].at else { return };
        let Flight { stands, stood, .. } = self.process(p).flights[f];
        match stands {
            Some(version) => self.answer(p, r, Answer::Stale(version, stood)),
            None => self.answer(p, r, Answer::Own),
        }
        self.leave_if_deserted(p, f);
    }

    /// Handles a caller that is dropped.
    pub(crate) fn leave(&mut self, p: usize, r: usize) {
        let At::Aboard { flight, .. } = self.process(p).readers[r].at else { return };
        self.answer(p, r, Answer::Own);
        self.leave_if_deserted(p, flight);
    }

    /// Tells every reader of the flight its outcome.
    pub(crate) fn settle(&mut self, p: usize, f: usize, landing: Outcome) {
        for r in 0..self.process(p).readers.len() {
            let At::Aboard { flight, own, asked } = self.process(p).readers[r].at else { continue };
            if flight != f {
                continue;
            }
            match landing {
                Outcome::EntryFound(Entry { content: Content::Value(version), age: Age::Fresh, .. }) => {
                    self.answer(p, r, Answer::Value(version));
                }
                Outcome::EntryFound(Entry { content: Content::Value(version), .. }) if self.config.refresh => {
                    self.answer(p, r, Answer::Refreshing(version));
                }
                Outcome::Refreshed(version) if asked || self.broken(Broken::RefreshSharesFound) => {
                    self.answer(p, r, Answer::Value(version));
                }
                Outcome::EntryFound(Entry { content: Content::Private, .. }) => self.answer(p, r, Answer::Foreign),
                Outcome::Refreshed(_) | Outcome::EntryFound(_) | Outcome::Abandoned => {
                    self.process(p).readers[r].at = At::Again;
                }
                Outcome::Shared(version) => self.answer(p, r, Answer::Value(version)),
                Outcome::ServeStale(version, stood) => self.answer(p, r, Answer::Stale(version, stood)),
                Outcome::Private if !own && self.broken(Broken::PrivateShared) => self.answer(p, r, Answer::Foreign),
                Outcome::Uncacheable | Outcome::Private | Outcome::Failed => self.answer(p, r, Answer::Own),
            }
        }
    }

    /// Tells every reader of the flight its outcome, and ends the flight.
    pub(crate) fn complete(&mut self, p: usize, f: usize, landing: Outcome) {
        self.settle(p, f, landing);
        self.end(p, f);
    }

    /// Removes a flight that no reader waits for.
    pub(crate) fn end(&mut self, p: usize, f: usize) {
        let process = self.process(p);
        process.flights.remove(f);
        let shifted = |at: usize| at - usize::from(at > f);
        process.fleet = process.fleet.filter(|&at| at != f).map(shifted);
        process.local = process.local.filter(|&at| at != f).map(shifted);
        process.refresh = process.refresh.filter(|&at| at != f).map(shifted);
        for reader in &mut process.readers {
            if let At::Aboard { flight, .. } = &mut reader.at {
                *flight = shifted(*flight);
            }
        }
    }

    fn answer(&mut self, p: usize, r: usize, answer: Answer) {
        let reader = &mut self.process(p).readers[r];
        let (must, refreshes) = (reader.must, reader.refreshes);
        (reader.left, reader.must, reader.at) = (reader.left - 1, Floor::default(), At::Rest);
        let fault = match answer {
            Answer::Value(version) | Answer::Stale(version, _) if refreshes && version < must.any => Fault::OldRefresh,
            Answer::Value(version) if version < must.any => Fault::StaleRead,
            Answer::Refreshing(version) | Answer::Stale(version, _) if version < must.dropped => Fault::StaleRead,
            Answer::Stale(version, stood) if version < stood => Fault::StaleIfError,
            Answer::Foreign => Fault::Leak,
            Answer::Value(_) | Answer::Refreshing(_) | Answer::Stale(..) | Answer::Own => return,
        };
        self.world.faults.add(fault);
    }

    /// Later readers join nothing that began before.
    pub(crate) fn forget(&mut self, p: usize) {
        let kept = self.broken(Broken::LookupKept);
        let process = self.process(p);
        (process.fleet, process.local, process.refresh) = (None, None, None);
        for lookup in &mut process.lookups {
            lookup.listed &= kept;
        }
    }
}

impl Seen {
    fn of(entry: Entry) -> Self {
        Self { id: entry.id, content: entry.content }
    }

    pub(crate) fn is_value(self) -> bool {
        matches!(self.content, Content::Value(_))
    }
}
