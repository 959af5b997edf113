//! What a recipe promises, as data.

/// What a recipe promises on one Redis primary that is not failed over.
///
/// `docs/locks.md` has the table of all recipes; it is made of these values, and each of them is held against a real
/// server by a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// A holder that dies locks nobody out for longer than its ttl. Without this a crash locks the others out for ever, and
    /// the guard does not [take](crate::store::LockedStore) the recipe.
    pub crash_frees: bool,
    /// Who holds the lock no longer cannot release it for the one who holds it now, however late it tries.
    pub owner_safe: bool,
    /// Its holder can prolong it, so that the ttl need not be as long as the work.
    pub extendable: bool,
    /// The name of the lock holds what tells one holder from the next, so that a script can refuse the writes of a holder
    /// that is late.
    pub fenceable: bool,
    /// To send an acquisition or a release twice, because the first reply was lost, is as good as once.
    pub replay_safe: bool,
    /// No clock of one host is compared with that of another.
    pub clock_free: bool,
    /// It works over connections that others use at the same time.
    pub multiplex_safe: bool,
    /// All that belongs to one lock is in one slot of a Redis Cluster, and different locks are in different ones.
    pub one_slot: bool,
}

impl Guarantees {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        crash_frees: true,
        owner_safe: true,
        extendable: true,
        fenceable: true,
        replay_safe: true,
        clock_free: true,
        multiplex_safe: true,
        one_slot: true,
    };

    /// Each with its name, in the order of the table.
    #[must_use]
    pub const fn each(&self) -> [(&'static str, bool); 8] {
        [
            ("crash frees it", self.crash_frees),
            ("owner-safe release", self.owner_safe),
            ("extendable", self.extendable),
            ("fenceable", self.fenceable),
            ("replay-safe", self.replay_safe),
            ("clock-free", self.clock_free),
            ("multiplex-safe", self.multiplex_safe),
            ("one slot", self.one_slot),
        ]
    }
}
