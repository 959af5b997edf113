//! The server: one thread for each shard, which executes one command at a time.

use crate::{
    chance::{self, Popularity},
    event::Sent,
    flight::Place,
    load::{
        EXTEND, FILL, GET, GRANT, INBOXES, INVALIDATION, LEAD, LEASE, Load, MICROSECOND, PING, READ, SECOND, Time, WAKE,
    },
};
use fastrand::Rng;
use std::mem;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Command {
    Get,
    /// Returns the entry if its version is not `seen`.
    Lead {
        seen: u32,
    },
    Extend {
        lease: u32,
    },
    /// An entry whose fetch took `cost`.
    Fill {
        lease: u32,
        cost: Time,
    },
    Ping,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Reply {
    Found(Entry),
    Absent,
    Granted { lease: u32 },
    Wait { remaining: Time, waiting: usize, registered: bool },
    Done,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Entry {
    /// The number of the entry of this key; 0 is the entry at the start.
    pub(crate) version: u32,
    pub(crate) filled: Time,
    pub(crate) expires: Time,
    pub(crate) cost: Time,
}

#[derive(Default)]
struct Key {
    entry: Entry,
    /// Number of processes that have read it over connections with tracking, including misses.
    readers: u32,
    lease: Option<Lease>,
}

struct Lease {
    number: u32,
    expires: Time,
    inboxes: Vec<u32>,
}

/// Time that the server has spent on each kind of work, in nanoseconds, over all shards.
#[derive(Clone, Default)]
pub(crate) struct Spent {
    pub(crate) reads: f64,
    pub(crate) misses: f64,
    pub(crate) messages: f64,
}

pub(crate) struct Redis<'a> {
    load: &'a Load,
    keys: Vec<Key>,
    leases: u32,
    /// The time at which each shard has finished its queue.
    free: Vec<Time>,
    /// The total work given to each shard.
    pub(crate) given: Vec<f64>,
    /// The time at which a shard starts to read from a connection. Commands that arrive earlier are read together.
    reads: Vec<Time>,
    pub(crate) spent: Spent,
    pub(crate) commands: u64,
    pub(crate) wakes: u64,
    pub(crate) invalidations: u64,
}

impl<'a> Redis<'a> {
    pub(crate) fn new(load: &'a Load, popularity: &Popularity, processes: u32, rng: &mut Rng) -> Self {
        let shards = load.shards as usize;
        let mut keys = Vec::new();
        keys.resize_with(load.keys as usize, Key::default);
        if !load.cold {
            for (number, key) in (0..).zip(&mut keys) {
                key.warm(load, popularity.share(number), processes, rng);
            }
        }
        let reads = vec![Time::MIN; 2 * shards * processes as usize];
        let (free, given) = (vec![0; shards], vec![0.0; shards]);
        let (spent, commands, wakes, invalidations) = (Spent::default(), 0, 0, 0);
        Self { load, keys, leases: 0, free, given, reads, spent, commands, wakes, invalidations }
    }

    pub(crate) fn entry(&self, key: u32) -> &Entry {
        &self.keys[key as usize].entry
    }

    /// Executes the command. Returns the time at which it is done, the reply, and the processes to wake.
    pub(crate) fn serve(&mut self, now: Time, sent: &Sent, rng: &mut Rng) -> (Time, Reply, Vec<u32>) {
        let Place { process, key, .. } = sent.place;
        let shard = key as usize % self.free.len();
        let tracked = self.load.is_told() && matches!(sent.command, Command::Get | Command::Ping);
        let connection = 2 * (process as usize * self.free.len() + shard) + usize::from(tracked);
        self.commands += 1;

        let begins = self.free[shard].max(now);
        let (reply, woken, dropped) = self.execute(begins, sent, rng);
        let (cost, sort) = match (sent.command, reply) {
            (Command::Get, _) => (GET, &mut self.spent.reads),
            (Command::Ping, _) => (PING, &mut self.spent.messages),
            (Command::Lead { .. }, Reply::Granted { .. }) => (GRANT, &mut self.spent.misses),
            (Command::Lead { .. }, _) => (LEAD, &mut self.spent.misses),
            (Command::Extend { .. }, _) => (EXTEND, &mut self.spent.misses),
            (Command::Fill { .. }, _) => (FILL, &mut self.spent.misses),
        };
        let is_read = now > self.reads[connection];
        if is_read {
            self.reads[connection] = begins;
        }
        let work = (cost + if is_read { READ } else { 0.0 }) * MICROSECOND;
        let messages = (woken.len() as f64 * WAKE + f64::from(dropped) * INVALIDATION) * MICROSECOND;
        *sort += work;
        self.spent.messages += messages;
        self.wakes += woken.len() as u64;
        self.invalidations += u64::from(dropped);
        self.given[shard] += work + messages;
        self.free[shard] = begins + (work + messages) as Time;
        (self.free[shard], reply, woken)
    }

    /// Returns the reply, the processes to wake, and the number of near copies that are invalidated.
    fn execute(&mut self, now: Time, sent: &Sent, rng: &mut Rng) -> (Reply, Vec<u32>, u32) {
        let key = &mut self.keys[sent.place.key as usize];
        let fresh = key.entry.expires > now;
        let dropped = if fresh { 0 } else { mem::take(&mut key.readers) };
        let reply = match sent.command {
            Command::Ping => Reply::Done,
            Command::Get if fresh => {
                key.readers += u32::from(self.load.is_told());
                Reply::Found(key.entry)
            }
            Command::Get => {
                key.readers += u32::from(self.load.is_told());
                Reply::Absent
            }
            Command::Lead { seen } if fresh && key.entry.version != seen => Reply::Found(key.entry),
            Command::Lead { .. } => match &mut key.lease {
                Some(lease) if lease.expires > now => lease.wait(now, sent.place.process),
                lease => {
                    self.leases += 1;
                    let (number, expires) = (self.leases, now + LEASE as Time);
                    *lease = Some(Lease { number, expires, inboxes: Vec::new() });
                    Reply::Granted { lease: number }
                }
            },
            Command::Extend { lease: number } => {
                if let Some(lease) = key.lease.as_mut().filter(|lease| lease.number == number) {
                    lease.expires = now + LEASE as Time;
                }
                Reply::Done
            }
            Command::Fill { lease: number, cost } => {
                let owns = |lease: &mut Lease| lease.number == number && lease.expires > now;
                let Some(lease) = key.lease.take_if(owns) else { return (Reply::Done, Vec::new(), dropped) };
                let lifetime = self.load.ttl * SECOND * (1.0 - self.load.jitter * rng.f64());
                let version = key.entry.version + 1;
                key.entry = Entry { version, filled: now, expires: now + lifetime as Time, cost };
                return (Reply::Done, lease.inboxes, dropped + mem::take(&mut key.readers));
            }
        };
        (reply, Vec::new(), dropped)
    }
}

impl Key {
    /// Sets the steady state without early refreshes: absent between the end of one entry and the next request,
    /// otherwise of a uniformly distributed age.
    fn warm(&mut self, load: &Load, share: f64, processes: u32, rng: &mut Rng) {
        let per_second = load.rate * share;
        let lifetime = load.ttl * (1.0 - load.jitter * rng.f64());
        let absent = 1.0 / (per_second * f64::from(processes));
        if rng.f64() * (lifetime + absent) < absent {
            return;
        }
        let age = lifetime * rng.f64();
        let (filled, expires) = ((-age * SECOND) as Time, ((lifetime - age) * SECOND) as Time);
        self.entry = Entry { version: 0, filled, expires, cost: chance::computation(rng, load) };
        if load.is_told() {
            self.readers = chance::about(rng, processes, 1.0 - (-per_second * age).exp());
        }
    }
}

impl Lease {
    fn wait(&mut self, now: Time, process: u32) -> Reply {
        let there = self.inboxes.contains(&process);
        let registered = there || self.inboxes.len() < INBOXES;
        if registered && !there {
            self.inboxes.push(process);
        }
        Reply::Wait { remaining: self.expires - now, waiting: self.inboxes.len(), registered }
    }
}
