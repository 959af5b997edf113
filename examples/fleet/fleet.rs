//! The protocol, from the side of the processes.

use crate::{
    chance::{self, Popularity},
    event::{Event, Events, Sent},
    flight::{Flight, Place, Stage},
    load::{BULKHEAD, CLIENT, LEASE, LINGER, Load, MICROSECOND, NEAR_HIT, OP_TIMEOUT, SECOND, Time, WAIT},
    origin::Origin,
    process::{Gate, Process},
    redis::{Command, Entry, Redis, Reply},
    row::Row,
    tally::Tally,
};
use fastrand::Rng;
use std::collections::HashMap;

pub(crate) fn simulate(load: &Load, processes: u32, seconds: f64) -> Row {
    let mut fleet = Fleet::new(load, processes);
    fleet.run((seconds * SECOND) as Time);
    Row::of(load, processes, seconds, &fleet.tally, &fleet.redis, &fleet.origin)
}

struct Fleet<'a> {
    load: &'a Load,
    rng: Rng,
    popularity: Popularity,
    events: Events,
    now: Time,
    redis: Redis<'a>,
    origin: Origin,
    processes: Vec<Process>,
    flights: HashMap<Place, Flight>,
    turns: u64,
    /// The near copy that a process has of a key, and until when it is served if nobody tells of changes.
    copies: HashMap<(u32, u32), (Entry, Time)>,
    tally: Tally,
}

impl<'a> Fleet<'a> {
    fn new(load: &'a Load, processes: u32) -> Self {
        let mut rng = Rng::with_seed(load.seed);
        let popularity = Popularity::new(load.keys, load.zipf);
        let redis = Redis::new(load, &popularity, processes, &mut rng);
        let (events, origin, tally) = (Events::default(), Origin::default(), Tally::default());
        let processes = (0..processes).map(|_| Process::default()).collect();
        let (flights, copies) = (HashMap::new(), HashMap::new());
        Self { load, rng, popularity, events, now: 0, redis, origin, processes, flights, turns: 0, copies, tally }
    }

    fn run(&mut self, end: Time) {
        self.plan_request();
        if self.load.is_told() {
            let every = self.ping_every();
            for process in 0..self.processes.len() as u32 {
                let first = (self.rng.f64() * every) as Time;
                self.events.plan(first, Event::Ping(process));
            }
        }
        while let Some((at, event)) = self.events.next()
            && at < end
        {
            self.now = at;
            match event {
                Event::Request => self.request(),
                Event::Arrived(sent) => self.serve(sent),
                Event::Replied(sent, reply) => self.replied(sent, reply),
                Event::TimedOut(sent) => self.timed_out(sent),
                Event::Woken(place) => self.woken(place),
                Event::Poll(place, turn) if self.is_at(place, turn) => self.poll(place),
                Event::Extend(place, turn) if self.is_at(place, turn) => self.extend(place, turn),
                Event::Poll(..) | Event::Extend(..) => {}
                Event::Computed(place) => self.computed(place),
                Event::Ping(process) => self.ping(process),
            }
        }
    }

    fn request(&mut self) {
        self.plan_request();
        self.tally.requests += 1;
        let process = self.rng.u32(..self.processes.len() as u32);
        let key = self.popularity.draw(&mut self.rng);
        self.ask(Place { process, key, behind: false }, vec![self.now]);
    }

    fn plan_request(&mut self) {
        let mean = SECOND / (self.load.rate * self.processes.len() as f64);
        let at = self.now + chance::exponential(&mut self.rng, mean) as Time;
        self.events.plan(at, Event::Request);
    }

    /// One round of those who asked at these times.
    fn ask(&mut self, place: Place, mut waiters: Vec<Time>) {
        if let Some(entry) = self.copy(place)
            && !self.is_due(place, &entry)
        {
            return self.answer_near(&waiters);
        }
        if let Some(flight) = self.flights.get_mut(&place) {
            if flight.stage == Stage::Filling {
                return self.answer(&waiters);
            }
            return flight.waiters.append(&mut waiters);
        }
        let (turn, began) = (self.next_turn(), self.now);
        let stage = Stage::Looking;
        self.flights.insert(place, Flight { stage, began, waiters, turn, asked: 0, woken: false, seen: NONE });
        match self.processes[place.process as usize].gate(self.now, &mut self.rng) {
            Gate::Ask => self.send(place, Command::Get),
            Gate::Shut => self.go_local(place),
            Gate::Probe => {
                self.go_local(place);
                let (at, turn) = (self.now, 0);
                self.transmit(Sent { place, command: Command::Ping, turn, at });
            }
        }
    }

    /// The copy that the process has of the key, if it may be served. One that has not been looked at yet may have come by
    /// it before the beginning. That an invalidation is under way for half a round trip is neglected.
    fn copy(&mut self, place: Place) -> Option<Entry> {
        if !self.load.near {
            return None;
        }
        let (now, current, told) = (self.now, *self.redis.entry(place.key), self.load.is_told());
        let per_second = self.load.rate * self.popularity.share(place.key);
        let rng = &mut self.rng;
        let (entry, until) = self.copies.entry((place.process, place.key)).or_insert_with(|| {
            let age = -current.filled as f64 / SECOND;
            let had = told && current.version == 0 && rng.f64() < 1.0 - (-per_second * age).exp();
            if had { (current, Time::MAX) } else { (Entry::default(), 0) }
        });
        let good = if told { entry.version == current.version } else { now < *until };
        (good && now < entry.expires).then_some(*entry)
    }

    fn answer_near(&mut self, waiters: &[Time]) {
        for &asked in waiters {
            self.tally.near_hits += 1;
            self.tally.hits.add(self.now - asked + (NEAR_HIT * MICROSECOND) as Time);
        }
    }

    fn answer(&mut self, waiters: &[Time]) {
        for &asked in waiters {
            self.tally.misses.add(self.now - asked + (CLIENT * MICROSECOND) as Time);
        }
    }

    fn send(&mut self, place: Place, command: Command) {
        let Some(flight) = self.flights.get(&place) else { return };
        self.transmit(Sent { place, command, turn: flight.turn, at: self.now });
    }

    fn transmit(&mut self, sent: Sent) {
        self.events.plan(self.now + self.half_way(), Event::Arrived(sent));
    }

    fn half_way(&self) -> Time {
        (self.load.rtt * MICROSECOND / 2.0) as Time
    }

    fn serve(&mut self, sent: Sent) {
        let (done, reply, woken) = self.redis.serve(self.now, &sent, &mut self.rng);
        let (at, late) = (done + self.half_way(), sent.at + OP_TIMEOUT as Time);
        match at <= late {
            true => self.events.plan(at, Event::Replied(sent, reply)),
            false => self.events.plan(late, Event::TimedOut(sent)),
        }
        for process in woken {
            self.events.plan(at, Event::Woken(Place { process, ..sent.place.in_front() }));
        }
    }

    fn replied(&mut self, sent: Sent, reply: Reply) {
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
            (Command::Lead { .. }, _) if place.behind => self.end_behind(place),
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
        // What began as a refresh is what is waited for now.
        if let Some(refresh) = self.flights.get(&place.behind()) {
            let stage = refresh.stage;
            let mut waiters = self.flights.remove(&place).map(|flight| flight.waiters).unwrap_or_default();
            if stage == Stage::Filling {
                return self.answer(&waiters);
            }
            if let Some(refresh) = self.flights.get_mut(&place.behind()) {
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

    /// As `Early::is_due` in src/policy.rs; and who is refreshed already is not refreshed again.
    fn is_due(&mut self, place: Place, entry: &Entry) -> bool {
        if self.load.early == 0.0 || self.flights.contains_key(&place.behind()) {
            return false;
        }
        let (lifetime, left) = ((entry.expires - entry.filled) as f64, (entry.expires - self.now) as f64);
        let scale = entry.cost as f64 * self.load.early;
        let eligible = left >= 0.0 && left <= lifetime / 2.0 && 10.0 * scale <= lifetime;
        eligible && left <= chance::exponential(&mut self.rng, scale)
    }

    fn refresh_if_due(&mut self, place: Place, entry: &Entry) {
        if !self.is_due(place, entry) {
            return;
        }
        let (turn, began, seen) = (self.next_turn(), self.now, entry.version);
        let (stage, waiters) = (Stage::Asking, Vec::new());
        self.flights.insert(place.behind(), Flight { stage, began, waiters, turn, asked: 0, woken: false, seen });
        self.send(place.behind(), Command::Lead { seen });
    }

    fn wait(&mut self, place: Place, remaining: Time, waiting: usize, registered: bool) {
        let expiry = remaining + chance::after_expiry(&mut self.rng, waiting);
        let turn = self.turn(place, Stage::Waiting);
        let Some(flight) = self.flights.get_mut(&place) else { return };
        let pause = match place.behind {
            true => remaining.min(LINGER as Time),
            false if std::mem::take(&mut flight.woken) => 0,
            false => chance::poll(&mut self.rng, flight.asked, registered).min(expiry),
        };
        flight.asked += 1;
        self.events.plan(self.now + pause, Event::Poll(place, turn));
    }

    fn woken(&mut self, place: Place) {
        match self.flights.get_mut(&place) {
            Some(flight) if flight.stage == Stage::Asking => flight.woken = true,
            Some(flight) if flight.stage == Stage::Waiting => self.poll(place),
            _ => {}
        }
    }

    fn poll(&mut self, place: Place) {
        match self.flights.get(&place) {
            _ if place.behind => self.end_behind(place),
            Some(flight) if self.now - flight.began > WAIT as Time => self.go_local(place),
            _ => self.lead(place),
        }
    }

    /// Somebody else refreshes it. Those who have come to wait for it ask anew.
    fn end_behind(&mut self, place: Place) {
        let waiters = self.flights.remove(&place).map(|flight| flight.waiters).unwrap_or_default();
        if !waiters.is_empty() {
            self.ask(place.in_front(), waiters);
        }
    }

    fn extend(&mut self, place: Place, turn: u64) {
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

    fn computed(&mut self, place: Place) {
        if let Some((next, takes)) = self.origin.over() {
            self.events.plan(self.now + takes, Event::Computed(next));
        }
        let Some(flight) = self.flights.get_mut(&place) else { return };
        let (waiters, stage) = (std::mem::take(&mut flight.waiters), flight.stage);
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

    fn go_local(&mut self, place: Place) {
        let process = &mut self.processes[place.process as usize];
        if process.local >= BULKHEAD {
            process.queued.push_back(place);
            self.turn(place, Stage::Queued);
            return;
        }
        process.local += 1;
        self.turn(place, Stage::Local);
        self.compute(place);
    }

    fn timed_out(&mut self, sent: Sent) {
        if let Command::Ping = sent.command {
            return;
        }
        self.tally.timeouts += 1;
        self.processes[sent.place.process as usize].timed_out(self.now, &mut self.rng);
        if !self.is_at(sent.place, sent.turn) {
            return;
        }
        match sent.command {
            Command::Lead { .. } if sent.place.behind => self.end_behind(sent.place),
            Command::Get | Command::Lead { .. } => self.go_local(sent.place),
            Command::Fill { .. } => _ = self.flights.remove(&sent.place),
            Command::Extend { .. } | Command::Ping => {}
        }
    }

    fn ping(&mut self, process: u32) {
        let (place, at) = (Place { process, key: process % self.load.keys, behind: false }, self.now);
        self.transmit(Sent { place, command: Command::Ping, turn: 0, at });
        self.events.plan(at + self.ping_every() as Time, Event::Ping(process));
    }

    fn ping_every(&self) -> f64 {
        self.load.max_age * SECOND / 3.0
    }

    fn turn(&mut self, place: Place, stage: Stage) -> u64 {
        let turn = self.next_turn();
        if let Some(flight) = self.flights.get_mut(&place) {
            (flight.stage, flight.turn) = (stage, turn);
        }
        turn
    }

    fn next_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    fn is_at(&self, place: Place, turn: u64) -> bool {
        self.flights.get(&place).is_some_and(|flight| flight.turn == turn)
    }
}

/// No entry has this number: nothing was seen.
const NONE: u32 = u32::MAX;
