//! Callers in one process that wait for one answer.

use crate::load::Time;

/// One key in one process. `background`: the background flight that refreshes it while callers are answered from the
/// cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) process: u32,
    pub(crate) key: u32,
    pub(crate) background: bool,
}

impl Place {
    pub(crate) fn in_front(self) -> Self {
        Self { background: false, ..self }
    }

    pub(crate) fn background(self) -> Self {
        Self { background: true, ..self }
    }
}

pub(crate) struct Flight {
    pub(crate) stage: Stage,
    pub(crate) began: Time,
    /// The times at which its callers asked.
    pub(crate) waiters: Vec<Time>,
    /// Unique over all flights, so that no event for an earlier flight reaches this one.
    pub(crate) turn: u64,
    /// Number of `Wait` replies.
    pub(crate) asked: u32,
    /// Whether a wake-up came while it was asking.
    pub(crate) woken: bool,
    /// The entry that it has seen.
    pub(crate) seen: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// `GET` is in flight.
    Looking,
    /// `get_or_lease` is in flight.
    Asking,
    /// Another process leads.
    Waiting,
    /// It leads since that time.
    Leading { lease: u32, since: Time },
    /// Its callers are answered, and a new caller is answered at once.
    Filling,
    /// It fetches without Redis.
    Local,
    /// It waits for a permit to fetch without Redis.
    Queued,
}
