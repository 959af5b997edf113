//! The events of the simulation, in order.

use crate::{
    flight::Place,
    load::Time,
    redis::{Command, Reply},
};
use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// A request for a random key arrives at a random process.
    Request,
    /// A command arrives at the server.
    Arrived(Sent),
    /// The reply arrives at the process.
    Replied(Sent, Reply),
    /// The process stops waiting for the reply.
    TimedOut(Sent),
    /// A wake-up arrives at the process.
    Woken(Place),
    /// A waiter polls, unless its flight has reached a later turn.
    Poll(Place, u64),
    /// A leader extends its lease, if its fetch still runs.
    Extend(Place, u64),
    Computed(Place),
    /// A near cache checks that it still receives invalidations.
    Ping(u32),
}

/// A command in flight. A reply to an earlier turn of the flight is ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) place: Place,
    pub(crate) command: Command,
    pub(crate) turn: u64,
    pub(crate) at: Time,
}

/// The planned events. Events at the same time run in the order in which they were planned.
#[derive(Default)]
pub(crate) struct Events {
    heap: BinaryHeap<Reverse<Planned>>,
    planned: u64,
}

impl Events {
    pub(crate) fn plan(&mut self, at: Time, event: Event) {
        self.planned += 1;
        self.heap.push(Reverse(Planned { at, number: self.planned, event }));
    }

    pub(crate) fn next(&mut self) -> Option<(Time, Event)> {
        self.heap.pop().map(|Reverse(Planned { at, event, .. })| (at, event))
    }
}

struct Planned {
    at: Time,
    number: u64,
    event: Event,
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Planned {}
