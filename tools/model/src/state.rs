//! The state of the world at one moment.

use super::server::{Content, Entry, FillCondition, LeaseReply, Server, Stamp, Token};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Number of commits at the origin.
    pub(crate) origin: u8,
    /// The commit of the newest invalidation that the server has executed.
    pub(crate) floor: u8,
    pub(crate) server: Server,
    /// The state of the replica, if there is one.
    pub(crate) replica: Option<Server>,
    pub(crate) writer: Writer,
    pub(crate) processes: Vec<Process>,
    /// Requests in flight whose replies no flight waits for: late, duplicated, or sent in the background.
    pub(crate) late: Vec<Request>,
    /// How many may still happen.
    pub(crate) mishaps: u8,
    pub(crate) faults: Faults,
}

/// The invalidation that follows a commit, in process 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Writer {
    Rests,
    Sent,
    Executed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Request {
    GetOrLease { token: Token, seen: Option<Token>, notify: bool },
    Fill { condition: FillCondition, entry: Entry },
    Release { token: Token, failure_marker: bool },
    Extend { token: Token, stamp: Stamp },
    Invalidate { version: u8 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) dead: bool,
    /// The commit of the newest invalidation that the process has learned of.
    pub(crate) heard: u8,
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
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mail {
    pub(crate) wake: bool,
    /// The commit that was invalidated, or 0.
    pub(crate) gone: u8,
}

/// A reader asks for the key `left` more times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reader {
    pub(crate) left: u8,
    /// The newest invalidation that its process had learned of when it asked. An older answer is a fault.
    pub(crate) must: u8,
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
