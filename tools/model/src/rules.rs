//! The rules of the protocol that can be switched off, to show that the checker notices.

/// One rule, broken by the smallest change that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A fill is stored without a lease.
    NoFence,
    /// An invalidation leaves the lease.
    InvalidateEntryOnly,
    /// A fill checks the lease first, and stores with another command.
    CheckThenSet,
    /// Extending a lease that has ended creates it again.
    ExtendRecreates,
    /// A fill is stored if there is no lease: nothing shows an invalidation.
    AbsenceFills,
    /// A lease that has ended permits no fill, although no other process has taken it.
    EndedLeaseFillsNot,
    /// A lease that has ended is not extended, although no other process has taken it.
    EndedLeaseIsNotExtended,
    /// The first question after the end of a lease takes it.
    EndedLeaseIsNotMarked,
    /// A question before the end of a lease marks it.
    RunningLeaseIsMarked,
    /// A question takes a marked lease at once.
    MarkIsNotWaitedFor,
    /// An extension leaves the mark.
    ExtensionKeepsMark,
    /// No question takes a marked lease.
    MarkedLeaseIsKept,
    /// An invalidation leaves a lease that has ended.
    InvalidationKeepsEndedLease,
    /// A fill is fenced by its token, without the stamp.
    FenceByTokenOnly,
    /// `get_or_lease` is sent again with the same token.
    SameTokenRetry,
    /// A release ends any lease, whatever its token.
    ForeignRelease,
    /// A fill that replaces a marker does not name the marker.
    ReplaceWithoutId,
    /// A fill that replaces a marker leaves the lease.
    ReplaceKeepsLease,
    /// The leader keeps the entry with which it began, even if the reply to `get_or_lease` says that it is no longer
    /// stored.
    NoSeenAlive,
    /// After a failed fetch the entry is served without regard to the reply to the release.
    NoHeldCheck,
    /// Waiters poll with `GET`, and ignore the end of the lease.
    PollByGet,
    /// After its own invalidation a process keeps joining flights and lookups that began before.
    NoForget,
    /// The process forgets them before the store has executed the invalidation.
    ForgetBeforeStore,
    /// A flight that receives an invalidation message may still be joined.
    InvalidationIgnored,
    /// A flight that receives an invalidation message leaves the table, but the lookups of its process stay.
    LookupsStayJoinable,
    /// The script of a fill takes the entry for stored although it is missing under its staging name.
    MissingEntryStored,
    /// A fill that the server refuses leaves the lease.
    RefusedFillKeepsLease,
    /// A fill wakes no waiter.
    NoWake,
    /// A lookup that began before an invalidation may still be joined.
    LookupKept,
    /// Waiters get the leader's response even if it is private.
    PrivateShared,
    /// The store gets the leader's response even if it is private.
    PrivateStored,
    /// A flight without callers fetches when the lease is granted.
    DesertedFlightLeads,
    /// A flight without callers ends when the lease is granted, and does not release it.
    DesertedFlightKeepsGrant,
    /// A put whose first script is not acknowledged is sent again with its value.
    PutIsSentAgain,
    /// The first script of a put leaves the entry.
    PutKeepsEntry,
    /// An expire leaves the lease.
    ExpireKeepsLease,
    /// An expire leaves a hit-for-pass marker, with its id.
    ExpireKeepsMarker,
    /// An expire of an entry that is not there creates one.
    ExpireCreates,
    /// The entry that a flight waited for counts although a caller has expired it.
    AwaitedIsNotJudged,
    /// A refresh takes for too old what it meets first, an entry or a holder, and nothing else.
    RefreshNamesOneHolder,
    /// A refresh takes an entry before it has heard of a holder.
    RefreshTakesBeforeHolder,
    /// A refresh takes the entry of the first holder.
    RefreshTakesFirstHolder,
    /// A refresh takes an entry without a stamp.
    RefreshTakesWithoutStamp,
    /// A refresh joins one whose fetch has begun.
    RefreshJoinsRunning,
    /// A refresh that has joined another one takes an entry that counts for the earlier one.
    RefreshSharesFound,
    /// A refresh joins the local flight of its process.
    RefreshJoinsLocal,
}

/// The rules that hold: all, or all but one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules(pub Option<Broken>);

impl Rules {
    pub(crate) fn broken(self, rule: Broken) -> bool {
        self.0 == Some(rule)
    }
}
