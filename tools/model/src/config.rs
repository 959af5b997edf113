//! The bounds of one run of the checker.

use super::{
    rules::Rules,
    server::Server,
    state::{At, Faults, Floor, Process, Reader, Verb, World, Writer},
};

/// The bounds of one run. A feature that is `false` does not occur. A feature that is `true` may occur at any time and
/// any number of times.
#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    /// Number of readers of each process.
    pub(crate) readers: Vec<u8>,
    /// Number of further readers of each process, which refresh.
    pub(crate) refreshes: Vec<u8>,
    /// The writers of the first processes: what each calls after a commit.
    pub(crate) writers: Vec<Verb>,
    /// How many times each reader asks.
    pub(crate) asks: u8,
    /// Number of commits at the origin. The call of a writer follows each.
    pub(crate) commits: u8,
    /// Maximum number of losses, duplicates, cancellations and deaths together.
    pub(crate) mishaps: u8,
    /// Requests are lost, and requests and replies time out.
    pub(crate) losses: bool,
    /// The server may refuse to store the entry of any fill, also of one that is staged.
    pub(crate) refusals: bool,
    /// Requests are delivered twice.
    pub(crate) duplicates: bool,
    /// Wake-ups are messages, and no waiter polls. Otherwise every waiter asks again at any time, which includes the
    /// effect of a wake-up.
    pub(crate) wakes: bool,
    /// The lease ends, and lease and failure marker expire, at any time, also during a pause of their holder.
    pub(crate) expiry: bool,
    /// The lease ends at any time, and does not expire. A server that stalls delays requests, and loses none.
    pub(crate) ends: bool,
    /// Entries become stale.
    pub(crate) stale: bool,
    /// Entries are evicted, or reach the end of their retention.
    pub(crate) eviction: bool,
    /// A stale entry is served and refreshed in the background. Otherwise it is only a stale candidate for a fetch that
    /// fails.
    pub(crate) refresh: bool,
    pub(crate) heartbeats: bool,
    pub(crate) failures: bool,
    /// Fetches may return a response for one caller only.
    pub(crate) private: bool,
    /// Readers that have waited enough get a stale candidate or an error.
    pub(crate) wait_timeouts: bool,
    /// Fetches are dropped with their caller.
    pub(crate) cancels: bool,
    /// Callers leave, and their fetches do not.
    pub(crate) leaves: bool,
    /// Processes other than 0 die.
    pub(crate) deaths: bool,
    pub(crate) failover: Failover,
    pub(crate) rules: Rules,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failover {
    #[default]
    Never,
    /// Loses what the replica does not have yet, but an invalidation waits for the replica.
    KeepsInvalidations,
    LosesAnything,
}

impl Config {
    pub(crate) fn begin(&self) -> World {
        let reader = |refreshes| Reader { refreshes, left: self.asks, must: Floor::default(), at: At::Rest };
        let process = |(p, readers): (usize, &u8)| {
            let mut readers = vec![reader(false); usize::from(*readers)];
            let refreshes = self.refreshes.get(p).map_or(0, |refreshes| usize::from(*refreshes));
            readers.extend(vec![reader(true); refreshes]);
            Process { readers, ..Process::default() }
        };
        World {
            origin: 0,
            floor: Floor::default(),
            server: Server::EMPTY,
            replica: (self.failover != Failover::Never).then_some(Server::EMPTY),
            writers: vec![Writer::Rests; self.writers.len()],
            processes: self.readers.iter().enumerate().map(process).collect(),
            late: Vec::new(),
            mishaps: self.mishaps,
            faults: Faults::default(),
        }
    }
}
