//! Leases: the right to compute one entry, and how a store answers for it.

use crate::{clock, entry::Entry};
use std::{fmt, time::Duration};

/// Names one attempt to lead, and later the entry that came of it. Random, and printable in any store.
///
/// The first half is the [`Inbox`] of whoever asked.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token([u8; 16]);

impl Token {
    /// A token that nobody else has, of the given inbox.
    #[must_use]
    pub fn unique(inbox: Inbox) -> Self {
        let mut token = [0; 16];
        token[..8].copy_from_slice(&inbox.0);
        token[8..].copy_from_slice(&printable(clock::unique()));
        Self(token)
    }

    /// Where the holder of this token hears of it.
    #[must_use]
    pub fn inbox(&self) -> Inbox {
        let mut inbox = [0; 8];
        inbox.copy_from_slice(&self.0[..8]);
        Inbox(inbox)
    }

    /// The token as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// A token that was read somewhere.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0.escape_ascii())
    }
}

/// Where the waiters of one process hear that a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inbox([u8; 8]);

impl Inbox {
    /// An inbox that nobody else has.
    #[must_use]
    pub fn unique() -> Self {
        Self(printable(clock::unique()))
    }

    /// The inbox as bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({})", self.0.escape_ascii())
    }
}

/// A granted lease. Only token *and* stamp together own it: a copy of the request that arrives late is granted another
/// stamp, and what it grants cannot fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Who asked.
    pub token: Token,
    /// The store's clock at the grant, in microseconds. It grows from grant to grant while one server's clock does not
    /// step back, which makes it a fencing token for the resources that a fetch writes to.
    pub stamp: u64,
}

/// The question of [`Store::lead`](crate::store::Store::lead).
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    /// New for every send, also for a repeated one.
    pub token: Token,
    /// How long the lease lives without being extended.
    pub lease: Duration,
    /// The entry that the caller has judged already: only another one is a hit.
    pub seen: Option<Token>,
}

/// The entry, or the right to fill it, or who has that right.
#[derive(Clone, Debug)]
pub enum Lead {
    /// An entry that the caller has not seen yet.
    Hit(Entry),
    /// The caller leads.
    Granted {
        /// What was granted.
        lease: Lease,
        /// Whether the entry that the caller had seen still stands. If not, it must not be served any more, whatever
        /// becomes of the fetch: it may have been invalidated.
        seen_alive: bool,
    },
    /// Somebody else leads.
    Wait {
        /// What remains of the lease.
        remaining: Duration,
        /// Who leads.
        holder: Token,
        /// How many processes wait, to spread their next question.
        waiting: usize,
        /// Whether this process will be woken. If not, it polls faster.
        registered: bool,
        /// Whether the entry that the caller had seen still stands.
        seen_alive: bool,
    },
    /// It failed just now: a tombstone.
    Failed {
        /// When it may be tried again.
        retry_in: Duration,
        /// What the failed leader left with it: an HTTP status, or 0.
        code: u16,
        /// Whether the entry that the caller had seen still stands.
        seen_alive: bool,
    },
}

/// How a leader that failed leaves its lease.
#[derive(Clone, Copy, Debug)]
pub struct Tombstone {
    /// How long it keeps others off after the first failure; it doubles from failure to failure.
    pub first: Duration,
    /// How long it keeps others off at most.
    pub most: Duration,
    /// Handed to those it keeps off: an HTTP status, or 0.
    pub code: u16,
}

/// Whether a lease was still its owner's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It was.
    Held,
    /// It had expired, was taken over, or was dropped by an invalidation.
    Lost,
}

/// Whether a fill landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// It did, or had landed before.
    Stored,
    /// It came too late and changed nothing.
    Fenced,
}

/// Six bits of each byte, as a letter: safe in channel names, ACL patterns and terminals.
fn printable(random: [u8; 8]) -> [u8; 8] {
    random.map(|byte| ALPHABET[usize::from(byte & 63)])
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
