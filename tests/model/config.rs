//! What is modelled in one run of the checker.

use super::{
    rules::Rules,
    server::Server,
    state::{At, Faults, Process, Reader, World, Writer},
};

/// How far one run goes. What is `false` does not happen; what is `true` happens at any time and any number of times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    /// Readers of each process. Process 0 also invalidates.
    pub(crate) readers: Vec<u8>,
    /// How often each reader asks.
    pub(crate) asks: u8,
    /// Commits at the origin, an invalidation after each.
    pub(crate) commits: u8,
    /// How many of the losses, duplicates, cancellations and deaths that may happen do.
    pub(crate) mishaps: u8,
    /// Requests and answers are given up; requests are lost.
    pub(crate) losses: bool,
    /// Requests are delivered twice.
    pub(crate) duplicates: bool,
    /// Wake-ups are messages, and nobody polls. Else everybody asks again at any time, which is what a wake-up comes
    /// to.
    pub(crate) wakes: bool,
    /// The lease and the tombstone run out, whatever their holder does. So do pauses that outlast them.
    pub(crate) expiry: bool,
    /// Entries become stale.
    pub(crate) stale: bool,
    /// Entries are evicted, or reach the end of their retention.
    pub(crate) eviction: bool,
    /// A stale entry is served and refreshed behind. Else it is at hand for a fetch that fails.
    pub(crate) refresh: bool,
    pub(crate) heartbeats: bool,
    pub(crate) failures: bool,
    /// Answers for one caller.
    pub(crate) private: bool,
    /// Wait budgets run out, and deadlines.
    pub(crate) budgets: bool,
    /// Computations are dropped with their caller.
    pub(crate) cancels: bool,
    /// Processes other than 0 die.
    pub(crate) deaths: bool,
    pub(crate) failover: Failover,
    pub(crate) rules: Rules,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failover {
    #[default]
    Never,
    /// Loses what the replica does not have yet; an invalidation waits for it.
    KeepsInvalidations,
    LosesAnything,
}

impl Config {
    pub(crate) fn begin(&self) -> World {
        let rests = Reader { left: self.asks, must: 0, asked: 0, at: At::Rest };
        let process = |readers: &u8| Process { readers: vec![rests; usize::from(*readers)], ..Process::default() };
        World {
            origin: 0,
            floor: 0,
            server: Server::EMPTY,
            replica: (self.failover != Failover::Never).then_some(Server::EMPTY),
            writer: Writer::Rests,
            processes: self.readers.iter().map(process).collect(),
            late: Vec::new(),
            mishaps: self.mishaps,
            faults: Faults::default(),
        }
    }
}
