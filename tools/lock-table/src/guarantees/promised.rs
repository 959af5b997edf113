//! The guarantees of a lock recipe, as data. The tests of `tests/lock` include this file.

/// The guarantees of a recipe on one Redis primary without a failover.
///
/// The table of all recipes in `src/guide/locks.md` is generated from these values, and tests compare each value with a real
/// server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The lock of a crashed holder becomes free after at most its ttl. Without this guarantee a crash blocks the lock
    /// forever.
    pub crash_frees: bool,
    /// A former holder cannot release the lock of the current holder, however late it tries.
    pub owner_safe: bool,
    /// The holder can extend the lock, so that the ttl may be shorter than the work.
    pub extendable: bool,
    /// The value of the lock's key identifies its holder, so that a script can refuse the writes of a late holder.
    pub fenceable: bool,
    /// An acquisition or a release may be sent again if the first reply was lost: twice has the same effect as once.
    pub replay_safe: bool,
    /// The recipe does not compare the clocks of two hosts.
    pub clock_free: bool,
    /// The recipe works over connections that are shared with other users.
    pub multiplex_safe: bool,
    /// All keys of one lock are in one slot of a Redis Cluster, and different locks are spread over the slots.
    pub one_slot: bool,
}

impl Guarantees {
    /// All guarantees.
    pub const ALL: Self = Self {
        crash_frees: true,
        owner_safe: true,
        extendable: true,
        fenceable: true,
        replay_safe: true,
        clock_free: true,
        multiplex_safe: true,
        one_slot: true,
    };
}
