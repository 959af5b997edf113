//! The steps of a flight.

use super::Fleet;
use crate::{
    chance,
    event::{Event, Sent},
    flight::{Flight, Place, Stage},
    load::{CLIENT, LEASE, MAX_FALLBACK_FETCHES, MICROSECOND, REFRESH_SLOT_TIME, SECOND, Time, WAIT},
    redis::{Command, Entry, Reply},
};
use std::mem;

impl Fleet<'_> {
    pub(super) fn replied(&mut self, sent: Sent, reply: Reply) {
        let place = sent.place;
        self.processes[place.process as usize].answered(sent.at);
        if !self.is_at(place, sent.turn) {
            return;
        }
        match (sent.command, reply) {
            (Command::Get, Reply::Found(entry)) => self.found(place, &entry),
            (Command::Get, _) => self.missed(place),
            (Command::Lead { .. }, Reply::Granted { lease }) => {
                let (since, turn) = (self.now, self.turn(place, Stage::Leading { lease, since: self.now }));
                self.events.plan(since + LEASE as Time / 3, Event::Extend(place, turn));
                self.compute(place);
            }
            (Command::Lead { .. }, Reply::Wait { remaining, waiting, registered }) => {
                self.wait(place, remaining, waiting, registered);
            }
            (Command::Lead { .. }, _) if place.background => self.end_background(place),
            (Command::Lead { .. }, _) => {
                let flight = self.flights.remove(&place);
                self.answer(&flight.map(|flight| flight.waiters).unwrap_or_default());
            }
            (Command::Fill { .. }, _) => {
                self.flights.remove(&place);
            }
            (Command::Extend { .. } | Command::Ping, _) => {}
        }
    }

    fn found(&mut self, place: Place, entry: &Entry) {
        let waiters = self.flights.remove(&place).map(|flight| flight.waiters).unwrap_or_default();
        if self.load.near {
            let until = self.now + (self.load.max_age * SECOND) as Time;
            self.copies.insert((place.process, place.key), (*entry, until));
        }
        for asked in waiters {
            self.tally.hits.add(self.now - asked + (CLIENT * MICROSECOND) as Time);
            self.refresh_if_due(place, entry);
        }
    }

    fn missed(&mut self, place: Place) {
        // Callers of a missing entry join the refresh that is already running.
        if let Some(refresh) = self.flights.get(&place.background()) {
            let stage = refresh.stage;
            let mut waiters = self.flights.remove(&place).map(|flight| flight.waiters).unwrap_or_default();
            if stage == Stage::Filling {
                return self.answer(&waiters);
            }
            if let Some(refresh) = self.flights.get_mut(&place.background()) {
                refresh.waiters.append(&mut waiters);
            }
            return;
        }
        self.lead(place);
    }

    fn lead(&mut self, place: Place) {
        self.turn(place, Stage::Asking);
        let Some(flight) = self.flights.get(&place) else { return };
        let seen = flight.seen;
        self.send(place, Command::Lead { seen });
    }

    /// Mirrors `EarlyRefresh::is_due` in src/policy.rs. A key that is already being refreshed is not refreshed again.
    pub(super) fn is_due(&mut self, place: Place, entry: &Entry) -> bool {
        if self.load.early == 0.0 || self.flights.contains_key(&place.background()) {
            return false;
        }
        let (lifetime, left) = ((entry.expires - entry.filled) as f64, (entry.expires - self.now) as f64);
        let scale = entry.cost as f64 * self.load.early;
        let eligible = left >= 0.0 && left <= lifetime / 2.0 && 10.0 * scale <= lifetime;
        eligible && left <= chance::exponential(&mut self.rng, scale)
    }

    pub(super) fn refresh_if_due(&mut self, place: Place, entry: &Entry) {
        if !self.is_due(place, entry) {
            return;
        }
        let (turn, began, seen) = (self.next_turn(), self.now, entry.version);
        let (stage, waiters) = (Stage::Asking, Vec::new());
        self.flights.insert(place.background(), Flight { stage, began, waiters, turn, asked: 0, woken: false, seen });
        self.send(place.background(), Command::Lead { seen });
    }

    fn wait(&mut self, place: Place, remaining: Time, waiting: usize, registered: bool) {
        let expiry = remaining + chance::after_expiry(&mut self.rng, waiting);
        let turn = self.turn(place, Stage::Waiting);
        let Some(flight) = self.flights.get_mut(&place) else { return };
        let pause = match place.background {
            true => remaining.min(REFRESH_SLOT_TIME as Time),
            false if mem::take(&mut flight.woken) => 0,
            false => chance::poll(&mut self.rng, flight.asked, registered).min(expiry),
        };
        flight.asked += 1;
        self.events.plan(self.now + pause, Event::Poll(place, turn));
    }

    pub(super) fn woken(&mut self, place: Place) {
        match self.flights.get_mut(&place) {
            Some(flight) if flight.stage == Stage::Asking => flight.woken = true,
            Some(flight) if flight.stage == Stage::Waiting => self.poll(place),
            _ => {}
        }
    }

    pub(super) fn poll(&mut self, place: Place) {
        match self.flights.get(&place) {
            _ if place.background => self.end_background(place),
            Some(flight) if self.now - flight.began > WAIT as Time => self.go_local(place),
            _ => self.lead(place),
        }
    }

    /// Ends a refresh because another process leads. Callers that joined it ask again.
    fn end_background(&mut self, place: Place) {
        let waiters = self.flights.remove(&place).map(|flight| flight.waiters).unwrap_or_default();
        if !waiters.is_empty() {
            self.ask(place.in_front(), waiters);
        }
    }

    pub(super) fn extend(&mut self, place: Place, turn: u64) {
        let Some(Stage::Leading { lease, .. }) = self.flights.get(&place).map(|flight| flight.stage) else { return };
        self.send(place, Command::Extend { lease });
        self.events.plan(self.now + LEASE as Time / 3, Event::Extend(place, turn));
    }

    fn compute(&mut self, place: Place) {
        let takes = chance::computation(&mut self.rng, self.load);
        if self.origin.call(place, takes, self.load.workers) {
            self.events.plan(self.now + takes, Event::Computed(place));
        }
    }

    pub(super) fn computed(&mut self, place: Place) {
        if let Some((next, takes)) = self.origin.over() {
            self.events.plan(self.now + takes, Event::Computed(next));
        }
        let Some(flight) = self.flights.get_mut(&place) else { return };
        let (waiters, stage) = (mem::take(&mut flight.waiters), flight.stage);
        self.answer(&waiters);
        if let Stage::Leading { lease, since } = stage {
            self.turn(place, Stage::Filling);
            return self.send(place, Command::Fill { lease, cost: self.now - since });
        }
        self.flights.remove(&place);
        let process = &mut self.processes[place.process as usize];
        process.local -= 1;
        if let Some(next) = process.queued.pop_front() {
            self.go_local(next);
        }
    }

    pub(super) fn go_local(&mut self, place: Place) {
        let process = &mut self.processes[place.process as usize];
        if process.local >= MAX_FALLBACK_FETCHES {
            process.queued.push_back(place);
            self.turn(place, Stage::Queued);
            return;
        }
        process.local += 1;
        self.turn(place, Stage::Local);
        self.compute(place);
    }

    pub(super) fn timed_out(&mut self, sent: Sent) {
        if let Command::Ping = sent.command {
            return;
        }
        self.tally.timeouts += 1;
        self.processes[sent.place.process as usize].timed_out(self.now, &mut self.rng);
        if !self.is_at(sent.place, sent.turn) {
            return;
        }
        match sent.command {
            Command::Lead { .. } if sent.place.background => self.end_background(sent.place),
            Command::Get | Command::Lead { .. } => self.go_local(sent.place),
            Command::Fill { .. } => _ = self.flights.remove(&sent.place),
            Command::Extend { .. } | Command::Ping => {}
        }
    }
}
