//! All there is at one moment.

use super::server::{Content, Entry, Led, Right, Server, Stamp, Token};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// Commits at the origin.
    pub(crate) origin: u8,
    /// The commit of the newest invalidation that the server has executed.
    pub(crate) floor: u8,
    pub(crate) server: Server,
    /// What the replica has of it, where there is one.
    pub(crate) replica: Option<Server>,
    pub(crate) writer: Writer,
    pub(crate) processes: Vec<Process>,
    /// Requests under way whose answers nobody waits for: late, duplicated, or sent behind.
    pub(crate) late: Vec<Request>,
    /// How many are still to come.
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
    Lead { token: Token, seen: Option<Token> },
    Fill { right: Right, entry: Entry },
    Abandon { token: Token, tombstone: bool },
    Extend { token: Token, stamp: Stamp },
    Invalidate { version: u8 },
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Process {
    pub(crate) dead: bool,
    /// The commit of the newest invalidation that it has heard of.
    pub(crate) heard: u8,
    /// Wake-ups under way to it. Several are as good as one.
    pub(crate) mail: Mail,
    /// Alike, hence sorted.
    pub(crate) readers: Vec<Reader>,
    pub(crate) lookups: Vec<Lookup>,
    /// In the order of their beginning.
    pub(crate) flights: Vec<Flight>,
    /// The flight that is joined.
    pub(crate) fleet: Option<usize>,
    /// The flight that is joined by those who do not ask the store.
    pub(crate) local: Option<usize>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mail {
    pub(crate) wake: bool,
    /// The commit that was invalidated, or 0.
    pub(crate) gone: u8,
}

/// Asks for the key, so many times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Reader {
    pub(crate) left: u8,
    /// What its process had heard of when it asked: no older answer will do.
    pub(crate) must: u8,
    /// How many of the flights that there are began before it asked.
    pub(crate) asked: usize,
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
        /// Whether it opened the flight, so that the answer is its own.
        own: bool,
    },
}

/// A `GET`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Lookup {
    /// Whether it is joined.
    pub(crate) listed: bool,
    pub(crate) found: Option<Option<Entry>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Flight {
    pub(crate) phase: Phase,
    /// What it asks the server.
    pub(crate) call: Option<Call>,
    /// Given up by its caller already: it gives way to anybody who leads.
    pub(crate) behind: bool,
    /// The entry at hand.
    pub(crate) seen: Option<Seen>,
    /// The version of the entry at hand, for as long as the store says that it still stands.
    pub(crate) stands: Option<u8>,
    /// The newest invalidation that had been executed when the store said so.
    pub(crate) stood: u8,
    /// Whose fill it waited for last.
    pub(crate) awaited: Option<Token>,
    /// Invalidations during the wait.
    pub(crate) gone: u8,
    /// Heard, but not yet taken in.
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
    /// Its fetch has read the origin, and is about to answer.
    Leading {
        token: Token,
        stamp: Stamp,
        version: u8,
        /// An extend has said so.
        lost: bool,
        /// The lease has ended by anything but its holder, so that others may lead.
        ended: bool,
    },
    /// Everybody has the answer, the store not yet.
    Filling {
        token: Token,
        stamp: Stamp,
        content: Content,
        again: bool,
    },
    /// It failed, and asks whether the entry at hand still stands.
    GivingBack {
        token: Token,
    },
    /// Its fetch has read the origin, and is about to answer this process.
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
            | Self::GivingBack { token } => Some(*token),
            Self::Waiting | Self::Local { .. } => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Sent,
    /// Half done; see [`Broken::CheckThenSet`](super::rules::Broken::CheckThenSet).
    Checked,
    /// The answer is under way.
    Answered(Reply),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    /// With the newest invalidation that had been executed by then.
    Led(Led, u8),
    Filled,
    Fenced,
    Held(u8),
    Lost(u8),
}

/// What has gone wrong on the way here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Faults(u8);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    StaleSet = 1,
    OldOverNew = 2,
    StaleRead = 4,
    StaleIfError = 8,
    Leak = 16,
}

impl Faults {
    pub(crate) fn add(&mut self, fault: Fault) {
        self.0 |= fault as u8;
    }

    pub(crate) fn has(self, fault: Fault) -> bool {
        self.0 & fault as u8 != 0
    }

    pub(crate) fn any(self) -> bool {
        self.0 != 0
    }
}
