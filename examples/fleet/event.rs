//! What happens, in order.

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
    /// Somebody asks some process for some key.
    Request,
    /// A command is at the server.
    Arrived(Sent),
    /// A process has the reply.
    Replied(Sent, Reply),
    /// The process waits no longer for the reply.
    TimedOut(Sent),
    /// A wake-up is at the process.
    Woken(Place),
    /// A waiter asks again, if nothing has happened to its flight since that turn.
    Poll(Place, u64),
    /// A leader prolongs its lease, if it still computes.
    Extend(Place, u64),
    Computed(Place),
    /// A near cache makes sure that it still hears of invalidations.
    Ping(u32),
}

/// A command under way. An answer to an earlier turn of the flight is not listened to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) place: Place,
    pub(crate) command: Command,
    pub(crate) turn: u64,
    pub(crate) at: Time,
}

/// What is to come. Of what happens at one moment, what was planned first comes first.
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
