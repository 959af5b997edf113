//! The server: one entry, one lease, and the scripts as pure functions. Each mirrors a script of
//! `src/redis/lua/*.lua`.
//!
//! Left out: durations (whatever can end or expire does so at any time), the failure count in a failure marker, the
//! limit of inboxes. Also left out are locks as arbiters of the leader. A client that acquires the lock takes over the
//! lease, which equals an expiry and a grant and may also happen at any time.

use super::rules::{Broken, Rules};

/// Names one send of `get_or_lease`, and the entry that results from it. Only equality counts, so all names are
/// assigned again after every step (see [`names`](super::names)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Token {
    pub(crate) of: u8,
    pub(crate) name: u8,
}

/// The server's clock at a grant. Only equality counts here as well.
pub(crate) type Stamp = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Content {
    /// The value of the origin after this number of commits.
    Value(u8),
    /// A hit-for-pass marker.
    HitForPass,
    /// A response for one caller. It must never be stored.
    Private,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    pub(crate) id: Token,
    pub(crate) content: Content,
    pub(crate) age: Age,
    /// Whether it was fetched under a lease, whose stamp it has. A put, and a fill that replaces a marker, have none.
    pub(crate) has_stamp: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Age {
    Fresh,
    Stale,
    /// Stale since a caller has expired it.
    Expired,
}

impl Entry {
    pub(crate) fn is_marker(&self) -> bool {
        self.content == Content::HitForPass && !self.is_stale()
    }

    pub(crate) fn is_stale(&self) -> bool {
        self.age != Age::Fresh
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
        term: Term,
        mark: Mark,
    },
    FailureMarker,
}

/// Whether the time-to-live of a lease is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Term {
    Running,
    Ended {
        /// Whether an extension had been sent by then, and was not executed since: the server has served no client.
        extension_is_due: bool,
    },
}

/// The mark of the first question after the end of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mark {
    No,
    Fresh,
    /// A quarter of a second old.
    Old,
}

impl Lease {
    fn granted(token: Token, stamp: Stamp) -> Self {
        Self::Held { token, stamp, inboxes: 0, term: Term::Running, mark: Mark::No }
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self, Self::Held { term: Term::Ended { .. }, .. })
    }

    pub(crate) fn is_of(&self, owner: (Token, Stamp)) -> bool {
        matches!(self, Self::Held { token, stamp, .. } if (*token, *stamp) == owner)
    }

    fn is_under(&self, asked: Token) -> bool {
        matches!(self, Self::Held { token, .. } if *token == asked)
    }

    fn inboxes(&self) -> u8 {
        match self {
            Self::Held { inboxes, .. } => *inboxes,
            Self::Free | Self::FailureMarker => 0,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Server {
    pub(crate) v: Option<Entry>,
    pub(crate) l: Lease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum LeaseReply {
    Hit(Entry),
    Granted { stamp: Stamp, alive: bool },
    Wait { holder: Token, alive: bool },
    Failed { alive: bool },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum FillCondition {
    Lease(Token, Stamp),
    ReplaceMarker(Token),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Filled {
    Stored,
    /// The same fill had been stored before.
    Known,
    Fenced,
    /// The server has refused the entry, and nothing is stored.
    Refused,
}

impl Server {
    pub(crate) const EMPTY: Self = Self { v: None, l: Lease::Free };

    /// Mirrors `get_or_lease.lua`. `notify`: the process is woken when the lease ends. `stamp` is the time of the
    /// server.
    pub(crate) fn lead(
        &mut self,
        token: Token,
        seen: Option<Token>,
        notify: bool,
        stamp: Stamp,
        rules: Rules,
    ) -> LeaseReply {
        if let Some(entry) = self.v.filter(|entry| Some(entry.id) != seen) {
            return LeaseReply::Hit(entry);
        }
        let alive = self.v.is_some();
        match &mut self.l {
            Lease::Held { token: holder, stamp, .. } if *holder == token => {
                LeaseReply::Granted { stamp: *stamp, alive }
            }
            Lease::Held { token: holder, inboxes, term, mark, .. } if !is_taken(*term, *mark, rules) => {
                if (*term != Term::Running || rules.broken(Broken::RunningLeaseIsMarked)) && *mark == Mark::No {
                    *mark = Mark::Fresh;
                }
                *inboxes |= u8::from(notify) << token.of;
                LeaseReply::Wait { holder: *holder, alive }
            }
            Lease::FailureMarker => LeaseReply::Failed { alive },
            Lease::Held { .. } | Lease::Free => {
                self.l = Lease::granted(token, stamp);
                LeaseReply::Granted { stamp, alive }
            }
        }
    }

    /// Mirrors `fill.lua`. Returns the outcome and the inboxes to wake. `accepted`: the server has room for the entry.
    /// Otherwise it refuses the `SET`, within the script or before it, so that the staged entry is missing.
    pub(crate) fn fill(
        &mut self,
        condition: FillCondition,
        entry: Entry,
        accepted: bool,
        rules: Rules,
    ) -> (Filled, u8) {
        if !self.entitles(condition, rules) {
            let known = self.v.is_some_and(|stored| stored.id == entry.id);
            return (if known { Filled::Known } else { Filled::Fenced }, 0);
        }
        if accepted {
            return (Filled::Stored, self.set(condition, entry, rules));
        }
        let wakes = self.l.inboxes();
        if rules.broken(Broken::RefusedFillKeepsLease) {
            return (Filled::Refused, 0);
        }
        self.l = Lease::Free;
        let outcome = if rules.broken(Broken::MissingEntryStored) { Filled::Stored } else { Filled::Refused };
        (outcome, wakes)
    }

    fn entitles(&self, condition: FillCondition, rules: Rules) -> bool {
        match condition {
            FillCondition::Lease(..) if rules.broken(Broken::NoFence) => true,
            FillCondition::Lease(..) if rules.broken(Broken::AbsenceFills) && self.l == Lease::Free => true,
            FillCondition::Lease(..) if rules.broken(Broken::EndedLeaseFillsNot) && self.l.has_ended() => false,
            FillCondition::Lease(token, _) if rules.broken(Broken::FenceByTokenOnly) => self.l.is_under(token),
            FillCondition::Lease(token, stamp) => self.l.is_of((token, stamp)),
            FillCondition::ReplaceMarker(_) if rules.broken(Broken::ReplaceWithoutId) => true,
            FillCondition::ReplaceMarker(marker) => self.v.is_some_and(|stored| stored.id == marker),
        }
    }

    /// The second half of a fill. On its own it is the command of a client that checks the lease first.
    pub(crate) fn set(&mut self, condition: FillCondition, entry: Entry, rules: Rules) -> u8 {
        let wakes = self.l.inboxes();
        self.v = Some(entry);
        if !(rules.broken(Broken::ReplaceKeepsLease) && matches!(condition, FillCondition::ReplaceMarker(_))) {
            self.l = Lease::Free;
        }
        wakes
    }

    /// Mirrors `release.lua`. Returns whether the lease was held, and the inboxes to wake.
    pub(crate) fn release(&mut self, token: Token, failure_marker: bool, rules: Rules) -> (bool, u8) {
        if !self.l.is_under(token) && !rules.broken(Broken::ForeignRelease) {
            return (false, 0);
        }
        let wakes = self.l.inboxes();
        self.l = if failure_marker { Lease::FailureMarker } else { Lease::Free };
        (true, wakes)
    }

    /// Mirrors `extend.lua`. Returns whether the lease was held.
    pub(crate) fn extend(&mut self, token: Token, stamp: Stamp, rules: Rules) -> bool {
        if rules.broken(Broken::ExtendRecreates) && self.l == Lease::Free {
            self.l = Lease::granted(token, stamp);
        }
        let ended = rules.broken(Broken::EndedLeaseIsNotExtended) && self.l.has_ended();
        if ended || !self.l.is_of((token, stamp)) {
            return false;
        }
        if let Lease::Held { term, mark, .. } = &mut self.l {
            *term = Term::Running;
            if !rules.broken(Broken::ExtensionKeepsMark) {
                *mark = Mark::No;
            }
        }
        true
    }

    /// Ends the time-to-live of the lease. `extension_is_due`: its holder has sent an extension that is not executed.
    pub(crate) fn end_lease(&mut self, extension_is_due: bool) {
        if let Lease::Held { term, .. } = &mut self.l {
            *term = Term::Ended { extension_is_due };
        }
    }

    /// Lets a quarter of a second pass after a mark.
    pub(crate) fn age_mark(&mut self) {
        if let Lease::Held { mark, .. } = &mut self.l {
            *mark = Mark::Old;
        }
    }

    /// Mirrors `invalidate.lua`. Returns the inboxes that get an invalidation message, including that of the holder.
    pub(crate) fn invalidate(&mut self, rules: Rules) -> u8 {
        self.v = None;
        self.drop_lease(rules)
    }

    /// The first script of a put: an invalidation that grants the lease to the caller.
    pub(crate) fn begin_put(&mut self, token: Token, stamp: Stamp, rules: Rules) -> u8 {
        let told = if rules.broken(Broken::PutKeepsEntry) { self.drop_lease(rules) } else { self.invalidate(rules) };
        self.l = Lease::granted(token, stamp);
        told
    }

    /// Makes the entry stale, so that it keeps its id. A marker has no use when it is stale, and would permit a fill that
    /// replaces it. `created` is the entry that a careless script creates.
    pub(crate) fn expire(&mut self, created: Entry, rules: Rules) -> u8 {
        match &mut self.v {
            Some(entry) if entry.content == Content::HitForPass && !rules.broken(Broken::ExpireKeepsMarker) => {
                self.v = None;
            }
            Some(entry) => entry.age = Age::Expired,
            None if rules.broken(Broken::ExpireCreates) => self.v = Some(created),
            None => {}
        }
        if rules.broken(Broken::ExpireKeepsLease) { self.told() } else { self.drop_lease(rules) }
    }

    /// The tokens of the entry and of the lease.
    pub(crate) fn tokens(&self) -> Vec<Token> {
        let holder = if let Lease::Held { token, .. } = self.l { Some(token) } else { None };
        self.v.map(|entry| entry.id).into_iter().chain(holder).collect()
    }

    /// The inboxes that get an invalidation message.
    fn told(&self) -> u8 {
        let holder = if let Lease::Held { token, .. } = self.l { 1 << token.of } else { 0 };
        holder | self.l.inboxes()
    }

    fn drop_lease(&mut self, rules: Rules) -> u8 {
        let told = self.told();
        let keeps_lease = rules.broken(Broken::InvalidateEntryOnly)
            || rules.broken(Broken::InvalidationKeepsEndedLease) && self.l.has_ended();
        if !keeps_lease {
            self.l = Lease::Free;
        }
        told
    }
}

/// Reports whether a question of another process takes the lease.
fn is_taken(term: Term, mark: Mark, rules: Rules) -> bool {
    let is_due = match mark {
        Mark::No => rules.broken(Broken::EndedLeaseIsNotMarked),
        Mark::Fresh => rules.broken(Broken::MarkIsNotWaitedFor),
        Mark::Old => !rules.broken(Broken::MarkedLeaseIsKept),
    };
    term != Term::Running && is_due
}
