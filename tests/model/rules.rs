//! The rules of the protocol that can be switched off, to see that the checker misses them.

/// One rule, broken by the smallest change that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// A fill lands without a lease.
    NoFence,
    /// An invalidation leaves the lease.
    InvalidateEntryOnly,
    /// A fill asks for the lease first, and stores with another command.
    CheckThenSet,
    /// Extending a lease that is gone makes it anew.
    ExtendRecreates,
    /// A fill shows its token, and no stamp.
    FenceByTokenOnly,
    /// `lead` is sent again with the token of the first time.
    SameTokenRetry,
    /// An abandon frees any lease.
    ForeignAbandon,
    /// A promote does not name its marker.
    PromoteWithoutId,
    /// A promote leaves the lease.
    PromoteKeepsLease,
    /// The leader keeps the entry at hand, whatever `lead` said of it.
    NoSeenAlive,
    /// The entry at hand is served for a fetch that failed, whatever abandon said.
    NoHeldCheck,
    /// Waiters poll with `GET`, and do not mind the end of the lease.
    PollByGet,
    /// A process goes on joining what it began before its own invalidation.
    NoForget,
    /// It forgets before the store has done it.
    ForgetBeforeStore,
    /// A flight that was told `gone` goes on being joined.
    GoneIgnored,
    /// It leaves the table alone, and what else its process began stays.
    GoneForItself,
    /// A fill wakes nobody.
    NoWake,
    /// A lookup of the time before an invalidation goes on being joined.
    LookupKept,
    /// Those who joined get the leader's answer, whatever its head said.
    PrivateShared,
    /// So does the store.
    PrivateStored,
}

/// Which rules hold: all, or all but one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules(pub Option<Broken>);

impl Rules {
    pub(crate) fn broken(self, rule: Broken) -> bool {
        self.0 == Some(rule)
    }
}
