//! The server: one entry, one lease, and the scripts as pure functions, each a mirror of
//! `src/store/redis/script/*.lua`.
//!
//! Left out: spans (what can expire does so at any time), the count of failures in a tombstone, the limit of inboxes,
//! writes that a full server refuses; locks that decide who leads. Who is let through by one takes the lease over, which is
//! what an expiry and a grant are here, and may come at any time as well.

use super::rules::{Broken, Rules};

/// Names one send of `lead`, and the entry that comes of it. Only equality counts, so names are given anew after every
/// step (see [`names`](super::names)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) of: u8,
    pub(crate) name: u8,
}

/// The server's clock at a grant. Only equality counts here as well.
pub(crate) type Stamp = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Content {
    /// What the origin said after so many commits.
    Value(u8),
    /// A pass marker.
    Pass,
    /// An answer that was for one caller. Nothing may ever store it.
    Private,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) id: Token,
    pub(crate) content: Content,
    pub(crate) stale: bool,
}

impl Entry {
    pub(crate) fn is_marker(&self) -> bool {
        self.content == Content::Pass && !self.stale
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lease {
    Free,
    /// `inboxes`: a bit for each process that waits.
    Held {
        token: Token,
        stamp: Stamp,
        inboxes: u8,
    },
    Tombstone,
}

impl Lease {
    pub(crate) fn is_of(&self, owner: (Token, Stamp)) -> bool {
        matches!(self, Self::Held { token, stamp, .. } if (*token, *stamp) == owner)
    }

    fn is_under(&self, asked: Token) -> bool {
        matches!(self, Self::Held { token, .. } if *token == asked)
    }

    fn inboxes(&self) -> u8 {
        match self {
            Self::Held { inboxes, .. } => *inboxes,
            Self::Free | Self::Tombstone => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Server {
    pub(crate) v: Option<Entry>,
    pub(crate) l: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Led {
    Hit(Entry),
    Granted { stamp: Stamp, alive: bool },
    Wait { holder: Token, alive: bool },
    Failed { alive: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Right {
    Lease(Token, Stamp),
    Promote(Token),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Filled {
    Stored,
    /// It had been stored before.
    Known,
    Fenced,
}

impl Server {
    pub(crate) const EMPTY: Self = Self { v: None, l: Lease::Free };

    /// `lead.lua`. `stamp` is what the clock says.
    pub(crate) fn lead(&mut self, token: Token, seen: Option<Token>, stamp: Stamp) -> Led {
        if let Some(entry) = self.v.filter(|entry| Some(entry.id) != seen) {
            return Led::Hit(entry);
        }
        let alive = self.v.is_some();
        match &mut self.l {
            Lease::Held { token: holder, stamp, .. } if *holder == token => Led::Granted { stamp: *stamp, alive },
            Lease::Held { token: holder, inboxes, .. } => {
                *inboxes |= 1 << token.of;
                Led::Wait { holder: *holder, alive }
            }
            Lease::Tombstone => Led::Failed { alive },
            Lease::Free => {
                self.l = Lease::Held { token, stamp, inboxes: 0 };
                Led::Granted { stamp, alive }
            }
        }
    }

    /// `fill.lua`, and the inboxes to wake.
    pub(crate) fn fill(&mut self, right: Right, entry: Entry, rules: Rules) -> (Filled, u8) {
        if !self.entitles(right, rules) {
            let known = self.v.is_some_and(|stored| stored.id == entry.id);
            return (if known { Filled::Known } else { Filled::Fenced }, 0);
        }
        (Filled::Stored, self.set(right, entry, rules))
    }

    fn entitles(&self, right: Right, rules: Rules) -> bool {
        match right {
            Right::Lease(..) if rules.broken(Broken::NoFence) => true,
            Right::Lease(token, _) if rules.broken(Broken::FenceByTokenOnly) => self.l.is_under(token),
            Right::Lease(token, stamp) => self.l.is_of((token, stamp)),
            Right::Promote(_) if rules.broken(Broken::PromoteWithoutId) => true,
            Right::Promote(marker) => self.v.is_some_and(|stored| stored.id == marker),
        }
    }

    /// The second half of a fill. On its own it is what a client would send that has asked before who leads.
    pub(crate) fn set(&mut self, right: Right, entry: Entry, rules: Rules) -> u8 {
        let wakes = self.l.inboxes();
        self.v = Some(entry);
        if !(rules.broken(Broken::PromoteKeepsLease) && matches!(right, Right::Promote(_))) {
            self.l = Lease::Free;
        }
        wakes
    }

    /// `abandon.lua`: whether it was held, and the inboxes to wake.
    pub(crate) fn abandon(&mut self, token: Token, tombstone: bool, rules: Rules) -> (bool, u8) {
        if !self.l.is_under(token) && !rules.broken(Broken::ForeignAbandon) {
            return (false, 0);
        }
        let wakes = self.l.inboxes();
        self.l = if tombstone { Lease::Tombstone } else { Lease::Free };
        (true, wakes)
    }

    /// `extend.lua`: whether it was held. Spans are left out, so it changes nothing.
    pub(crate) fn extend(&mut self, token: Token, stamp: Stamp, rules: Rules) -> bool {
        if rules.broken(Broken::ExtendRecreates) && self.l == Lease::Free {
            self.l = Lease::Held { token, stamp, inboxes: 0 };
        }
        self.l.is_of((token, stamp))
    }

    /// `invalidate.lua`: the inboxes that are told `gone`, that of the holder among them.
    pub(crate) fn invalidate(&mut self, rules: Rules) -> u8 {
        let holder = if let Lease::Held { token, .. } = self.l { 1 << token.of } else { 0 };
        let told = holder | self.l.inboxes();
        self.v = None;
        if !rules.broken(Broken::InvalidateEntryOnly) {
            self.l = Lease::Free;
        }
        told
    }
}
