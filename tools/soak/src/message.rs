//! The messages of workers to their parent, one line of JSON each.

use serde::{Deserialize, Serialize};
use std::io::{self, Write};

#[derive(Serialize, Deserialize)]
pub(crate) enum Message {
    /// The counters so far, sent periodically.
    Count(Count),
    /// A check has failed.
    Violation(String),
    /// The load has ended, and nothing of it is left.
    Done(Count),
}

/// The counters of a worker.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Count {
    /// Answers of the guard, by kind.
    pub(crate) answers: u64,
    pub(crate) hits: u64,
    pub(crate) stale: u64,
    pub(crate) coalesced: u64,
    pub(crate) failed_open: u64,
    /// Errors that are expected, because the origin failed.
    pub(crate) errors: u64,
    /// Callers that dropped their future.
    pub(crate) dropped: u64,
    pub(crate) invalidations: u64,
    /// Invalidations that were not acknowledged.
    pub(crate) unacknowledged: u64,
    pub(crate) fenced: u64,
    pub(crate) leases_lost: u64,
    /// Resident memory, in KiB.
    pub(crate) memory: u64,
}

impl Count {
    /// Adds the other counters; of the memory, takes the larger value.
    pub(crate) fn add(&mut self, other: &Self) {
        self.answers += other.answers;
        self.hits += other.hits;
        self.stale += other.stale;
        self.coalesced += other.coalesced;
        self.failed_open += other.failed_open;
        self.errors += other.errors;
        self.dropped += other.dropped;
        self.invalidations += other.invalidations;
        self.unacknowledged += other.unacknowledged;
        self.fenced += other.fenced;
        self.leases_lost += other.leases_lost;
        self.memory = self.memory.max(other.memory);
    }
}

/// Sends a message to the parent. Exits if the parent has ended.
pub(crate) fn tell(message: &Message) {
    let line = serde_json::to_string(message).expect("a message is JSON");
    let mut stdout = io::stdout().lock();
    if writeln!(stdout, "{line}").and_then(|()| stdout.flush()).is_err() {
        std::process::exit(1);
    }
}
