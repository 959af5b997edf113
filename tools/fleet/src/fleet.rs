//! The protocol from the side of the processes: requests, and answers that need no waiting.

mod flying;

use crate::{
    chance::{self, Popularity},
    event::{Event, Events, Sent},
    flight::{Flight, Place, Stage},
    load::{CLIENT, Load, MICROSECOND, NEAR_HIT, SECOND, STORE_TIMEOUT, Time},
    origin::Origin,
    process::{Gate, Process},
    redis::{Command, Entry, Redis},
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
    /// The near copy that a process has of a key, and the time until it may be served if the server sends no
    /// invalidations.
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
        self.ask(Place { process, key, background: false }, vec![self.now]);
    }

    fn plan_request(&mut self) {
        let mean = SECOND / (self.load.rate * self.processes.len() as f64);
        let at = self.now + chance::exponential(&mut self.rng, mean) as Time;
        self.events.plan(at, Event::Request);
    }

    /// Handles one attempt of the callers that asked at these times.
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

    /// Returns the process's copy of the key, if it may be served. A copy that was never looked up may have been made
    /// before the simulation began. The half round trip that an invalidation takes is neglected.
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
        let (at, late) = (done + self.half_way(), sent.at + STORE_TIMEOUT as Time);
        match at <= late {
            true => self.events.plan(at, Event::Replied(sent, reply)),
            false => self.events.plan(late, Event::TimedOut(sent)),
        }
        for process in woken {
            self.events.plan(at, Event::Woken(Place { process, ..sent.place.in_front() }));
        }
    }

    fn ping(&mut self, process: u32) {
        let (place, at) = (Place { process, key: process % self.load.keys, background: false }, self.now);
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

/// No entry has this number: no entry was seen.
const NONE: u32 = u32::MAX;
