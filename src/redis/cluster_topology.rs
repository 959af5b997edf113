//! Which master has which slots, as the cluster said last.

use super::cluster_slots::SlotRange;
use std::{ops::RangeInclusive, sync::Arc};

/// The masters of a cluster.
pub(super) struct Topology<N> {
    /// The ranges of slots, in their order.
    ranges: Vec<(RangeInclusive<u16>, Arc<Master<N>>)>,
    /// The masters that only the view before the last one has named. The next view may name them again.
    missing: Vec<Arc<Master<N>>>,
}

/// A master at one address, with what belongs to it.
pub(super) struct Master<N> {
    pub(super) id: String,
    host: String,
    port: u16,
    pub(super) node: N,
}

impl<N> Topology<N> {
    pub(super) fn master_of(&self, slot: u16) -> Option<Arc<Master<N>>> {
        let range = self.ranges.partition_point(|(slots, _)| *slots.end() < slot);
        self.ranges.get(range).filter(|(slots, _)| slots.contains(&slot)).map(|(_, master)| master.clone())
    }

    /// Replaces the topology by the view of a node, unless that knows of no master. Builds what belongs to masters that
    /// are new. A node that does not know its own host names itself without one: it is at its old address.
    pub(super) fn update(&mut self, mut view: Vec<SlotRange>, build: impl Fn(&SlotRange) -> N) {
        if view.is_empty() {
            return;
        }
        view.sort_by_key(|range| *range.slots.start());
        let before: Vec<_> = self.ranges.drain(..).map(|(_, master)| master).collect();
        let mut known = [&before[..], &self.missing].concat();
        for range in view {
            let is_there = |master: &&Arc<Master<N>>| {
                master.id == range.id
                    && (range.host.is_empty() || master.host == range.host && master.port == range.port)
            };
            let master = known.iter().find(is_there).cloned().unwrap_or_else(|| {
                let node = build(&range);
                Arc::new(Master { id: range.id.clone(), host: range.host.clone(), port: range.port, node })
            });
            known.push(master.clone());
            self.ranges.push((range.slots, master));
        }
        let is_named = |master: &Arc<Master<N>>| self.ranges.iter().any(|(_, named)| Arc::ptr_eq(named, master));
        self.missing = before.into_iter().filter(|master| !is_named(master)).collect();
    }
}

impl<N> Default for Topology<N> {
    fn default() -> Self {
        Self { ranges: Vec::new(), missing: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn range(slots: RangeInclusive<u16>, id: &str, host: &str) -> SlotRange {
        SlotRange { slots, id: id.into(), host: host.into(), port: 7000 }
    }

    /// Seen to fail if an empty view replaces the topology.
    #[test]
    fn master_is_kept_through_empty_and_partial_views() {
        let (mut topology, built) = (Topology::default(), Cell::new(0));
        let mut update = |view| {
            topology.update(view, |_| built.replace(built.get() + 1));
            [0, 9, 10].map(|slot| topology.master_of(slot).map(|master| master.node))
        };
        let both = || vec![range(10..=19, "b", "2"), range(0..=9, "a", "1")];
        let all = [Some(0), Some(0), Some(1)];
        assert_eq!(update(both()), all);
        assert_eq!(update(vec![]), all);
        assert_eq!(update(vec![range(0..=9, "a", "1"), range(10..=19, "b", "")]), all);
        assert_eq!(update(vec![range(10..=19, "b", "2")]), [None, None, Some(1)]);
        assert_eq!(update(both()), all);
        for _ in 0..2 {
            update(vec![range(10..=19, "b", "2")]);
        }
        assert_eq!(update(both()), [Some(2), Some(2), Some(1)], "it was missing twice");
        assert_eq!(update(vec![range(0..=19, "b", "3")]), [Some(3); 3], "another address");
    }
}
