//! The state of the world at one moment.

use super::server::{Content, Entry, FillCondition, LeaseReply, Server, Stamp, Token};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Number of commits at the origin.
    pub(crate) origin: u8,
    /// The newest that the server has executed.
    pub(crate) floor: Floor,
    pub(crate) server: Server,
    /// The state of the replica, if there is one.
    pub(crate) replica: Option<Server>,
    /// The writer of each of the first processes.
    pub(crate) writers: Vec<Writer>,
    pub(crate) processes: Vec<Process>,
    /// Requests in flight whose replies no flight waits for: late, duplicated, or sent in the background.
    pub(crate) late: Vec<Request>,
    /// How many may still happen.
    pub(crate) mishaps: u8,
    pub(crate) faults: Faults,
}

/// The commits of the newest calls of a writer, which invalidate what was read before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Floor {
    /// Of the newest invalidation or put: what is older must not be served.
    pub(crate) dropped: u8,
    /// Of the newest call, also if it is an expire: what is older must not be served as fresh, nor be stored.
    pub(crate) any: u8,
}

impl Floor {
    pub(crate) fn all(version: u8) -> Self {
        Self { dropped: version, any: version }
    }

    pub(crate) fn raise(&mut self, to: Self) {
        (self.dropped, self.any) = (self.dropped.max(to.dropped), self.any.max(to.any));
    }
}

/// What a writer calls after each commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Invalidate,
    Expire,
    Put,
}

/// The call that follows a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Writer {
    Rests,
    Sent(Request),
    Executed(Request, Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    GetOrLease {
        token: Token,
        seen: Option<Token>,
        notify: bool,
    },
    Fill {
        condition: FillCondition,
        entry: Entry,
    },
    Release {
        token: Token,
        failure_marker: bool,
    },
    Extend {
        token: Token,
        stamp: Stamp,
    },
    Invalidate {
        version: u8,
    },
    Expire {
        version: u8,
    },
    /// The first script of a put.
    Put {
        token: Token,
        version: u8,
    },
}

impl Request {
    /// What counts when this call of a writer is executed.
    pub(crate) fn floor(self) -> Floor {
        match self {
            Self::Invalidate { version } | Self::Put { version, .. } => Floor::all(version),
            Self::Expire { version } => Floor { dropped: 0, any: version },
            Self::GetOrLease { .. } | Self::Fill { .. } | Self::Release { .. } | Self::Extend { .. } => {
                Floor::default()
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) dead: bool,
    /// The newest that the process has learned of.
    pub(crate) heard: Floor,
    /// Wake-ups in flight to the process. Several are equivalent to one.
    pub(crate) mail: Mail,
    /// Interchangeable, and therefore sorted.
    pub(crate) readers: Vec<Reader>,
    pub(crate) lookups: Vec<Lookup>,
    /// In the order in which they began.
    pub(crate) flights: Vec<Flight>,
    /// The coordinated flight that readers join.
    pub(crate) fleet: Option<usize>,
    /// The local flight, joined by readers that do not use the store.
    pub(crate) local: Option<usize>,
    /// The last flight of a refresh.
    pub(crate) refresh: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mail {
    pub(crate) wake: bool,
    pub(crate) gone: Floor,
}

/// A reader asks for the key `left` more times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reader {
    pub(crate) refreshes: bool,
    pub(crate) left: u8,
    /// The newest that its process had learned of when it asked; for a refresh, all commits at its call. An older answer is
    /// a fault.
    pub(crate) must: Floor,
    pub(crate) at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum At {
    Rest,
    /// About to ask again.
    Again,
    Lookup(usize),
    Aboard {
        flight: usize,
        /// Whether the reader opened the flight, so that a private response is its own.
        own: bool,
        /// Whether the reader refreshes, and had come before the question by which its flight met the first holder.
        asked: bool,
    },
}

/// A `GET`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lookup {
    /// Whether it may be joined.
    pub(crate) listed: bool,
    pub(crate) found: Option<Option<Entry>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) phase: Phase,
    /// The request to the server.
    pub(crate) call: Option<Call>,
    /// A background refresh: no caller waits for it, and it ends if another flight leads.
    pub(crate) background: bool,
    /// The entry with which the flight began.
    pub(crate) seen: Option<Seen>,
    /// The version of that entry, while the store confirms that it is still stored.
    pub(crate) stands: Option<u8>,
    /// The newest invalidation that had been executed when the store confirmed the entry.
    pub(crate) stood: u8,
    /// The token of the fill that the flight waited for last.
    pub(crate) awaited: Option<Token>,
    /// Received, but not yet handled.
    pub(crate) unread: Mail,
    pub(crate) counts: Counts,
}

/// The entries that a flight takes for its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Counts {
    All,
    /// A refresh that has not heard of a holder yet.
    None,
    /// A refresh: the ones under leases that were granted later than the first of which it has heard. That one and all
    /// earlier ones are listed here if they are in use; in the code this is a comparison of stamps.
    Except(Vec<Token>),
}

/// An entry without its age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Seen {
    pub(crate) id: Token,
    pub(crate) content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Asking {
        token: Token,
    },
    Waiting,
    /// The fetch has read the origin, and is about to answer.
    Leading {
        token: Token,
        stamp: Stamp,
        version: u8,
        /// A reply to extend has said that the lease is lost.
        lost: bool,
        /// The lease was ended by an event other than its holder's fill or release, so another flight may lead.
        ended: bool,
    },
    /// The readers have the answer, the store not yet.
    Filling {
        token: Token,
        stamp: Stamp,
        content: Content,
        again: bool,
        /// Whether the value is that of a put.
        puts: bool,
    },
    /// The fetch failed, and the flight asks whether its entry is still stored.
    Releasing {
        token: Token,
    },
    /// The fetch has read the origin, and is about to answer the readers of this process.
    Local {
        version: u8,
    },
}

impl Phase {
    pub(crate) fn token(&self) -> Option<Token> {
        match self {
            Self::Asking { token }
            | Self::Leading { token, .. }
            | Self::Filling { token, .. }
            | Self::Releasing { token } => Some(*token),
            Self::Waiting | Self::Local { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Sent,
    /// Half executed; see [`Broken::CheckThenSet`](super::rules::Broken::CheckThenSet).
    Checked,
    /// The reply is in flight.
    Answered(Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// The number is the newest invalidation that had been executed by then.
    Lead(LeaseReply, u8),
    Filled,
    Fenced,
    Refused,
    Held(u8),
    Lost(u8),
}

/// The faults that occurred on the path to this state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults(u16);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Fault {
    StaleSet = 1,
    OldOverNew = 2,
    StaleRead = 4,
    StaleIfError = 8,
    Leak = 16,
    ForNoCaller = 32,
    Absent = 64,
    Taken = 128,
    Refused = 256,
    OldRefresh = 512,
    Created = 1024,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0 |= fault as u16;
    }

    pub(crate) fn has(self, fault: Fault) -> bool {
        self.0 & fault as u16 != 0
    }

    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}
